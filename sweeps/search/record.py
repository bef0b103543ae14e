"""A study in Optuna's storage: a journal file in the store, or any storage by URL.

A kill leaves no partial change: a trial is added at once, a stage counts when its number is written, and
the end of a trial is one state. Changes are made under a lock, so that several processes can work on one
study. The pinned comparison and its result are attributes of the study.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
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
DEFAULT: Final = "default"
"""User attribute of a study: the default's values of the settings that it searches."""
PINNED, COMPARED = "pinned", "compared"
"""User attributes of a study: its comparison as it was pinned, and the scores of its runs."""
ASKED, STAGES, ENDED = "asked", "stages", "ended"
"""User attributes of a trial: the round of its proposal, the number of its finished stages, the round of its end."""


class StudyRecord:
    """One study in its storage."""

    def __init__(
        self, study: StudyConfig, folder: Path, definition: Mapping[str, Any], default: Mapping[str, Any]
    ) -> None:
        """Open the study, or create it in ``folder`` (the store's ``search``).

        Raises:
            ConfigError: it has another definition, or the storage's URL cannot be opened.
            StoreError: its journal cannot be read.
        """
        self._config = study
        self._lock = folder / f"{study.name}.lock"
        self._journal = folder / f"{study.name}.journal" if study.storage is None else None
        self.where = without_passwords(study.storage or str(self._journal))
        folder.mkdir(parents=True, exist_ok=True)
        with self.changing(), quiet():
            storage = self._open_storage()
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
                self._study.set_user_attr(DEFAULT, dict(default))
                self._study.set_user_attr(OPTUNA, optuna.__version__)

    @property
    def begun_with(self) -> str:
        """The version of Optuna that created the study; another version may propose other trials."""
        return str(self._study.user_attrs[OPTUNA])

    def _create(self, **options: Any) -> optuna.Study:
        directions = [objective.direction for objective in make_objectives(self._config)]
        return optuna.create_study(directions=directions, load_if_exists=True, **options)

    def _open_storage(self) -> BaseStorage:
        if self._config.storage is not None:
            return open_url(self._config.storage)
        try:
            return JournalStorage(JournalFileBackend(str(self._journal), cast(Any, _NoLock())))
        except ValueError as error:
            raise StoreError(f"{self.where} cannot be read ({error}): move it away to start the study again") from error

    def _check_definition(self, definition: Mapping[str, Any]) -> None:
        begun = self._study.user_attrs.get(DEFINITION)
        if begun is None:
            self._study.set_user_attr(DEFINITION, definition)
            return
        differing = [
            f"{part}.{name}"
            for part in sorted({*definition, *begun})
            for name in sorted({*definition.get(part, {}), *begun.get(part, {})})
            if definition.get(part, {}).get(name) != begun.get(part, {}).get(name)
        ]
        if differing:
            raise ConfigError(
                f"the study {self._config.name!r} in {self.where} has other settings "
                f"({', '.join(differing[:4])}{', ...' if differing[4:] else ''}): use those, or another study.name"
            )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the study's lock, with a journal that ends with a whole record."""
        with locked(self._lock):
            if self._journal is not None:
                _drop_torn_record(self._journal)
            yield

    def attribute(self, name: str) -> Any:
        """Return a user attribute of the study; None: it is not set."""
        return self._study.user_attrs.get(name)

    def set_attribute(self, name: str, value: Any) -> None:
        """Set a user attribute of the study; the caller holds its lock."""
        self._study.set_user_attr(name, value)

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


def now() -> str:
    """Return the present time (UTC) in ISO format."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
