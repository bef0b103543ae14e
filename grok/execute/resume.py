"""From which checkpoint a run continues.

A run goes on from its own checkpoint. Where it has none, a language model goes on from the one that ``resume.run``
and ``resume.step`` name, and any run from the stored run that the plan says it extends: from the end of a shorter one,
or from its trunk at the step of its switch. Else it begins at step 0.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grok.config import MODES, ArithmeticConfig, GptConfig, Identity, RunConfig, flatten
from grok.config.fields import recorded_of
from grok.errors import CheckpointError
from grok.execute.groups import PlannedRun
from grok.files import is_unfinished
from grok.plugins import target_of
from grok.processes import Rank
from grok.records import Checkpoint
from grok.store import Store, open_store
from grok.store.layout import Layout

if TYPE_CHECKING:
    from grok.checkpoints import Origin

# From which checkpoint a run goes on: the one owner of that rule, before a sweep and in its workers.

METRICS: Final = "metrics"
"""Where a checkpoint's state holds the metrics of its curve."""


def checkpoint_to_resume(run: PlannedRun, store_path: str) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint that ``run`` goes on from, or None, and a line for each damaged one.

    Raises:
        CheckpointUnreadable: a checkpoint that may be intact cannot be read.
        CheckpointError: the checkpoint that ``resume.run`` names is missing or damaged.
    """
    own, notes = _intact(run, run.run_id, None, store_path, origin_of(run))
    # built-in metrics are in no name of a run; those of the user's own are, with their code
    wanted = metrics_of(run.config)
    if own is not None and wanted is not None and own.state.get(METRICS, wanted) != wanted:
        notes = [
            f"Note: run {run.run_id} was measured without the eval.metrics of now up to step {own.step}: it was "
            "trained anew, so that its curve has them from the start"
        ]
    elif own is not None:
        return own, notes
    named = named_checkpoint(run.config, store_path)
    if named is not None or run.extends is None:
        return named, notes
    of = stored_origin(store_path, run.extends)
    found, damaged = _intact(run, run.extends, run.extends_at, store_path, of)
    if found is not None and run.extends_at is None:
        found = replace(found, run_id=run.run_id)
    return found, notes + damaged


def _intact(
    run: PlannedRun, source: str, at: int | None, store_path: str, of: Origin
) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint of the run ``source`` at this step, or its newest intact one; and a line on a damaged one.

    None: it is damaged, or there is none any more.
    """
    from grok.checkpoints import checkpoint_steps, load_checkpoint, run_folder

    folder = run_folder(store_path, source)
    steps = checkpoint_steps(folder)
    if not steps or at not in (None, *steps):
        return None, []
    step = steps[0] if at is None else at
    other = "" if source == run.run_id else f", which {run.run_id} extends,"
    damaged = f"Damaged: the checkpoint of run {source}{other} at step {step}; it"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the note says it where the user looks
        try:
            checkpoint = load_checkpoint(folder, at, whole=not _in_shares(run.config), of=of)
        except CheckpointError:
            return None, [f"{damaged} was trained anew"]
    return checkpoint, [f"{damaged} went on from step {checkpoint.step}"] if checkpoint.step != step else []


def origin_of(run: PlannedRun) -> Origin:
    """Return what a checkpoint of ``run`` says of its run. Its numerics may be any: a run may move."""
    from grok.checkpoints import Origin

    return Origin(run.run_id, run.identity.trajectory_id)


def stored_origin(store_path: str, run_id: str) -> Origin:
    """Return what a checkpoint of the run ``run_id`` says of it, by its row where it has one."""
    from grok.checkpoints import Origin

    columns = ["run_id", "trajectory_id", "numerics"]
    if not Layout(Path(store_path)).marker.is_file():
        return Origin(run_id)
    rows = open_store(store_path).table("runs", [run_id], columns).to_pylist()
    return Origin(**rows[0]) if rows else Origin(run_id)


class StoredCheckpoints:
    """The checkpoints of one run in the store, for its engine: what a rollback may return to."""

    def __init__(self, store_path: str, run_id: str, of: Origin | None = None) -> None:
        from grok.checkpoints import run_folder

        self.folder, self.of = run_folder(store_path, run_id), of

    def steps(self) -> list[int]:
        """Return their steps, newest first."""
        from grok.checkpoints import checkpoint_steps

        return checkpoint_steps(self.folder)

    def load(self, step: int) -> Checkpoint:
        """Return that of ``step``, its tensors whole.

        Raises:
            CheckpointError: it is damaged, or gone.
        """
        from grok.checkpoints import load_checkpoint

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "left out")  # the error says it
            return load_checkpoint(self.folder, step, of=self.of)


def named_checkpoint(config: RunConfig, store_path: str) -> Checkpoint | None:
    """Return the checkpoint that ``resume.run`` and ``resume.step`` name, or None.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    if not isinstance(config, GptConfig) or config.resume.run is None:
        return None
    from grok.checkpoints import load_checkpoint

    folder = _named_folder(config.resume.run, store_path)
    of = stored_origin(store_path, config.resume.run)
    return load_checkpoint(folder, config.resume.step, whole=not _in_shares(config), of=of)


def refuse_unusable_parents(requested: Sequence[PlannedRun]) -> None:
    """Refuse ``resume.run`` where its checkpoint is missing or was made under settings that are not named.

    Asked of runs that are not stored, and only where they have no checkpoint of their own.

    Raises:
        CheckpointError: the new run cannot go on from it.
    """
    for run in requested:
        config = run.config
        if not isinstance(config, GptConfig) or config.resume.run is None or config.resume.step is None:
            continue
        from grok.checkpoints import checkpoint_steps, read_state, run_folder
        from grok.gpt.training.checkpoint import check_settings

        if not checkpoint_steps(run_folder(config.store.path, run.run_id)):
            folder = _named_folder(config.resume.run, config.store.path)
            state = read_state(folder, config.resume.step, of=stored_origin(config.store.path, config.resume.run))
            check_settings(state, config, str(run.data_hash))


def _in_shares(config: RunConfig) -> bool:
    """Return whether each process will read its own shares of a checkpoint."""
    sharded = isinstance(config, GptConfig) and config.train.keeps is not None
    return sharded and Rank.of_this_process().size > 1


def _named_folder(run_id: str, store_path: str) -> Path:
    from grok.checkpoints import checkpoint_steps, run_folder

    folder = run_folder(store_path, run_id)
    if not checkpoint_steps(folder):
        raise CheckpointError(
            f"resume.run={run_id}: there is no checkpoint in {folder}; give the whole run_id of a run "
            "whose checkpoint was kept (checkpoint.keep=true, or one that was interrupted or diverged)"
        )
    return folder


class Prefixes:
    """Stored runs whose checkpoints were kept, by all that must be equal for another run to go on from them.

    Besides the trajectory, its own or its trunk's, these are the settings of evaluation, early stop and replicate: the
    row of the run that goes on, and the weights it keeps, must be what they would be in an empty store.
    """

    def __init__(self, store: Store) -> None:
        # not the folders that have only kept weights, from which no run can go on
        self._kept: dict[str, set[int]] = {}
        for path in store.layout.checkpoints.glob("*/[0-9]*-step-*"):
            if not is_unfinished(path):
                self._kept.setdefault(path.parent.name, set()).add(int(path.name.rpartition("-")[2]))
        self._rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        if not self._kept:
            return
        alike = [name for cls in MODES.values() for name in _schedule_settings(cls)]
        columns = [
            "run_id",
            "trajectory_id",
            "mode",
            "steps",
            "stop_reason",
            "config.save",
            "config.eval.metrics",
            "config.train.steps",
            "own_code",
            *(f"config.{n}" for n in dict.fromkeys(alike)),
        ]
        for row in store.table("runs", self._kept, columns).to_pylist():
            values = (row[f"config.{name}"] for name in _schedule_settings(MODES[row["mode"]]))
            self._rows.setdefault((row["trajectory_id"], *values), []).append(row)

    def extended(self, run: PlannedRun) -> PlannedRun:
        """Return ``run`` with the stored run that it goes on from, if there is one.

        That is the longest shorter run of its own trajectory, or else its trunk at the step of the switch.
        """
        if not self._rows or not run.config.length_is_free():
            return run
        # a log schedule spreads its points over the run's length
        settings = flatten(run.config)
        steps, log = settings["train.steps"], settings.get("eval.schedule") == "log"
        shorter = [
            (row["steps"], row["run_id"])
            for row in self._alike(run, run.identity)
            if row["steps"] < steps and not log and row["stop_reason"] == "steps"
        ]
        if shorter:
            return replace(run, extends=max(shorter)[1])
        if (trunk := run.trunk()) is not None:
            identity, step = trunk
            for row in self._alike(run, identity):
                if step in self._kept[row["run_id"]] and not (log and row["config.train.steps"] != steps):
                    return replace(run, extends=row["run_id"], extends_at=step)
        return run

    def _alike(self, run: PlannedRun, identity: Identity) -> Iterator[dict[str, Any]]:
        """Yield the rows of the trajectory in ``identity`` that are measured as ``run`` is."""
        settings = flatten(run.config)
        values = (settings[name] for name in _schedule_settings(type(run.config)))
        for row in self._rows.get((identity.trajectory_id, *values), []):
            if _is_measured_alike(run, row) and _leaves_no_trace(run.config, row["steps"], row["config.save"]):
                yield row


def _is_measured_alike(run: PlannedRun, row: Mapping[str, Any]) -> bool:
    """Return whether a stored run's curve has the metrics of ``run``, of the same versions of the user's own code.

    They move no weights, so they are in no trajectory; but the longer run has the shorter one's curve in its own.
    """
    specs = run.config.plugins()
    measuring = [target_of(specs[name]) for name in run.config.measuring_plugins() if name in specs]
    before, now = json.loads(row["own_code"] or "{}"), run.code or {}
    same_code = all(before.get(target) == now.get(target) for target in measuring)
    return same_code and row["config.eval.metrics"] == flatten(run.config).get("eval.metrics")


def metrics_of(config: RunConfig) -> list[str] | None:
    """Return the built-in metrics of a run's evaluations; None for a language model, whose scores may begin late."""
    return sorted(set(config.eval.metrics)) if isinstance(config, ArithmeticConfig) else None


def _leaves_no_trace(config: RunConfig, end: int, saved: str) -> bool:
    """Return whether a run that went on from ``end`` keeps and measures what it would have without it.

    Measurements of kept weights need those up to ``end``, which are in the shorter run's folder. A language
    model's best weights and early stop know of every evaluation, the shorter run's last one
    too; its average begins after ``end``, or the shorter run has averaged other steps.
    """
    if isinstance(config, ArithmeticConfig):
        return not config.measures_kept_weights()
    assert isinstance(config, GptConfig)
    if config.coupled_schedule():  # the shorter run's checkpoints, which a rollback may return to, are not its own
        return False
    if not ("final" in config.save or config.train.early_stop):
        return True
    if end % config.eval.every:
        return False
    if "final" not in config.save:
        return True
    return "final" in saved and end < (1 - config.eval.average_share) * config.train.steps


def _schedule_settings(cls: type[RunConfig]) -> list[str]:
    return [name for name, (_, rule) in recorded_of(cls).items() if rule.role == "schedule"]
