"""Carries out a study in rounds.

A round adds ``study.parallel`` trials and trains them, each with all seeds, in one sweep. Then it judges them in
the order of their numbers. Rounds depend on the trials only, not on time, so a study that was killed, or ran with
another number of workers, makes the same trials.

The runs of a study are ordinary runs: they are planned, stored and skipped like any other.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from optuna.trial import FrozenTrial, TrialState

from grok.commands.compose import apply
from grok.config import RunConfig, flatten, load_config, load_configs
from grok.config.fields import canonical_json, walk
from grok.errors import ConfigError, TrainingError
from grok.execute import execute
from grok.execute.groups import prepare_runs
from grok.execute.sweep import GO_ON
from grok.store import Purpose, Purposes, StoreWriter, check_path, open_store
from grok.sweeps.search.config import StudyConfig
from grok.sweeps.search.record import ASKED, OPTUNA, StudyRecord, propose
from grok.sweeps.search.space import (
    READ_AT_END,
    Plain,
    SeedOutcome,
    Space,
    Value,
    read_outcomes,
    read_space,
    refuse_impossible,
    score_of,
    value_of,
    worded,
)

Train = Callable[[Sequence[Plain], Purposes], bool]
"""Trains runs, given as nested settings with what they are for, and returns whether all of them are stored."""

SEARCH_FOLDER: Final = "search"
RUNS, REASON = "runs", "reason"
"""User attributes of a trial: (seed, run_id, score) of each run; why it failed."""


@dataclass(slots=True)
class Search:
    """One study with its settings."""

    study: StudyConfig
    space: Space
    base: Plain
    """Nested settings of the default run."""
    train: Train
    tell: Callable[[str], None]
    default: RunConfig = field(init=False)
    flat: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        """Check the study against the settings of the default run.

        Raises:
            ConfigError: they are not compatible.
        """
        self.default = load_config(self.base)
        self.flat = flatten(self.default)
        if self.default.force:
            raise ConfigError("force=true: a search uses the runs that are stored; expected force=false")
        if self.default.seed != 0:
            raise ConfigError(
                f"seed={self.default.seed}: every trial of a study trains the same {self.study.seeds} seeds; expected "
                f"study.first_seed={self.default.seed}"
            )
        name = self.study.objective
        if self.flat["mode"] != "arithmetic" and name != "val_loss":
            raise ConfigError(f"study.objective={name}: mode={self.flat['mode']} supports only val_loss")
        if self.flat.get("train.stop_when_generalised") and name in READ_AT_END:
            raise ConfigError(
                f"study.objective={name} is read at the last step, where runs that generalise would not be: expected "
                "train.stop_when_generalised=false"
            )

    @property
    def store_path(self) -> Path:
        return Path(self.default.store.path)

    @property
    def budget(self) -> int:
        """The steps of every run."""
        return int(str(self.flat["train.steps"]))

    @property
    def folder(self) -> Path:
        """The folder of the study's journal."""
        return self.store_path / SEARCH_FOLDER

    def definition(self) -> dict[str, Any]:
        """Return everything that determines the study's trials."""
        settings = {n: value for n, value, rule in walk(self.default) if rule.role != "none" and value != rule.neutral}
        return {
            "study": self.study.definition(),
            "space": self.space.declared,
            "settings": {**settings, "seeds": {k: v for k, v in self.flat.items() if k.startswith("seeds.")}},
        }

    def _versions(self) -> dict[str, dict[str, str]]:
        """Return the versions of the user's own code and of the data; nothing without either."""
        (run,) = prepare_runs([self.default])
        known = {**(run.code or {}), **({"data": run.data_hash} if run.data_hash else {})}
        return {"code": known} if known else {}

    def plan(self) -> str:
        """Return the plan of the study in one line."""
        s = self.study
        what = s.objective.replace("_", " ")
        return (
            f"study {s.name}: {s.trials} trials of {', '.join(self.space.declared)}; {s.seeds} "
            f"seeds and {self.budget} steps each, {s.parallel} side by side; {what} by {s.sampler.name}"
        )

    def record(self) -> StudyRecord:
        """Open the study, or create it and its store.

        Raises:
            ConfigError: the study has another definition.
            StoreError: the store or the study's journal cannot be read or written.
        """
        if not check_path(self.store_path):
            StoreWriter(self.store_path).close()  # makes the store that the search's folder is in
        default = {name: self.flat.get(name) for name in self.space.declared}
        record = StudyRecord(self.study, self.folder, {**self.definition(), **self._versions()}, default)
        begun, this = record.study.user_attrs[OPTUNA], version("optuna")
        if begun != this:
            self.tell(f"Started with Optuna {begun}; this is {this}, which may propose other trials.")
        return record

    def run(self, record: StudyRecord) -> bool:
        """Do the rest of the study; return False if training was interrupted."""
        while True:
            # that of the trials in flight, or the next one
            asked = [(int(trial.user_attrs[ASKED]), trial.state.is_finished()) for trial in record.trials()]
            after = max((number + 1 for number, _ in asked), default=0)
            round_number = min((number for number, ended in asked if not ended), default=after)
            with record.changing():
                self._fill(record, round_number)
            flying = [t for t in record.trials() if not t.state.is_finished() and t.user_attrs[ASKED] == round_number]
            if not flying:
                return True
            if not self._train(flying):
                return False
            with record.changing():
                for trial in record.trials():
                    # another process may have judged it meanwhile, and begun the next round
                    if not trial.state.is_finished() and trial.user_attrs[ASKED] == round_number:
                        self._judge(record, trial)

    def _fill(self, record: StudyRecord, round_number: int) -> None:
        trials = record.trials()
        earlier = [t for t in trials if t.user_attrs[ASKED] < round_number]
        count = min(self.study.parallel, self.study.trials - len(earlier))
        if len(trials) < len(earlier) + count:
            proposals = propose(self.study, self.space, self.flat, earlier, round_number, count)
            for proposal in proposals[len(trials) - len(earlier) :]:
                record.add(proposal)

    def settings_of(self, params: dict[str, Value]) -> list[Plain]:
        """Return the runs of a setting with all seeds."""
        return [apply(self.base, {**params, "seed": seed}) for seed in self.study.all_seeds()]

    def _train(self, flying: Sequence[FrozenTrial]) -> bool:
        wanted, purposes, detail = [], [], {"study": self.study.name}
        for trial in flying:
            for seed, settings in zip(self.study.all_seeds(), self.settings_of(trial.params), strict=True):
                if impossible(settings) is None:
                    wanted.append(settings)
                    unit = {"trial": trial.number, "seed": seed}
                    purposes.append(Purpose(role="trial", unit=unit, choice_detail=detail))
        return not wanted or self.train(wanted, Purposes("search", purposes, design_id=self.design_id))

    @property
    def design_id(self) -> str:
        """The study's id among the designs of the store: the hash of its name and its definition."""
        text = canonical_json(["search", self.study.name, self.definition()])
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def _judge(self, record: StudyRecord, trial: FrozenTrial) -> None:
        number = trial.number
        settings = self.settings_of(trial.params)
        refused = impossible(settings[0])
        if refused is not None:
            record.note(number, REASON, refused)
            record.end(number, TrialState.PRUNED)
            self.tell(f"trial {number}: impossible ({refused})")
            return
        seeds = self.outcomes(settings)
        scores = [score_of(self.study.objective, outcome) for outcome in seeds]
        runs = [[s, o.run_id, score] for s, o, score in zip(self.study.all_seeds(), seeds, scores, strict=True)]
        record.note(number, RUNS, runs)
        failed = [outcome for outcome in seeds if outcome.status == "failed"]
        if failed:
            record.note(number, REASON, f"{len(failed)} of {len(seeds)} runs failed: {failed[0].error}")
            record.end(number, TrialState.FAIL)
            self.tell(f"trial {number}: failed, {failed[0].error}")
            return
        value = value_of(self.study.objective, seeds)
        record.end(number, TrialState.COMPLETE, value)
        shown = [f"{name}={v:.4g}" if isinstance(v, float) else f"{name}={v}" for name, v in trial.params.items()]
        what = f"{worded(self.study.objective, value, self.budget)} over {len(seeds)} seeds"
        self.tell(f"trial {number}: {what}, {', '.join(shown)}")

    def outcomes(self, settings: Sequence[Plain]) -> list[SeedOutcome]:
        """Return the stored outcomes of these runs, which must all be stored.

        Raises:
            TrainingError: one is not stored, because code or data changed while it trained.
        """
        run_ids = [run.run_id for run in prepare_runs(load_configs(settings))]
        outcomes = read_outcomes(open_store(self.store_path), run_ids, self.budget)
        if missing := [run_id for run_id in run_ids if run_id not in outcomes]:
            raise TrainingError(
                f"{len(missing)} of {len(run_ids)} runs of a trial are not in {self.store_path} under their present "
                "names: your own code or the data changed while they trained; give a new study.name"
            )
        return [outcomes[run_id] for run_id in run_ids]


def impossible(settings: Plain) -> str | None:
    """Return why a run cannot have these settings; None if it can."""
    try:
        load_config(settings)
    except ConfigError as refusal:
        return str(refusal)
    return None


# Carries out a study.


def carry_out(study: StudyConfig, raw_space: Mapping[str, Any], base: Plain, argv: Sequence[str]) -> int:
    """Do the rest of a study; return the exit status.

    Args:
        raw_space: the search space as written in ``conf/study/``.
        base: nested settings of the default run.
        argv: the command, recorded in the store.

    Raises:
        GrokError: refused; nothing was trained.
    """
    space = read_space(raw_space, str(base.get("mode", "arithmetic")))
    refuse_impossible(space, base)
    search = Search(study, space, base, by_execution(argv), tell)
    tell(search.plan())
    if search.default.dry_run:
        check_path(str(search.store_path))
        tell(f"Nothing was trained (dry_run=true). The study would be in {search.folder}.")
        return 0
    record = search.record()
    try:
        done = search.run(record)
    except KeyboardInterrupt:
        done = False
    return _conclude(search, record.trials(), record.best(), done)


def by_execution(argv: Sequence[str]) -> Train:
    """Return the function that trains runs with ``grok.execute``."""

    def train(settings: Sequence[Plain], design: Purposes) -> bool:
        outcome = execute(load_configs(settings), argv=argv, design=design)
        return set(outcome.run_ids) <= set(outcome.statuses)

    return train


def _conclude(search: Search, trials: Sequence[Any], best: FrozenTrial | None, done: bool) -> int:
    store = shlex.quote(str(search.store_path))
    finished = sum(trial.state.is_finished() for trial in trials)
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    line = f"{finished} of {search.study.trials} trials finished in {shlex.quote(str(search.folder))}."
    if not done:
        tell(f"Interrupted: {line} {GO_ON}")
        return 1
    if best is not None and best.value is not None:
        params = " ".join(f"{name}={value}" for name, value in best.params.items())
        alike = sum(trial.state.name == "COMPLETE" and trial.value == best.value for trial in trials) - 1
        tied = f" (as good as {alike} others)" * bool(alike)
        what = worded(search.study.objective, best.value, search.budget)
        tell(f"best: trial {best.number}{tied}, {what} over {search.study.seeds} seeds: {params}")
    if failed:
        tell(f"{line} {len(failed)} failed (trial {failed[0].number}: {failed[0].user_attrs[REASON]}).")
        return 1
    tell(f"{line} Report, and how to hold the best against the default: grok report {store} --only search")
    return 0


def tell(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)
