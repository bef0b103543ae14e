"""Robust statistics of one quantity of a run's log: outliers, slow growth, and where an excursion began."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.records import StepPoint

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


class Signal:
    """The logarithms of the recent values of one positive quantity."""

    def __init__(self, window: int) -> None:
        self.recent: deque[float] = deque(maxlen=window)
        self.lows: deque[float] = deque(maxlen=WINDOWS)
        self.highs: deque[float] = deque(maxlen=WINDOWS)
        self.count = 0

    def outlier(self, value: float, *, factor: float, sigma: float, tail: float = TAIL) -> bool:
        """Return whether ``value`` is far above the median and above the highest value of the last windows.

        It must be ``sigma`` deviations above the median, and ``factor`` times the highest value; where the values have
        heavy tails more: ``tail`` times as far above the highest one, in the logarithm, as this is above the median.
        """
        if value <= 0 or len(self.recent) < self.recent.maxlen:  # type: ignore[operator]
            return False
        middle, highest = statistics.median(self.recent), max(*self.recent, *self.highs)
        rise = max(math.log(factor), tail * (highest - middle))
        return math.log(value) > max(highest + rise, middle + sigma * spread(self.recent, middle))

    def grown(self, growth: float) -> bool:
        """Return whether the recent median is ``growth`` times the lowest kept one; if so, start again."""
        if not self.lows or statistics.median(self.recent) <= min(self.lows) + math.log(growth):
            return False
        self.lows.clear()
        return True

    def remember(self, value: float) -> None:
        """Add the next value, except zero, which has no logarithm."""
        if value <= 0:
            return
        self.recent.append(math.log(value))
        self.count += 1
        if self.count % self.recent.maxlen == 0:  # type: ignore[operator]
            self.lows.append(statistics.median(self.recent))
            self.highs.append(max(self.recent))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values."""
        kept = {name: list(getattr(self, name)) for name in ("recent", "lows", "highs")}
        return {**kept, "count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""
        self.recent = deque(state["recent"], maxlen=self.recent.maxlen)
        self.lows, self.count = deque(state["lows"], maxlen=WINDOWS), state["count"]
        self.highs = deque(state["highs"], maxlen=WINDOWS)


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
