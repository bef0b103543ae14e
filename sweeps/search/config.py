"""A study's settings: its objectives, seeds and sampler.

``conf/study/base.yaml`` lists them with their defaults. ``conf/study/NAME.yaml`` changes some of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from grok.config.common import LARGEST_SWEEP, refuse_too_many_runs
from grok.config.fields import build, section, setting, settings_of
from grok.errors import ConfigError, nearest
from grok.streams import MAX_SEED

OBJECTIVES: Final = (
    "median_time",
    "generalised_share",
    "accurate_share",
    "val_loss",
    "val_acc",
    "logit_acc",
    "compute",
)
"""Statistics over a trial's seeds; sweeps/search/space.py defines them."""

FRESH: Final = 1_000_000
"""First seed of a comparison: no search begins so high."""
NO_STUDY: Final = "the study is missing: expected study=NAME, a file of conf/study/"
SAMPLERS: Final = ("tpe", "random", "nsga2")


@dataclass(kw_only=True)
class SamplerConfig:
    """How the study chooses the next settings."""

    name: str = setting("tpe", "Sampler.", choices=SAMPLERS)
    seed: int = setting(0, "Seed of the sampler; the same seed proposes the same trials.", minimum=0, maximum=MAX_SEED)
    startup: int = setting(10, "Random trials before tpe uses its model.", minimum=1, maximum=LARGEST_SWEEP)
    population: int = setting(16, "Settings per generation of nsga2.", minimum=2, maximum=LARGEST_SWEEP)


@dataclass(kw_only=True)
class StudyConfig:
    """One study: trials of settings, each trained over the same seeds."""

    name: str = setting("study", "Name of the study, of its journal and of its results in the store.")
    trials: int = setting(60, "Settings to try.", minimum=1, maximum=LARGEST_SWEEP)
    seeds: int = setting(8, "Seeds that each setting is trained with.", minimum=1, maximum=LARGEST_SWEEP)
    first_seed: int = setting(0, "The first of them.", minimum=0, maximum=MAX_SEED)
    parallel: int = setting(
        8,
        "Trials in parallel; the sampler proposes the next ones when all of them are finished.",
        minimum=1,
        maximum=10_000,
    )
    objectives: list[str] = setting(
        ["median_time"], f"One objective, or two for a Pareto front, of {', '.join(OBJECTIVES)}."
    )
    horizon: int | None = setting(None, "Step at which losses and accuracies are read; null: the last.", minimum=1)
    accuracy: float = setting(
        0.98, "accurate_share: validation accuracy that a seed exceeds at the horizon.", above=0, below=1
    )
    compare: int = setting(
        0,
        "Compare the finished study's best setting with the default on this many fresh seeds, for example 32.",
        minimum=0,
        maximum=LARGEST_SWEEP,
    )
    sampler: SamplerConfig = section(SamplerConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name):
            raise ConfigError(
                f"study.name={self.name!r}: expected at most 100 letters, digits, '.', '_' or '-', and first a letter "
                "or digit"
            )
        unknown = [name for name in self.objectives if name not in OBJECTIVES]
        if unknown or len(set(self.objectives)) != len(self.objectives) or not 1 <= len(self.objectives) <= 2:
            raise ConfigError(
                f"study.objectives={self.objectives}: expected one, or two different ones, of {', '.join(OBJECTIVES)}"
            )
        refuse_too_many_runs(self.trials * self.seeds, f"study.trials={self.trials} study.seeds={self.seeds}")
        self._check_seeds()

    def _check_seeds(self) -> None:
        if self.first_seed < FRESH + self.compare and self.first_seed + self.seeds > FRESH:
            raise ConfigError(
                f"study.compare={self.compare}: its seeds ({FRESH:,} to {FRESH + self.compare - 1:,}) are among the "
                f"search's own, which begin at study.first_seed={self.first_seed}: expected fresh ones"
            )
        if self.first_seed + self.seeds > MAX_SEED:
            raise ConfigError(f"study.first_seed={self.first_seed}: its seeds go beyond {MAX_SEED}")

    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of every trial. They are replicates of a setting, not parameters to search."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def definition(self) -> dict[str, Any]:
        """Return the settings that define the study, without those that may change during it."""
        free = {"trials", "compare"}
        return {name: value for name, value in asdict(self).items() if name not in free}


def split_study(settings: Mapping[str, Any]) -> tuple[StudyConfig, dict[str, Any], dict[str, Any]]:
    """Return the study, its raw search space, and the settings of the default run.

    Raises:
        ConfigError: there is no study, or one of its settings is unknown or impossible.
    """
    base = dict(settings)
    raw = base.pop("study", None)
    if not isinstance(raw, Mapping):
        raise ConfigError(NO_STUDY)
    study = dict(raw)
    space = study.pop("space", None)
    if space is not None and not isinstance(space, Mapping):
        raise ConfigError(
            f"study.space={space!r}: expected settings with {{low: ..., high: ...}} or {{choices: [...]}}"
        )
    return build(StudyConfig, study, "study.", Studied), dict(space or {}), base


def refuse_unknown(name: str) -> None:
    """Refuse a dotted name below ``study`` that is not a setting.

    Raises:
        ConfigError: the name is unknown; the message has the nearest known one.
    """
    known = settings_of(Studied)
    sections = {"study.sampler", "study.space"}
    if name not in known and name not in sections and not name.startswith("study.space."):
        raise ConfigError(f"unknown setting '{name}'{nearest(name, known)}")


@dataclass(kw_only=True)
class Studied:
    """The settings that a search has in addition to those of a run, by their full dotted names."""

    study: StudyConfig = section(StudyConfig)
