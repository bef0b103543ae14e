"""A study in Optuna's storage, its samplers, and the next settings to try, a pure function of the trials so far.

A kill leaves no partial change: a trial is added at once, and the end of a trial is one state. Changes are made under
a lock, so that several processes can work on one study.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from grok.config.fields import canonical_json
from grok.errors import ConfigError, StoreError
from grok.files import locked
from grok.streams import Stream
from grok.sweeps.search.config import SamplerConfig, StudyConfig
from grok.sweeps.search.space import Space, Value, direction_of

# Optuna's samplers by name, with a study's settings.
#
# Every round makes a new sampler with a seed of the round. So its proposals depend only on earlier trials,
# not on when or how often the study was stopped.

SEED_BITS = 2**32 - 1
"""Mask for the seeds of Optuna's samplers, which have 32 bits."""


def make_sampler(config: SamplerConfig, round_number: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of one round."""
    seed = Stream("search", config.seed).at("round", round_number).seed64() & SEED_BITS
    if config.name == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed,
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=config.startup,
        )
    return optuna.samplers.RandomSampler(seed=seed)


# Hides Optuna's log lines and its warnings about experimental features.


@contextmanager
def quiet() -> Iterator[None]:
    """Show only Optuna's errors inside the context."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


# The next settings to try, as a pure function of the trials so far and of the round.
#
# The sampler works on a copy of the study in memory. So a study that was killed and continued proposes the
# same trials as one that was not.

FIXED: Final = "fixed_params"


def propose(
    study: StudyConfig,
    space: Space,
    base: Mapping[str, Value],
    history: Sequence[FrozenTrial],
    round_number: int,
    count: int,
) -> list[FrozenTrial]:
    """Return the ``count`` trials of a round, not begun.

    Args:
        base: the default's settings, by dotted name.
        history: all trials of earlier rounds, in order, in their state at the start of this round.
    """
    with quiet():
        sampler = make_sampler(study.sampler, round_number)
        memory = optuna.create_study(sampler=sampler, direction=direction_of(study.objective))
        for trial in history:
            memory.add_trial(trial)
        if not history and (default := space.default(base)) is not None:
            memory.enqueue_trial(default)
        for _ in range(count):
            memory.ask(space.distributions)
    return [
        optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=dict(trial.params),
            distributions=dict(trial.distributions),
            system_attrs={key: value for key, value in trial.system_attrs.items() if key != FIXED},
            user_attrs={ASKED: round_number},
        )
        for trial in memory.get_trials()[len(history) :]
    ]


# A study in Optuna's storage: a journal file in the store.

DEFINITION: Final = "definition"
OPTUNA: Final = "optuna"
"""User attribute of a study: the version of Optuna that created it."""
DEFAULT: Final = "default"
"""User attribute of a study: the default's values of the settings that it searches."""
ASKED: Final = "asked"
"""User attribute of a trial: the round of its proposal."""


class StudyRecord:
    """One study in its storage."""

    def __init__(
        self, study: StudyConfig, folder: Path, definition: Mapping[str, Any], default: Mapping[str, Any]
    ) -> None:
        """Open the study, or create it in ``folder`` (the store's ``search``).

        Raises:
            ConfigError: it has another definition.
            StoreError: its journal cannot be read.
        """
        self._config = study
        self._lock = folder / f"{study.name}.lock"
        self._journal = folder / f"{study.name}.journal"
        folder.mkdir(parents=True, exist_ok=True)
        with self.changing(), quiet():
            try:
                storage = JournalStorage(JournalFileBackend(str(self._journal), cast(Any, _NoLock())))
            except ValueError as error:
                raise StoreError(
                    f"{self._journal} cannot be read ({error}): move it away to start the study again"
                ) from error
            exists = study.name in optuna.get_all_study_names(storage)
            create = partial(optuna.create_study, direction=direction_of(study.objective))
            self.study = (optuna.load_study if exists else create)(
                storage=storage,
                study_name=study.name,
                sampler=optuna.samplers.RandomSampler(seed=0),  # unused: grok.sweeps.search.record samples
            )
            self._check_definition(json.loads(canonical_json(dict(definition))))
            if OPTUNA not in self.study.user_attrs:
                self.study.set_user_attr(DEFAULT, dict(default))
                self.study.set_user_attr(OPTUNA, optuna.__version__)

    def _check_definition(self, definition: Mapping[str, Any]) -> None:
        if DEFINITION not in self.study.user_attrs:
            self.study.set_user_attr(DEFINITION, definition)
        both = (definition, self.study.user_attrs[DEFINITION])
        mine, begun = ({f"{part}.{name}": v for part, of in d.items() for name, v in of.items()} for d in both)
        differing = sorted(name for name in mine.keys() | begun.keys() if mine.get(name) != begun.get(name))
        if differing:
            raise ConfigError(
                f"the study {self._config.name!r} in {self._journal} has other settings "
                f"({', '.join(differing[:4])}{', ...' if differing[4:] else ''}): use those, or another study.name"
            )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the study's lock, with a journal that ends with a whole record."""
        with locked(self._lock):
            _drop_torn_record(self._journal)
            yield

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, in order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def add(self, proposal: FrozenTrial) -> None:
        """Add a proposed trial in one write."""
        self.study.add_trial(proposal)

    def note(self, number: int, name: str, value: Any) -> None:
        """Set the user attribute ``name`` of a trial that has not ended."""
        Trial(self.study, self.trials()[number]._trial_id).set_user_attr(name, value)

    def end(self, number: int, state: TrialState, value: float | None = None) -> None:
        """End a trial."""
        with quiet():
            self.study.tell(number, value, state=state)

    def best(self) -> FrozenTrial | None:
        """Return the best finished trial; None if none is finished."""
        finished = any(trial.state == TrialState.COMPLETE for trial in self.trials())
        return self.study.best_trial if finished else None


class _NoLock:
    """Stands where Optuna's lock would: each change is made under the study's own."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _drop_torn_record(journal: Path) -> None:
    """Remove an incomplete last line, left by a kill or a full disk: Optuna would append to it."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with journal.open("r+b") as file:
            file.truncate(whole)
