"""A study's settings: its objective, seeds and sampler.

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
    "val_loss",
    "logit_acc",
)
"""Statistics over a trial's seeds; sweeps/search/space.py defines them."""

NO_STUDY: Final = "the study is missing: expected study=NAME, a file of conf/study/"
SAMPLERS: Final = ("tpe", "random")


@dataclass(kw_only=True)
class SamplerConfig:
    """How the study chooses the next settings."""

    name: str = setting("tpe", "Sampler.", choices=SAMPLERS)
    seed: int = setting(0, "Seed of the sampler; the same seed proposes the same trials.", minimum=0, maximum=MAX_SEED)
    startup: int = setting(10, "Random trials before tpe uses its model.", minimum=1, maximum=LARGEST_SWEEP)


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
    objective: str = setting("median_time", "Statistic over a trial's seeds that is optimised.", choices=OBJECTIVES)
    sampler: SamplerConfig = section(SamplerConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name):
            raise ConfigError(
                f"study.name={self.name!r}: expected at most 100 letters, digits, '.', '_' or '-', and first a letter "
                "or digit"
            )
        refuse_too_many_runs(self.trials * self.seeds, f"study.trials={self.trials} study.seeds={self.seeds}")
        if self.first_seed + self.seeds > MAX_SEED:
            raise ConfigError(f"study.first_seed={self.first_seed}: its seeds go beyond {MAX_SEED}")

    def all_seeds(self) -> tuple[int, ...]:
        """Return the seeds of every trial. They are replicates of a setting, not parameters to search."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def definition(self) -> dict[str, Any]:
        """Return the settings that define the study, without the number of trials, which may grow."""
        return {name: value for name, value in asdict(self).items() if name != "trials"}


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
