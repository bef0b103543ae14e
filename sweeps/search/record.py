"""A study in Optuna's storage: a journal file in the store, or any storage by URL.

A kill leaves no partial change: a trial is added at once, a stage counts when its number is written, and
the end of a trial is one state. Changes are made under a lock, so that several processes can work on one
study.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from grok.config.fields import canonical_json
from grok.errors import ConfigError, StoreError
from grok.files import locked
from grok.masking import without_passwords
from sweeps.search.config import StudyConfig
from sweeps.search.objective import make_objectives
from sweeps.search.proposal import SAMPLER_STATE, Proposal
from sweeps.search.quiet import quiet
from sweeps.search.samplers import make_pruner

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

DEFINITION: Final = "definition"
OPTUNA: Final = "optuna"
"""User attribute of a study: the version of Optuna that created it."""
LOST_LOCK_SECONDS: Final = 3
"""Age of a journal's lock from which its owner counts as killed; a write takes milliseconds."""
LOCK_FILE_SUFFIX: Final = ".lock"  # Optuna's
ASKED, STAGES, ENDED = "asked", "stages", "ended"
"""User attributes of a trial: the round of its proposal, the number of its finished stages, the round of its end."""


class StudyRecord:
    """One study in its storage."""

    def __init__(self, study: StudyConfig, folder: Path, definition: Mapping[str, Any]) -> None:
        """Open the study, or create it in ``folder`` (the store's ``search``).

        Raises:
            ConfigError: it has another definition, or the storage's URL cannot be opened.
            StoreError: its journal cannot be read.
        """
        self._config = study
        self._lock = folder / f"{study.name}.lock"
        self.where = without_passwords(study.storage or str(folder / f"{study.name}.journal"))
        folder.mkdir(parents=True, exist_ok=True)
        with self.changing(), quiet():
            storage = self._open_storage(study, folder)
            # Check the name first: a database whose creation was killed may lack the index that keeps names unique.
            exists = study.name in optuna.get_all_study_names(storage)
            self._study = (optuna.load_study if exists else self._create)(
                storage=storage,
                study_name=study.name,
                sampler=optuna.samplers.RandomSampler(seed=0),  # unused: sweeps.search.proposal samples
                pruner=make_pruner(study.pruner),
            )
            self._check_definition(json.loads(canonical_json(dict(definition))))
            if OPTUNA not in self._study.user_attrs:
                self._study.set_user_attr(OPTUNA, optuna.__version__)

    @property
    def begun_with(self) -> str:
        """The version of Optuna that created the study; another version may propose other trials."""
        return str(self._study.user_attrs[OPTUNA])

    def _create(self, **options: Any) -> optuna.Study:
        directions = [objective.direction for objective in make_objectives(self._config)]
        return optuna.create_study(directions=directions, load_if_exists=True, **options)

    def _open_storage(self, study: StudyConfig, folder: Path) -> BaseStorage:
        try:
            if study.storage is None:
                # Absolute, because Optuna's lock is a link to this path: Optuna cannot read the age of a link with a
                # missing target, and would wait forever for a process that was killed during a write.
                journal = folder.resolve() / f"{study.name}.journal"
                drop_lost_lock(journal)
                drop_torn_record(journal)
                return JournalStorage(JournalFileBackend(str(journal), JournalLock(journal)))
            return open_url(study.storage)
        except ValueError as error:
            raise StoreError(f"{self.where} cannot be read ({error}): move it away to start the study again") from error

    def _check_definition(self, definition: Mapping[str, Any]) -> None:
        begun = self._study.user_attrs.get(DEFINITION)
        if begun is None:
            self._study.set_user_attr(DEFINITION, definition)
            return
        differing = [
            f"{part}.{name}"
            for part in definition
            if part in begun or part != "code"  # older versions did not record it
            for name in sorted({*definition[part], *begun.get(part, {})})
            if definition[part].get(name) != begun.get(part, {}).get(name)
        ]
        if differing:
            raise ConfigError(
                f"the study {self._config.name!r} in {self.where} has other settings "
                f"({', '.join(differing[:4])}{', ...' if differing[4:] else ''}): use those, or another study.name"
            )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the study's lock."""
        with locked(self._lock):
            yield

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, in order of their numbers."""
        return self._study.get_trials(deepcopy=False)

    def add(self, proposal: Proposal, round_number: int) -> None:
        """Add a proposed trial in one write."""
        trial = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=proposal.params,
            distributions=proposal.distributions,
            system_attrs=proposal.system_attrs,
            user_attrs={ASKED: round_number, SAMPLER_STATE: proposal.sampler_state},
        )
        self._study.add_trial(trial)

    def note(self, number: int, name: str, value: Any) -> None:
        """Set the user attribute ``name`` of a trial that has not ended."""
        self._trial(number).set_user_attr(name, value)

    def report(self, number: int, values: Mapping[int, float]) -> bool:
        """Report intermediate values by seed or step; return whether the pruner stops the trial."""
        trial = self._trial(number)
        known = self._frozen(number).intermediate_values
        with quiet():
            for step, value in values.items():
                if step not in known:
                    trial.report(value, step)
            return bool(trial.should_prune())

    def end(self, number: int, round_number: int, state: TrialState, values: Sequence[float] | None = None) -> None:
        """End a trial."""
        self.note(number, ENDED, round_number)
        with quiet():
            self._study.tell(number, list(values) if values is not None else None, state=state)

    def best(self) -> list[FrozenTrial]:
        """Return the best finished trial, or the Pareto front of a study with two objectives."""
        if not any(trial.state == TrialState.COMPLETE for trial in self.trials()):
            return []
        return [self._study.best_trial] if len(self._study.directions) == 1 else self._study.best_trials

    def _frozen(self, number: int) -> FrozenTrial:
        return self.trials()[number]

    def _trial(self, number: int) -> Trial:
        return Trial(self._study, self._frozen(number)._trial_id)


class JournalLock(JournalFileSymlinkLock):
    """Optuna's lock, but an interruption raises KeyboardInterrupt instead of an error of Optuna's clean-up."""

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal), grace_period=LOST_LOCK_SECONDS)

    def acquire(self) -> bool:
        with interruptions():
            return super().acquire()

    def release(self) -> None:
        with interruptions():
            super().release()


@contextmanager
def interruptions() -> Iterator[None]:
    """If an error was raised while a KeyboardInterrupt was handled, raise the KeyboardInterrupt."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__context__
        if cause is None:
            raise
        raise cause from None


def open_url(url: str) -> BaseStorage:
    """Return Optuna's storage in a database.

    Raises:
        ConfigError: it cannot be opened.
    """
    from sqlalchemy.exc import SQLAlchemyError

    shown = without_passwords(url)
    try:
        return optuna.storages.RDBStorage(url)
    except (SQLAlchemyError, ImportError, RuntimeError) as error:  # RuntimeError: tables of another Optuna
        missing = f" ({error.__cause__})" if isinstance(error, ImportError) and error.__cause__ else ""
        reason = without_passwords(" ".join(f"{error}{missing}".split()))[:300]
        raise ConfigError(f"study.storage={shown!r} cannot be opened: {reason}") from error


def drop_torn_record(journal: Path) -> None:
    """Remove an incomplete last line, left by a kill or a full disk: Optuna would append to it."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with journal.open("r+b") as file:
            file.truncate(whole)


def drop_lost_lock(journal: Path) -> None:
    """Remove a journal's lock whose owner was killed; wait for one in use."""
    lock = Path(f"{journal}{LOCK_FILE_SUFFIX}")
    begun = time.monotonic()
    while os.path.lexists(lock):
        if time.monotonic() - begun > LOST_LOCK_SECONDS:
            lock.unlink(missing_ok=True)
            return
        time.sleep(0.05)


def now() -> str:
    """Return the present time (UTC) in ISO format."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
