"""The search space (which settings vary, between which bounds) and the objective over a trial's seeds.

In YAML, with nested or dotted names::

    optim:
      lr: {low: 1e-4, high: 1e-2, log: true}
      grokfast: {choices: [none, ema]}
    model.d_model: {choices: [32, 48, 64]}

The type of the setting decides whether a number is an integer.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

from grok.commands.compose import apply
from grok.config import MODES, load_config
from grok.config.fields import ANY, Rule, check, settings_of
from grok.errors import ConfigError, nearest
from grok.store import Store

if TYPE_CHECKING:
    from optuna.trial import Trial

Value = float | int | str | bool | None
Plain = dict[str, Any]

_KEYS: Final = ("low", "high", "log", "step", "choices")


@dataclass(frozen=True, slots=True)
class Dimension:
    """One setting that varies."""

    name: str
    """Dotted name of the setting."""
    low: float | None = None
    high: float | None = None
    log: bool = False
    step: float | None = None
    choices: tuple[Value, ...] = ()
    whole: bool = False

    def suggest(self, trial: Trial) -> Value:
        """Return a value that Optuna suggests."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        assert self.low is not None
        assert self.high is not None
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return trial.suggest_float(self.name, self.low, self.high, log=self.log, step=self.step)

    def holds(self, value: Value) -> bool:
        """Return whether the dimension contains ``value``."""
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        assert self.low is not None
        assert self.high is not None
        steps = (value - self.low) / self.step if self.step else 0.0
        return self.low <= value <= self.high and abs(steps - round(steps)) < 1e-9


@dataclass(frozen=True, slots=True)
class Space:
    """The settings that vary."""

    dimensions: tuple[Dimension, ...]

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Return a point of the space that Optuna suggests."""
        return {dimension.name: dimension.suggest(trial) for dimension in self.dimensions}

    def default(self, base: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return the default's point of the space; None if the space does not contain it."""
        point = {d.name: base.get(d.name) for d in self.dimensions}
        return point if all(d.holds(point[d.name]) for d in self.dimensions) else None

    def describe(self) -> dict[str, Any]:
        """Return the space as plain data."""
        description: dict[str, Any] = {}
        for d in self.dimensions:
            one: dict[str, Any] = {"choices": list(d.choices)} if d.choices else {"low": d.low, "high": d.high}
            if d.log:
                one["log"] = True
            if d.step is not None:
                one["step"] = d.step
            description[d.name] = one
        return description


def read_space(raw: Mapping[str, Any], mode: str) -> Space:
    """Return the checked space of ``raw``.

    Raises:
        ConfigError: ``raw`` has an unknown setting, a seed, a setting of the command, or values that the
            setting refuses.
    """
    settings = settings_of(MODES[mode])
    leaves = dict(_leaves(raw, "", settings))
    if not leaves:
        raise ConfigError("study.space is empty: expected at least one setting, as {low: ..., high: ...} or {choices}")
    return Space(tuple(_dimension(name, declared, settings) for name, declared in leaves.items()))


def refuse_impossible(space: Space, base: Plain) -> None:
    """Refuse choices that a setting does not accept.

    Numbers are not checked: some may be possible only with certain choices.

    Raises:
        ConfigError: there is such a choice.
    """
    load_config(base)
    for dimension in space.dimensions:
        for word in (choice for choice in dimension.choices if isinstance(choice, str)):
            try:
                load_config(apply(base, {dimension.name: word}))
            except ConfigError as error:
                if str(error).startswith(f"{dimension.name}="):
                    raise ConfigError(f"study.space.{dimension.name}: {error}") from error


def _leaves(raw: Mapping[str, Any], prefix: str, settings: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    leaves: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in raw.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            raise ConfigError(f"study.space.{name}={value!r}: expected {{low: ..., high: ...}} or {{choices: [...]}}")
        if name in settings or {"low", "high", "choices"} & set(map(str, value)):
            leaves.append((name, value))
        else:
            leaves += _leaves(value, f"{name}.", settings)
    return leaves


def _dimension(name: str, declared: Mapping[str, Any], settings: Mapping[str, tuple[Any, Rule]]) -> Dimension:
    where = f"study.space.{name}"
    if name not in settings:
        raise ConfigError(f"{where}: unknown setting '{name}'{nearest(name, settings)}")
    if name == "seed" or name.startswith("seeds."):
        raise ConfigError(f"{where}: a seed is a replicate of every trial, not a setting to search (study.seeds)")
    hint, rule = settings[name]
    if name in ("train.steps", "replicate") or rule.role in ("none", "schedule"):
        raise ConfigError(f"{where}: this is the same for all trials of a study; set it outside the space")
    for key in declared:
        if key not in _KEYS:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(str(key), _KEYS)}: expected {', '.join(_KEYS)}")
    if (choices := declared.get("choices")) is not None:
        if not isinstance(choices, list | tuple) or not choices:
            raise ConfigError(f"{where}.choices={choices!r}: expected a list of values")
        if any(typing.get_origin(one) in (list, dict) for one in (hint, *typing.get_args(hint))):
            raise ConfigError(f"{where}: lists and maps cannot be searched, expected a setting with one value")
        values = tuple(check(name, value, hint, rule) for value in choices)
        return Dimension(name, choices=values)
    low, high, step = declared.get("low"), declared.get("high"), declared.get("step")
    if low is None or high is None:
        raise ConfigError(f"{where}: expected low and high, or choices")
    kind = hint if hint in (int, float) else next((h for h in getattr(hint, "__args__", ()) if h in (int, float)), None)
    if kind is None:
        raise ConfigError(f"{where}: this setting is not a number, expected choices: [...]")
    low, high = check(name, low, kind, rule), check(name, high, kind, rule)
    log = declared.get("log", False)
    if not isinstance(log, bool):
        raise ConfigError(f"{where}.log={log!r}: expected true or false")
    if step is not None:
        step = check(f"{where}.step", step, kind, ANY)
    if low >= high or (log and low <= 0) or (step is not None and step <= 0) or (log and step is not None):
        raise ConfigError(
            f"{where}={dict(declared)}: expected low < high, low above 0 where log is true, and step (above 0) only "
            "without log"
        )
    return Dimension(name, low=low, high=high, log=log, step=step, whole=kind is int)


# Objectives of a search: statistics over a trial's seeds.
#
# | name | statistic | better |
# |---|---|---|
# | ``median_time`` | median step of generalisation; a censored seed counts as after the budget | low |
# | ``generalised_share`` | share of seeds that generalised within the budget | high |
# | ``val_loss`` | median over seeds, at the last step | low |
# | ``logit_acc`` | mean over seeds of ln(right / wrong) on the validation set at the last step | high |
#
# If at least half of the seeds are censored, the median does not exist. The value is then the budget times
# (1 + share of censored seeds): above every median that exists, and better if more seeds generalised.

MINIMISED: Final = frozenset({"median_time", "val_loss"})
READ_AT_END: Final = frozenset({"val_loss", "logit_acc"})
SURE: Final = 1e-3
"""Accuracies are clipped to this distance from 0 and 1 before the logit, so that one seed cannot dominate a mean."""


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The outcome of one seed of a trial."""

    run_id: str
    status: str
    error: str | None
    budget: int
    grokked_step: int | None
    val_loss: float
    """At the last step; NaN if the run did not reach it."""
    val_acc: float
    """The same of the accuracy."""


def score_of(objective: str, seed: SeedOutcome) -> float:
    """Return the finite score of one seed; a censored time is twice the budget."""
    if objective == "median_time":
        return 2.0 * seed.budget if seed.grokked_step is None else float(seed.grokked_step)
    if objective == "generalised_share":
        return float(seed.grokked_step is not None)
    if objective == "logit_acc":
        accuracy = min(max(seed.val_acc, SURE), 1 - SURE) if math.isfinite(seed.val_acc) else SURE
        return math.log(accuracy / (1 - accuracy))
    return seed.val_loss if math.isfinite(seed.val_loss) else WORST_LOSS


def value_of(objective: str, seeds: Sequence[SeedOutcome]) -> float:
    """Return the objective of a setting over its ``seeds``."""
    if objective == "median_time":
        return median_time(seeds)
    scores = [score_of(objective, seed) for seed in seeds]
    return median(scores) if objective == "val_loss" else sum(scores) / len(scores)


WORST_LOSS: Final = 100.0
"""Validation loss of a diverged seed: larger than any real one, and finite, as samplers need it."""


def median_time(seeds: Sequence[SeedOutcome]) -> float:
    """Return the median step of generalisation; if it is censored, a number above the budget."""
    middle = median(math.inf if seed.grokked_step is None else float(seed.grokked_step) for seed in seeds)
    if math.isfinite(middle):
        return middle
    censored = sum(seed.grokked_step is None for seed in seeds) / len(seeds)
    return max(seed.budget for seed in seeds) * (1 + censored)


def worded(objective: str, value: float, steps: int) -> str:
    """Return the objective of a setting for people: a median beyond its ``steps`` counts late seeds and is no time."""
    late = objective == "median_time" and value > steps
    return f"{objective} above {steps:,}" if late else f"{objective} {value:.6g}"


def direction_of(objective: str) -> Literal["minimize", "maximize"]:
    """Return whether a low or a high value of ``objective`` is better."""
    return "minimize" if objective in MINIMISED else "maximize"


def read_outcomes(store: Store, run_ids: Sequence[str], budgets: Mapping[str, int]) -> dict[str, SeedOutcome]:
    """Return the stored outcomes of ``run_ids``."""
    columns = ["run_id", "status", "error", "grokked_step", "val_loss", "val_acc"]
    outcomes = {}
    for row in store.table("runs", run_ids, columns).to_pylist():
        finished = row["status"] == "completed"
        loss, accuracy = (row[name] if finished else None for name in ("val_loss", "val_acc"))
        outcomes[row["run_id"]] = SeedOutcome(
            run_id=row["run_id"],
            status=row["status"],
            error=row["error"],
            budget=budgets[row["run_id"]],
            grokked_step=row["grokked_step"] if finished else None,
            val_loss=math.nan if loss is None else float(loss),
            val_acc=math.nan if accuracy is None else float(accuracy),
        )
    return outcomes
