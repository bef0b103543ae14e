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
from typing import Any, Final, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from grok.commands.compose import apply
from grok.config import MODES, load_config
from grok.config.fields import ANY, Rule, check, settings_of
from grok.errors import ConfigError, nearest
from grok.store import Store

Value = float | int | str | bool | None
Plain = dict[str, Any]

_KEYS: Final = ("low", "high", "log", "step", "choices")


@dataclass(frozen=True, slots=True)
class Space:
    """The settings that vary, by dotted name."""

    distributions: dict[str, BaseDistribution]
    """What Optuna draws from."""
    declared: dict[str, dict[str, Any]]
    """The same as plain data."""

    def default(self, base: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return the default's point of the space; None if the space does not contain it."""
        point = {name: base.get(name) for name in self.distributions}
        try:
            create_trial(value=0.0, params=point, distributions=self.distributions)
        except ValueError:
            return None
        return point


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
    both = {name: _dimension(name, declared, settings) for name, declared in leaves.items()}
    return Space({name: one for name, (one, _) in both.items()}, {name: plain for name, (_, plain) in both.items()})


def refuse_impossible(space: Space, base: Plain) -> None:
    """Refuse choices that a setting does not accept.

    Numbers are not checked: some may be possible only with certain choices.

    Raises:
        ConfigError: there is such a choice.
    """
    load_config(base)
    for name, declared in space.declared.items():
        for word in (choice for choice in declared.get("choices", ()) if isinstance(choice, str)):
            try:
                load_config(apply(base, {name: word}))
            except ConfigError as error:
                if str(error).startswith(f"{name}="):
                    raise ConfigError(f"study.space.{name}: {error}") from error


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


def _dimension(
    name: str, declared: Mapping[str, Any], settings: Mapping[str, tuple[Any, Rule]]
) -> tuple[BaseDistribution, dict[str, Any]]:
    """Return the distribution of a setting, and its checked declaration."""
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
        values = [check(name, value, hint, rule) for value in choices]
        return CategoricalDistribution(values), {"choices": values}
    if not {"low", "high"} <= declared.keys():
        raise ConfigError(f"{where}: expected low and high, or choices")
    kind = next((h for h in (hint, *typing.get_args(hint)) if h in (int, float)), None)
    if kind is None:
        raise ConfigError(f"{where}: this setting is not a number, expected choices: [...]")
    plain = {end: check(name, declared[end], kind, rule) for end in ("low", "high")}
    if check(f"{where}.log", declared.get("log", False), bool, ANY):
        plain["log"] = True
    if declared.get("step") is not None:
        plain["step"] = check(f"{where}.step", declared["step"], kind, ANY)
    try:
        return (IntDistribution if kind is int else FloatDistribution)(**plain), plain
    except ValueError as error:
        raise ConfigError(f"{where}={dict(declared)}: {error}") from error


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
    grokked_step: int | None = None
    val_loss: float = math.nan
    """At the last step; NaN if the run did not reach it."""
    val_acc: float = math.nan
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


def read_outcomes(store: Store, run_ids: Sequence[str], budget: int) -> dict[str, SeedOutcome]:
    """Return the stored outcomes of ``run_ids``."""
    outcomes = {}
    results = ["grokked_step", "val_loss", "val_acc"]
    for row in store.table("runs", run_ids, ["run_id", "status", "error", *results]).to_pylist():
        run_id, finished = row["run_id"], row["status"] == "completed"
        values = {name: row[name] for name in results if finished and row[name] is not None}
        outcomes[run_id] = SeedOutcome(run_id, row["status"], row["error"], budget, **values)
    return outcomes
