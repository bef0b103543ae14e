"""Spikes and divergence, the statistics that detect them, and the branches that a rollback makes.

A spike is detected in its step, before the update. A rollback returns to a state well
before the onset and starts a new branch of the run. The init seed stays the same. The
data order changes (or data is skipped, or the rate is cut). The abandoned branch is
stored under its own name.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from grok.config.gpt import SKIP_WINDOW, StabilityConfig
from grok.records import StepPoint, finite_or_null

T = TypeVar("T")

# Robust statistics of one quantity of a run's log: outliers, slow growth, and where an excursion began.

NORMAL_MAD: Final = 1.4826
"""Factor from the median absolute deviation of a normal distribution to its standard deviation."""
WINDOWS: Final = 20
"""Number of windows whose medians and highest values are kept, to detect slow growth and outliers."""
TAIL: Final = 1.5
"""Gradients of healthy runs with batches of one or two sequences have heavy tails: some are 50 times the median. In 108
such runs of 1,500 steps, at rates up to 0.03, none rose that far."""
ONSET_SIGMA: Final = 3.0
"""A quantity is in an excursion from this many robust deviations above its calm level."""
SUDDEN_SHARE, LASTING_SHARE = 0.25, 0.1
"""It must also rise by this share of the excursion's height: for a sudden excursion, and for a slow one."""
ONSET_SMOOTH: Final = 4
"""Steps on either side in the median that bridges single calm steps within an excursion."""
ONSET_WINDOWS: Final = 4
"""Number of windows before a sudden event in which its onset is searched."""
SPREAD_OF_MEDIAN: Final = 1.2533 / math.sqrt(2 * ONSET_SMOOTH + 1)
"""Standard deviation of the median of that many normal values, divided by that of one value."""
LEAST: Final = {
    "train_loss": 0.2,
    "grad_norm": math.log(2),
    "adam_v_l1": math.log(2),
    "adam_v_max": math.log(2),
    "param_norm": math.log(2),
}
"""Least height of an excursion, for each quantity that is searched: in nats, or of a logarithm."""


def spread(values: Sequence[float], middle: float) -> float:
    """Return the robust standard deviation of ``values`` around ``middle``."""
    return NORMAL_MAD * statistics.median(abs(x - middle) for x in values)


def last_of(values: list[T], value: T, most: int) -> list[T]:
    """Return the last ``most`` of ``values`` and then ``value``."""
    return [*values, value][-most:] if most else []


@dataclass(slots=True)
class Signal:
    """The logarithms of the recent values of one positive quantity."""

    window: int
    recent: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    count: int = 0

    def outlier(self, value: float, *, factor: float, sigma: float, tail: float = TAIL) -> bool:
        """Return whether ``value`` is far above the median and above the highest value of the last windows.

        It must be ``sigma`` deviations above the median, and ``factor`` times the highest value; where the values have
        heavy tails more: ``tail`` times as far above the highest one, in the logarithm, as this is above the median.
        """
        if value <= 0 or len(self.recent) < self.window:
            return False
        middle, highest = statistics.median(self.recent), max(*self.recent, *self.highs)
        rise = max(math.log(factor), tail * (highest - middle))
        return math.log(value) > max(highest + rise, middle + sigma * spread(self.recent, middle))

    def grown(self, growth: float) -> bool:
        """Return whether the recent median is ``growth`` times the lowest kept one; if so, start again."""
        if not self.lows or statistics.median(self.recent) <= min(self.lows) + math.log(growth):
            return False
        self.lows = []
        return True

    def remember(self, value: float) -> None:
        """Add the next value, except zero, which has no logarithm."""
        if value <= 0:
            return
        self.recent = last_of(self.recent, math.log(value), self.window)
        self.count += 1
        if self.count % self.window == 0:
            self.lows = last_of(self.lows, statistics.median(self.recent), WINDOWS)
            self.highs = last_of(self.highs, max(self.recent), WINDOWS)


def onset(log: Sequence[StepPoint], names: Sequence[str], *, window: int, steps: int | None) -> int:
    """Return the step at which the event of the last step of ``log`` began.

    For each of the logged quantities ``names`` that is high at the end, this is the step at which it left its calm
    level: the lowest median of ``window`` steps among the last ``steps`` (None: among all, for a slow event). The
    result is the earliest of these steps.
    """
    recent = log if steps is None else log[-(steps + 1) :]
    share = LASTING_SHARE if steps is None else SUDDEN_SHARE
    begun = [_rise(np.array([_level(p, name) for p in recent]), window, LEAST[name], share) for name in names]
    return recent[min(begun)].step


def _level(point: StepPoint, name: str) -> float:
    value = float(getattr(point, name))
    if not math.isfinite(value) or name == "train_loss":
        return value
    return math.log(value) if value > 0 else math.nan


def _rise(values: NDArray[np.float64], window: int, least: float, share: float) -> int:
    """Return the first index of the excursion, at least ``least`` high, that ``values`` end with, or the last index."""
    last = len(values) - 1
    # norms of weights and moments are measured after the update, and the last step made none
    known = np.isfinite(values[:last])
    if known.sum() < window:
        return last
    filled = values.copy()
    filled[:last][~known] = np.nanmax(values[:last][known])
    filled[last] = values[last] if math.isfinite(values[last]) else np.nanmax(filled[:last])
    medians = np.median(np.lib.stride_tricks.sliding_window_view(filled[:last], window), axis=1)
    calm = int(np.argmin(medians))
    middle = float(medians[calm])
    deviation = spread(filled[calm : calm + window].tolist(), middle)
    smooth = [float(np.median(filled[max(0, i - ONSET_SMOOTH) : i + ONSET_SMOOTH + 1])) for i in range(last + 1)]
    height = max(filled[last], smooth[last]) - middle
    stands_out = (
        filled[last] > middle + ONSET_SIGMA * deviation
        or smooth[last] > middle + ONSET_SIGMA * deviation * SPREAD_OF_MEDIAN
    )
    if height < least or not stands_out:
        return last
    limit = middle + min(max(ONSET_SIGMA * deviation, share * height), height / 2)
    first = last
    while first > calm and max(filled[first - 1], smooth[first - 1]) > limit:
        first -= 1
    return first


# Spikes and divergence, and the branches that a rollback makes.

SMOOTHING: Final = 0.98
SIGNALS: Final = ("grad_norm", "param_norm", "adam_v_l1", "adam_v_max")
OUTLIERS: Final = {
    "grad_norm": ("grad_norm",),
    "weight_norm": ("param_norm",),
    "adam_v": ("adam_v_l1", "adam_v_max"),
}
"""Events that are outliers by a robust score, with the quantity of each."""
MOMENTS: Final = 3.3
"""Second moments average squares, so their outliers must be larger by this factor, and rise twice as far."""
GROWING: Final = {"grad_growth": "grad_norm", "weight_growth": "param_norm"}
"""Events of slow growth. Second moments have none, because they grow at the start of every run."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The changes that rollbacks have made to a run; the first branch has none."""

    number: int = 0
    order: int = 0
    """Number of the data order: 0 is that of the order stream, n that of the n-th rollback."""
    skipped_samples: int = 0
    lr_factor: float = 1.0
    step: int = 0
    """Step at which this branch left the previous one."""

    def next(self, config: StabilityConfig, *, back_to: int, skip: int) -> Branch:
        """Return the branch after rolling back to step ``back_to``; ``skip``: sequences for skip_data."""
        number = self.number + 1
        return Branch(
            number=number,
            order=number if config.policy == "new_data_seed" else self.order,
            skipped_samples=self.skipped_samples + (skip if config.policy == "skip_data" else 0),
            lr_factor=self.lr_factor * (config.lr_cut if config.policy == "cut_lr" else 1.0),
            step=back_to,
        )


def abandoned_id(run_id: str, branch: int) -> str:
    """Return the run_id of an abandoned branch, a hash of the run's own: the same rollback gives the same name."""
    return hashlib.sha256(f"{run_id}/branch/{branch}".encode()).hexdigest()[: len(run_id)]


def return_step(steps: list[int], wanted: int) -> int:
    """Return the last of ``steps`` that is at most ``wanted``, or the first of all."""
    return max((s for s in steps if s <= wanted), default=min(steps))


@dataclass(slots=True)
class Incident:
    """Rollbacks that follow each other closely: each returns twice as far as the one before."""

    tries: int = 0
    at: int = 0
    """Last step at which something went wrong."""

    def another_try(self, k: int, config: StabilityConfig) -> bool:
        """Record that step ``k`` went wrong; return whether the run may roll back once more.

        A calm stretch since the last time ends the incident: a full window, and as many steps as the margin.
        """
        calm = max(config.window, self.margin(config))
        if k > self.at + calm:
            self.tries = 0
        self.at = k
        if self.tries == config.tries:
            return False
        self.tries += 1
        return True

    def margin(self, config: StabilityConfig) -> int:
        """Return the least number of steps from the state of this try's rollback to the onset."""
        return config.margin << max(0, self.tries - 1)


@dataclass(slots=True)
class Watch:
    """Checks the numbers of every step for the events of ``grok.config.gpt.EVENTS``."""

    config: StabilityConfig
    epoch: float = math.inf
    """Number of batches in an epoch of the data."""
    recent: list[float] = field(default_factory=list)
    first: float | None = None
    """Loss of the first step; about log V for a new model."""
    smooth: float = 0.0
    above: int = 0
    best: float = math.inf
    """Lowest smoothed loss since the first full window."""
    far: int = 0
    """Steps since the smoothed loss was near its lowest value."""
    signals: dict[str, Signal] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    """Norms of the weights and of AdamW's second moments after the last update."""
    before: dict[str, float] = field(default_factory=dict)
    """These norms after the previous update."""
    still: int = 0
    batches: list[int] = field(default_factory=list)
    """Checksums of the last batches."""
    repeats: int = 0
    skipped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signals = {name: Signal(self.config.window) for name in SIGNALS}

    def see(self, loss: float, grad_norm: float, batch: int | None = None) -> str | None:
        """Return the event of the next step, one of ``EVENTS``, or None.

        The step is added to the statistics unless the policy acts on it. ``batch`` is a checksum of the step's tokens.
        """
        values = {"grad_norm": grad_norm, **self.latest}
        if not all(map(math.isfinite, (loss, *values.values()))):
            return "not_finite"
        if self._spikes(loss):
            event: str | None = "spike"
        else:
            event = next((name for name in OUTLIERS if self._stands_out(name, values)), None)
        if event and self.config.acts_on(event):
            return event
        self._remember(loss, values)
        if batch is not None:
            self.repeats = self.repeats + 1 if batch in self.batches else 0
            # of half an epoch: a new epoch repeats the batches of the last one in another order
            self.batches = last_of(self.batches, batch, int(min(self.config.window, self.epoch / 2)))
        if self.above >= self.config.rise_steps:
            return "rising"
        return event or self._lasting()

    def after(self, *, param_norm: float, adam_v_l1: float, adam_v_max: float, adam_steps: int) -> None:
        """Record the norms after an update, for the next check; before the first update AdamW has no moments."""
        now = {"param_norm": param_norm}
        if adam_steps:
            now |= {"adam_v_l1": adam_v_l1, "adam_v_max": adam_v_max}
        self.before, self.latest = self.latest, now

    def skip(self, k: int) -> bool:
        """Record that update ``k`` was skipped; return whether ``skip_limit`` is reached."""
        self.skipped = last_of(self.skipped, k, self.config.skip_limit)
        return len(self.skipped) == self.config.skip_limit and self.skipped[0] > k - SKIP_WINDOW

    def onset(self, event: str, log: Sequence[StepPoint]) -> int:
        """Return the step at which the event of the last step of ``log`` began, by the statistics of the log."""
        if event == "stalled":
            return log[-1].step - self.still
        if event == "repeated":
            return log[-1].step - self.repeats - len(set(self.batches))
        sudden = event in OUTLIERS or event in ("spike", "not_finite", "skip_limit")
        names = OUTLIERS.get(event) or ((GROWING[event],) if event in GROWING else ("train_loss", "grad_norm"))
        steps = ONSET_WINDOWS * self.config.window if sudden else None
        begun = onset(log, names, window=self.config.window, steps=steps)
        if event in ("not_finite", "skip_limit"):  # in fp16 it follows from skipped steps
            skipped = takewhile(lambda p: p.event in (event, "skipped"), reversed(log))
            begun = min([begun, *(p.step for p in skipped)])
        return begun

    def _spikes(self, loss: float) -> bool:
        if len(self.recent) < self.config.window:
            return False
        middle = statistics.median(self.recent)
        deviation = spread(self.recent, middle)
        return loss > middle + max(self.config.spike, self.config.sigma * deviation)

    def _stands_out(self, event: str, values: dict[str, float]) -> bool:
        limits = {"factor": self.config.factor, "sigma": self.config.sigma}
        if event == "adam_v":
            limits |= {"factor": MOMENTS * self.config.factor, "tail": 2 * TAIL}
        return any(self.signals[n].outlier(values[n], **limits) for n in OUTLIERS[event] if n in values)

    def _remember(self, loss: float, values: dict[str, float]) -> None:
        self.recent = last_of(self.recent, loss, self.config.window)
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth = SMOOTHING * self.smooth + (1 - SMOOTHING) * loss
        self.above = self.above + 1 if self.smooth > self.first + self.config.rise else 0
        if len(self.recent) == self.config.window:
            self.best = min(self.best, self.smooth)
        self.far = self.far + 1 if self.smooth > self.best + self.config.stuck else 0
        for name, value in values.items():
            self.signals[name].remember(value)
        moved = values["grad_norm"] > 0 and (not self.latest or self.latest != self.before)
        self.still = 0 if moved else self.still + 1

    def _lasting(self) -> str | None:
        """Return an event that has lasted long enough, or None; it is returned again after as many steps."""
        window = self.config.window
        if self.far and self.far % self.config.stuck_steps == 0:
            return "stuck"
        if self.still and self.still % window == 0:
            return "stalled"
        if self.repeats and self.repeats % max(1, window // 2) == 0:
            return "repeated"
        grown = (event for event, name in GROWING.items() if self.signals[name].grown(self.config.growth))
        return next(grown, None)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, with null for what is not finite."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("config", "epoch")}
        return finite_or_null(kept) | {name: finite_or_null(kept[name]) for name in ("latest", "before")}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        for name, value in state.items():
            setattr(self, name, value)
        self.best = math.inf if state["best"] is None else state["best"]
        self.latest = {n: math.nan if v is None else v for n, v in state["latest"].items()}
        self.before = {n: math.nan if v is None else v for n, v in state["before"].items()}
        window = self.config.window  # a resume may have changed it
        self.recent = self.recent[-window:]
        self.signals = {
            name: Signal(**signal | {"window": window, "recent": signal["recent"][-window:]})
            for name, signal in state["signals"].items()
        }
