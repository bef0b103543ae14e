"""The next settings to try, as a pure function of the trials so far and of the round.

The sampler works on a copy of the study in memory. So a study that was killed and continued proposes the
same trials as one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import optuna

from sweeps.search.config import StudyConfig
from sweeps.search.objective import make_objectives
from sweeps.search.quiet import quiet
from sweeps.search.samplers import grid_in_order, make_sampler
from sweeps.search.space import Space, Value

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SAMPLER_STATE: Final = "sampler_state"
"""User attribute of a trial: the sampler's attributes of the study at its proposal."""
FIXED: Final = "fixed_params"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposed trial."""

    params: dict[str, Value]
    distributions: dict[str, Any]
    system_attrs: dict[str, Any]
    sampler_state: dict[str, Any] = field(default_factory=dict)


def propose(
    study: StudyConfig,
    space: Space,
    base: Mapping[str, Value],
    history: Sequence[FrozenTrial],
    round_number: int,
    count: int,
) -> list[Proposal]:
    """Return the ``count`` trials of a round.

    Args:
        base: the default's settings, by dotted name.
        history: all trials of earlier rounds, in order, in their state at the start of this round.
    """
    directions = [objective.direction for objective in make_objectives(study)]
    with quiet():
        sampler = make_sampler(study.sampler, space, round_number)
        memory = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(), sampler=sampler, directions=directions, study_name=study.name
        )
        for trial in history:
            memory.add_trial(trial)
        if history:
            for key, value in history[-1].user_attrs.get(SAMPLER_STATE, {}).items():
                memory._storage.set_study_system_attr(memory._study_id, key, value)
        for values in _starting_points(study, space, base, len(history), count):
            memory.enqueue_trial(values)
        for _ in range(count):
            space.suggest(memory.ask(), base)
    state = dict(memory._storage.get_study_system_attrs(memory._study_id))
    return [
        Proposal(
            params=dict(trial.params),
            distributions=dict(trial.distributions),
            system_attrs={key: value for key, value in trial.system_attrs.items() if key != FIXED},
            sampler_state=state,
        )
        for trial in memory.get_trials()[len(history) :]
    ]


def _starting_points(
    study: StudyConfig, space: Space, base: Mapping[str, Value], made: int, count: int
) -> Sequence[dict[str, Value]]:
    """Return the settings of a round that the sampler does not choose: those of a grid, and the default as trial 0."""
    if study.sampler.name == "grid":
        return grid_in_order(study, space, base)[made : made + count]
    default = space.default(base) if study.default_first and not made else None
    return [default] if default is not None else []
