"""Optuna's samplers and pruners by name, with a study's settings.

Every round makes a new sampler with a seed of the round. So its proposals depend only on earlier trials,
not on when or how often the study was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import optuna

from grok.streams import Stream
from sweeps.search.config import PrunerConfig, SamplerConfig, StudyConfig
from sweeps.search.space import Space, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial

SEED_BITS = 2**32 - 1
"""Mask for the seeds of Optuna's samplers, which have 32 bits."""


def round_seed(config: SamplerConfig, *address: str | int) -> int:
    """Return the sampler's seed at one address of the study's search stream."""
    return Stream("search", config.seed).at(*address).seed64() & SEED_BITS


def make_sampler(config: SamplerConfig, space: Space, round_number: int) -> BaseSampler:
    """Return the sampler of one round."""
    seed = round_seed(config, "round", round_number)
    by_chance = optuna.samplers.RandomSampler(seed=round_seed(config, "independent", round_number))
    if config.name == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed,
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=config.startup,
        )
    if config.name == "gp":
        return optuna.samplers.GPSampler(seed=seed, independent_sampler=by_chance, n_startup_trials=config.startup)
    if config.name == "cmaes":
        return optuna.samplers.CmaEsSampler(
            seed=seed,
            independent_sampler=by_chance,
            n_startup_trials=config.startup,
            warn_independent_sampling=False,
        )
    if config.name == "qmc":
        return _SpaceFillingSampler(
            free_dimensions(space),
            seed=round_seed(config, "scramble"),  # one sequence for the whole study
            scramble=True,
            independent_sampler=by_chance,
            warn_asynchronous_seeding=False,
            warn_independent_sampling=False,
        )
    if config.name == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=config.population)
    return optuna.samplers.RandomSampler(seed=seed)  # unused for a grid: see `grid_in_order`


class _SpaceFillingSampler(optuna.samplers.QMCSampler):
    """A Sobol sequence over the study's space from the first trial on.

    Optuna's sampler infers the space from a finished trial, and in the first round there is none.
    """

    def __init__(self, space: dict[str, BaseDistribution], **options: Any) -> None:
        super().__init__(**options)
        self._space = space

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return dict(self._space)


def free_dimensions(space: Space) -> dict[str, BaseDistribution]:
    """Return the distributions of the numeric settings without a condition."""
    return {d.name: d.distribution() for d in space.dimensions if not d.choices and not d.when}


class _PercentileHere(optuna.pruners.PercentilePruner):
    """Compares a trial's value at this step with those of the others at this step.

    Optuna takes the trial's best value at any step. A censored time grows with the step, so its best would be that of
    the first one, and no later step would stop a trial that never generalises.
    """

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        here = copy(trial)
        here.intermediate_values = dict(sorted(trial.intermediate_values.items())[-1:])
        return super().prune(study, here)


def make_pruner(config: PrunerConfig) -> BasePruner:
    """Return the study's pruner."""
    if config.name == "wilcoxon":
        return optuna.pruners.WilcoxonPruner(p_threshold=config.p, n_startup_steps=config.first_seeds)
    if config.name == "percentile":
        return _PercentileHere(config.percentile, n_startup_trials=config.startup)
    return optuna.pruners.NopPruner()


def trial_limit(study: StudyConfig, space: Space, base: Mapping[str, Value]) -> int:
    """Return the number of trials: ``study.trials``, or the size of the grid if it is smaller.

    Raises:
        ConfigError: the grid is too large.
    """
    return min(study.trials, len(grid_in_order(study, space, base))) if study.sampler.name == "grid" else study.trials


def grid_in_order(study: StudyConfig, space: Space, base: Mapping[str, Value]) -> list[dict[str, Value]]:
    """Return every setting of the study's grid once, in random order, after the default if ``default_first``.

    In random order, so that a study with fewer trials than settings covers the whole grid. Optuna's grid
    sampler is not used, because it repeats settings that differ only in inactive dimensions.

    Raises:
        ConfigError: the grid is too large.
    """
    points = space.grid(study.sampler.points, base)
    default = space.default(base) if study.default_first else None
    order = Stream("search", study.sampler.seed).at("grid").permutation(len(points))
    return [*([default] if default is not None else []), *(points[i] for i in order if points[i] != default)]
