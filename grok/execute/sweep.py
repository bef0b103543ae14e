"""From configs to stored runs: plans, says what it is about to do, trains, and says what happened."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grok.config import GptConfig, RunConfig, flatten
from grok.errors import ConfigError, GrokError
from grok.execute.estimate import bytes_per_worker, duration, seconds_to_train
from grok.execute.executors.base import make_executor, refuse_unavailable
from grok.execute.groups import lane_groups
from grok.execute.interrupt import Interrupt
from grok.execute.live import LiveFolder
from grok.execute.plan import (
    Plan,
    make_plan,
    name_runs,
    refuse_unknown_tensors,
    refuse_unusable_data,
    refuse_unusable_parents,
    shared_settings,
)
from grok.execute.planned import PlannedRun
from grok.execute.progress import ProgressView, say
from grok.execute.retry import GroupRunner, Totals
from grok.execute.worker import WorkerSettings, keeps_checkpoints, refuse_unclean
from grok.numerics.machine import usable_cores, usable_memory
from grok.records import RunResult
from grok.store import Provenance, Row, Store, StoreWriter, check_path, open_store

GO_ON = "The same command goes on where it stopped."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to."""

    run_ids: tuple[str, ...]
    """The run of every config, in the order given."""
    statuses: dict[str, str]
    """Status of every run that is stored now."""
    errors: dict[str, str]
    """Error of every run that failed now."""
    exit_status: int
    """0: all runs are stored (or a dry run), 1: some failed or are still to be trained."""


@dataclass(frozen=True, slots=True)
class Force:
    """The workers of a sweep: how many, with how many lanes, on what."""

    executor: str
    workers: int
    lanes: int | None
    gpu: bool
    short_of_memory: bool = False
    """Whether there would be more workers if they had the memory."""

    @classmethod
    def of(cls, shared: RunConfig, runs: Sequence[PlannedRun]) -> Force:
        """Return the workers for ``runs`` under a command's settings: by default one per core, as memory allows.

        Raises:
            ConfigError: a GPU is asked for and there is none.
        """
        gpus = 0 if shared.device == "cpu" else visible_gpus()
        local = shared.executor in ("inline", "loky")
        if local and shared.device == "cuda" and not gpus:
            raise ConfigError("device=cuda: this machine has no usable GPU, expected device=cpu or device=auto")
        bound = shared.only_on_cpu()
        if shared.device == "cuda" and bound:
            raise ConfigError(f"device=cuda: stacked lanes do not carry {', '.join(bound)} yet, set device=cpu")
        if local and shared.precision == "tf32" and not gpus:
            raise ConfigError("precision=tf32 needs a GPU: expected float32, float64 or bf16 here")
        gpu = shared.device == "cuda" or gpus > 0
        # one run needs no second process
        executor = "inline" if shared.executor == "loky" and len(runs) == 1 else shared.executor
        if executor == "inline":
            return cls(executor, 1, shared.lanes, gpu)
        on_cores = not gpu and not isinstance(shared, GptConfig)
        workers = max(1, min(shared.workers or (usable_cores() if on_cores else gpus or 1), len(runs)))
        fitting = workers
        if local and on_cores and shared.workers is None:
            fitting = max(1, min(workers, int(usable_memory() // bytes_per_worker(runs, shared.lanes or 1))))
        return cls(executor, fitting, shared.lanes, gpu, short_of_memory=fitting < workers)

    def __str__(self) -> str:
        lanes = "" if self.lanes is None else f" x {self.lanes} lane{'s' if self.lanes > 1 else ''}"
        short = ", for more there is not enough memory" if self.short_of_memory else ""
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}{lanes} ({self.executor}{short})"


def visible_gpus() -> int:
    """Return how many CUDA devices torch will find, without importing it."""
    try:
        cpu_only = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return 0
    if cpu_only:
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    return sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in Path("/dev").iterdir())


def execute(configs: Sequence[RunConfig], *, argv: Sequence[str] = ()) -> Outcome:
    """Train what the store does not hold yet, and return what became of every config.

    Prints the plan first and what happened last. On SIGINT, SIGTERM or SIGUSR1 finished
    runs are written, runs in flight leave a checkpoint, and the same call goes on from there.

    Args:
        configs: the runs asked for; equal ones are trained once.
        argv: the command, kept beside the store.

    Raises:
        ConfigError, StoreError, DataError: refused; nothing was trained or written.
    """
    shared = shared_settings(configs)
    path = shared.store.path
    exists = check_path(path)
    named = name_runs(configs)
    Force.of(shared, named)
    refuse_unavailable(shared.executor)
    refuse_unknown_tensors(configs)
    refuse_unusable_data(configs)
    refuse_unusable_parents(named, open_store(path) if exists else None)
    provenance = _provenance(shared)
    if shared.dry_run:
        store = open_store(path) if exists else None
        plan = make_plan(named, store)
        _announce(plan, Force.of(shared, plan.to_train), store, details=True)
        say(f"Nothing was trained (dry_run=true). The store would be {path}.")
        return Outcome(plan.asked, dict(plan.stored), {}, 0)
    with StoreWriter(path) as writer:
        for found in writer.recovered:
            say(f"Repaired: {found}")
        store = open_store(path)
        plan = make_plan(named, store)
        force = Force.of(shared, plan.to_train)
        _announce(plan, force, store)
        if plan.to_train and provenance.git_dirty:
            print("Note: the code has changes that are not committed (git_dirty in every row).", file=sys.stderr)
        sweep = Sweep(shared, plan, force, writer, store, provenance, argv)
        return sweep.conclude(sweep.train() if plan.to_train else Totals())


def _provenance(shared: RunConfig) -> Provenance:
    sweep_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    provenance = Provenance.collect(sweep_id)
    refuse_unclean(provenance, shared)
    return provenance


def _announce(plan: Plan, force: Force, store: Store | None, *, details: bool = False) -> None:
    line = plan.summary()
    if plan.to_train:
        seconds = seconds_to_train(plan.to_train, store, force.workers)
        line += f"; {force}" + (f"; about {duration(seconds)}" if seconds is not None else "")
    say(line)
    if details and plan.to_train:
        groups = lane_groups(plan.to_train, workers=force.workers, lanes=force.lanes or 1, gpu=force.gpu)
        sizes = [len(group.runs) for group in groups]
        memory = bytes_per_worker(plan.to_train, force.lanes or 1)
        spread = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{max(sizes)}"
        say(f"{len(groups)} lane group(s) of {spread} run(s); about {memory / 1e9:.1f} GB a worker")


@dataclass(slots=True)
class Sweep:
    """One plan being carried out."""

    shared: RunConfig
    plan: Plan
    force: Force
    writer: StoreWriter
    store: Store
    provenance: Provenance
    argv: Sequence[str]
    interrupted: str | None = None

    def train(self) -> Totals:
        """Run the plan's groups; return what they came to."""
        assert self.provenance.sweep_id is not None
        live = LiveFolder.create(self.shared.store.path, self.provenance.sweep_id)
        groups = lane_groups(
            self.plan.to_train, workers=self.force.workers, lanes=self.force.lanes or 1, gpu=self.force.gpu
        )
        self.writer.record_sweep(self.provenance.sweep_id, self.argv, self._record())
        totals = Totals()
        view = ProgressView(live, totals, len(self.plan.to_train), grokking=not isinstance(self.shared, GptConfig))
        local = self.force.executor == "loky"
        settings = WorkerSettings(
            store_path=str(Path(self.shared.store.path).resolve()),
            live_path=str(live.path.resolve()),
            flush_seconds=self.shared.store.flush_seconds,
            device=self.shared.device,
            lanes=self.shared.lanes,
            retry_failed=self.shared.retry_failed,
            provenance=self.provenance,
            parent=(socket.gethostname(), os.getpid()) if local else None,
        )
        try:
            executor = make_executor(
                self.force.executor,
                settings,
                workers=self.force.workers,
                one_thread=not isinstance(self.shared, GptConfig),
            )
        except BaseException:  # a cluster that is not to be reached, or Ctrl-C meanwhile
            live.remove()
            raise
        interrupt = Interrupt(lambda name: self._on_interrupt(name, live, view.tell))
        try:
            with interrupt, view:
                runner = GroupRunner(
                    executor=executor,
                    stored=self.store.statuses,
                    record_failure=self._record_failure,
                    live=live,
                    stop=interrupt,
                    tell=view.tell,
                    totals=totals,
                )
                runner.run(groups)
        except KeyboardInterrupt:
            self.interrupted = "SIGINT"
        finally:
            executor.close()
            live.remove()
        return totals

    def _on_interrupt(self, name: str, live: LiveFolder, tell: Callable[[str], None]) -> None:
        self.interrupted = name
        live.request_stop()
        tell(f"{name}: finished runs are written, runs in flight leave a checkpoint; Ctrl-C again ends at once")

    def _record(self) -> dict[str, Any]:
        """Return the effective settings: what all runs share, and what differs between them."""
        flat = [flatten(run.config) for run in self.plan.to_train]
        varying = {name for name in flat[0] if any(other[name] != flat[0][name] for other in flat)}
        return {
            "settings": {name: value for name, value in flat[0].items() if name not in varying},
            **({} if self.plan.forced is None else {"forced": self.plan.forced}),
            "runs": [
                {"run_id": run.run_id, **{name: settings[name] for name in sorted(varying)}}
                for run, settings in zip(self.plan.to_train, flat, strict=True)
            ],
        }

    def _record_failure(self, run: PlannedRun, error: str) -> None:
        result = RunResult(
            run_id=run.run_id,
            status="failed",
            stop_reason="exception",
            error=error,
            steps=0,
            device=self.shared.device,
            started_at=time.time(),
        )
        self.writer.commit([Row(result, run.config, run.identity, self.provenance, run.data_hash)])

    def _say_what_stored_runs_lack(self) -> None:
        """Say that weights asked for now were not kept then: a stored run is not trained again for them."""
        if self.shared.save == "none" or not self.plan.stored:
            return
        without = [x for x in self.plan.stored if not any((self.store.layout.checkpoints / x).glob("*"))]
        if without:
            say(
                f"Note: {len(without)} stored run{'s' if len(without) > 1 else ''} kept no weights "
                f"(save={self.shared.save} was not set then); add force=true to train them again as the next replicate."
            )

    def _clear_what_kills_left(self, finished: Sequence[str]) -> None:
        """Remove the checkpoints of stored runs whose worker was killed between the commit and doing so itself."""
        checkpoints = self.store.layout.checkpoints
        there = {folder.name for folder in checkpoints.glob("*")} & set(finished)
        there = {name for name in there if any((checkpoints / name).glob("*-step-*"))}
        if not there:
            return
        from grok.checkpoint import remove_checkpoints, run_folder

        for row in self.store.table("runs", there, ["mode", "status", "config.checkpoint.keep"]).to_pylist():
            if not keeps_checkpoints(row["mode"], row["status"], row["config.checkpoint.keep"]):
                with suppress(GrokError, OSError):  # nothing depends on it
                    remove_checkpoints(run_folder(self.shared.store.path, row["run_id"]))

    def conclude(self, totals: Totals) -> Outcome:
        """Print what happened and how to go on; return the outcome."""
        for note in dict.fromkeys(totals.notes):
            say(note)
        self._say_what_stored_runs_lack()
        statuses = self.store.statuses()
        asked = dict.fromkeys(self.plan.asked)
        self._clear_what_kills_left([r for r in asked if statuses.get(r, "failed") != "failed"])
        stored = {run_id: statuses[run_id] for run_id in asked if run_id in statuses}
        failed = [run_id for run_id, status in stored.items() if status == "failed"]
        new = sum(run_id in totals.finished for run_id in asked)
        path = shlex.quote(self.shared.store.path)
        complete = len(stored) == len(asked)
        count = f"{len(stored)}" if complete else f"{len(stored)} of {len(asked)}"
        line = f"{count} run{'s' if len(asked) > 1 else ''} stored in {path} ({new} new)."
        if totals.fatal is not None:
            line = f"Stopped: {totals.fatal}. {line} {GO_ON}"
        elif not complete or (self.interrupted and self._left(totals)):
            line = f"{'Interrupted' if self.interrupted else 'Incomplete'}: {line} {GO_ON}"
        elif failed:
            error = next(iter(totals.failed.values()), "the column error says why")
            line = f"{line} {len(failed)} failed: {error}. The same command with retry_failed=true tries them again."
        else:
            line = f"{line} Report: python -m analysis.report {path}"
        say(line)
        return Outcome(self.plan.asked, stored, dict(totals.failed), 0 if complete and not failed else 1)

    def _left(self, totals: Totals) -> bool:
        """Return whether some run was not got to: with ``retry_failed`` the store still has its failed row."""
        done = totals.finished.keys() | totals.elsewhere | totals.failed.keys()
        return any(run.run_id not in done for run in self.plan.to_train)
