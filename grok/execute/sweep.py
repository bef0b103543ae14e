"""From configs to stored runs: plans, says what it will do, trains on one process or many, says what happened."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from grok.config import GptConfig, RunConfig
from grok.errors import ConfigError, GrokError, one_line
from grok.execute.executors.base import make_executor
from grok.execute.export import RunLogs
from grok.execute.groups import PlannedRun, prepare_runs
from grok.execute.live import LiveFolder
from grok.execute.plan import (
    Choice,
    Designed,
    Plan,
    design_of_sweep,
    make_plan,
    settings_to_record,
    shared_settings,
    with_replicates,
)
from grok.execute.progress import ProgressView, plan_lines, say
from grok.execute.refusals import refuse_impossible
from grok.execute.retry import GroupRunner, Totals
from grok.execute.worker import WorkerSettings, finished_row, keeps_checkpoints, prepare_process, refuse_unclean
from grok.plugins import active
from grok.processes import Rank
from grok.records import Checkpoint, RunResult
from grok.store import Provenance, Purposes, Store, StoreWriter, check_path, open_store
from grok.store.layout import refuse_older

# Ctrl-C, SIGTERM, SIGUSR1, a closed terminal: the first asks all to end resumably, a second Ctrl-C ends at once.

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Interrupt:
    """Requests to stop, from the user or the machine, and the context that turns signals into them."""

    def __init__(self, on_request: Callable[[str], None]) -> None:
        """``on_request`` is called once with the signal's name, from the signal's handler."""
        self.requested: str | None = None
        self._on_request = on_request
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.requested is not None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            hung_up_alone = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
            numbers = [number for number in SIGNALS if number != signal.SIGHUP or not hung_up_alone]
            self._before = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.requested = signal.Signals(number).name
        self._on_request(self.requested)


# Language models on several processes: rank 0 carries out the command, the others train what it hands over.


def refuse_unsharable(configs: Sequence[RunConfig], rank: Rank) -> None:
    """Refuse runs that the processes of this command cannot share.

    Raises:
        ConfigError: another mode, more processes than sequences, or another number of them than was asked for.
    """
    for config in configs:
        if not isinstance(config, GptConfig):
            if rank.size > 1:
                raise ConfigError(
                    f"mode={config.mode} under torchrun with {rank.size} processes: only language models (mode=gpt) "
                    "share a run; use `grok run ... workers=N`"
                )
            continue
        train = config.train
        smallest = min([train.batch_size, *train.batch_ramp[:1]])
        if smallest < rank.size:
            name = "train.batch_ramp's first batch" if smallest < train.batch_size else "train.batch_size"
            raise ConfigError(
                f"{name} of {smallest} cannot be shared by {rank.size} processes: expected at least {rank.size}, "
                f"or torchrun --nproc-per-node={smallest}"
            )
        if rank.size > 1 and train.keeps and (config.eval.tasks or config.optim.kind == "adamw8bit"):
            raise ConfigError(
                f"train.parallel={train.parallel} with eval.tasks={config.eval.tasks} and optim.kind="
                f"{config.optim.kind}: no process has the whole model for tasks (use grok evaluate), and bitsandbytes "
                "cannot shard its moments; expected no tasks and optim.kind=adamw, or train.parallel=ddp"
            )


def take_part(shared: RunConfig, rank: Rank) -> int:
    """Train every run that rank 0 hands over and write this process's shares of its checkpoints; return the status."""
    from grok.gpt.training.engine import train
    from grok.gpt.training.parallel import Ranks, RefusedElsewhere

    launcher = os.getppid()
    device = prepare_process([shared], shared.device, slot=rank.local)
    with Interrupt(lambda name: None) as interrupt:
        try:
            for event in train([], device=device, stop=lambda: interrupt() or os.getppid() != launcher):
                if isinstance(event, Checkpoint) and event.shards is not None:
                    event.shards()
            Ranks.of_this_process().leave()
        except GrokError as error:
            if not isinstance(error, RefusedElsewhere):
                print(f"rank {rank.index}: {one_line(error)}", file=sys.stderr, flush=True)
            return error.exit_status
    return 0


def let_go() -> None:
    """Let the other processes go, once the command is carried out."""
    from grok.gpt.training.parallel import Ranks

    ranks = Ranks.of_this_process()
    ranks.end()
    ranks.leave()


# From configs to stored runs: plans, says what it is about to do, trains, and says what happened.

GO_ON = "The same command goes on where it stopped."
CORRECT = "Correct this first; the same command then goes on where it stopped, and trains runs of changed code anew."


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


def execute(
    configs: Sequence[RunConfig], *, argv: Sequence[str] = (), design: Purposes | Choice | None = None
) -> Outcome:
    """Train what the store does not hold yet, and return what became of every config.

    Prints the plan first and what happened last. On SIGINT, SIGTERM, SIGUSR1 or SIGHUP finished
    runs are written, runs in flight leave a checkpoint, and the same call goes on from there.

    Args:
        configs: the runs to be stored; equal ones are trained once. What ``grok.sweeps.branch.planned``,
            ``grok.sweeps.repeat.planned`` and ``grok.sweeps.layers.planned`` return has its design with it.
        argv: the command, kept beside the store.
        design: what the runs are for. ``given``: a sweep of seeds that were named before any result; ``drawn``: at
            random; None: that of ``configs``, or nobody says, and analyses count the runs apart.

    Raises:
        ConfigError, StoreError, DataError: refused; nothing was trained or written.
    """
    shared = shared_settings(configs)
    rank = Rank.of_this_process()
    refuse_unsharable(configs, rank)
    if rank.index > 0:
        status = 0 if shared.dry_run else take_part(shared, rank)
        return Outcome(tuple(run.run_id for run in prepare_runs(configs)), {}, {}, status)
    designed = configs if isinstance(configs, Designed) and design is None else Designed(configs, design or "unstated")
    if [id(config) for part, _ in designed.parts for config in part] != list(map(id, designed)):
        raise ConfigError("configs are not those that their design was made for: expected Designed(configs, design)")
    outcome = _carry_out(shared, designed, argv)
    if rank.size > 1 and not shared.dry_run:
        let_go()
    return outcome


def _carry_out(shared: RunConfig, configs: Designed[RunConfig], argv: Sequence[str]) -> Outcome:
    """Plan and train ``configs``, whose command's own settings are ``shared``."""
    path = shared.store.path
    store = open_store(path) if check_path(path, to_write=not shared.dry_run) else None
    if store is not None:
        refuse_older(store.layout)  # a dry run, too: the plan is of what would be trained
    requested = prepare_runs(configs)
    refuse_impossible(shared, requested, store)
    provenance = Provenance.collect(f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}")
    refuse_unclean(provenance, shared)
    with nullcontext() if shared.dry_run else StoreWriter(path) as writer:
        if writer is not None:
            for repair in writer.recovered:
                say(f"Repaired: {repair}")
            store = store or open_store(path)
        plan = make_plan(requested, store)
        for line in plan_lines(plan, store, provenance):
            say(line)
        if writer is None:
            say(f"Nothing was trained (dry_run=true). The store would be {path}.")
            return Outcome(plan.requested, dict(plan.stored), {}, 0)
        assert store is not None
        sweep = Sweep(shared, plan, writer, store, provenance, argv)
        sweep.record(configs)
        return sweep.conclude(sweep.train() if plan.to_train else Totals())


@dataclass(slots=True)
class Sweep:
    """One plan being carried out."""

    shared: RunConfig
    plan: Plan
    writer: StoreWriter
    store: Store
    provenance: Provenance
    argv: Sequence[str]
    interrupted: str | None = None

    def train(self) -> Totals:
        """Run the plan's groups; return what they came to."""
        assert self.provenance.sweep_id is not None
        live = LiveFolder.create(self.shared.store.path, self.provenance.sweep_id)
        totals = Totals()
        view = ProgressView(live, totals, self.plan.labels(), grokking=not isinstance(self.shared, GptConfig))
        local = self.plan.pool.executor == "loky"
        settings = WorkerSettings(
            store_path=str(Path(self.shared.store.path).resolve()),
            live_path=str(live.path.resolve()),
            flush_seconds=self.shared.store.flush_seconds,
            device=self.shared.device,
            lanes=self.shared.lanes,
            retry_failed=self.shared.retry_failed,
            provenance=self.provenance,
            parent=(socket.gethostname(), os.getpid()) if local else None,
            own_code=active(),
        )
        interrupt, executor = Interrupt(lambda name: self._on_interrupt(name, live)), None
        try:
            executor = make_executor(
                self.plan.pool.executor,
                settings,
                workers=self.plan.pool.workers,
                one_thread=not isinstance(self.shared, GptConfig),
            )
            with interrupt, view, RunLogs(self.store, self.plan.to_train, say):
                runner = GroupRunner(
                    executor=executor,
                    stored=self.store.statuses,
                    leased=self.writer.leased_by_others,
                    groups=self.plan.groups,
                    record_failure=self._record_failure,
                    live=live,
                    stop=interrupt,
                    tell=say,
                    totals=totals,
                )
                runner.run(self.plan.groups())
        except KeyboardInterrupt:
            self.interrupted = "SIGINT"
        finally:
            if executor is not None:  # else a cluster is not to be reached
                executor.close()
            live.remove()
        return totals

    def _on_interrupt(self, name: str, live: LiveFolder) -> None:
        self.interrupted = name
        live.request_stop()
        say(f"{name}: finished runs are written, runs in flight leave a checkpoint; Ctrl-C again ends at once")

    def record(self, configs: Designed[RunConfig]) -> None:
        """Write what the runs are for, and of which a result was stored already; beside it the command's words.

        A command that trains nothing and says nothing new of any run leaves no trace.
        """
        stored = self.plan.found
        seen = stored.run_ids | {run.run_id for run in self.plan.runs if stored.has_results_of(run)}
        runs, new, designs = iter(self.plan.runs), 0, []
        for part, design in configs.parts:
            planned = list(itertools.islice(runs, len(part)))
            purposes = design if isinstance(design, Purposes) else design_of_sweep(planned, stored, design)
            purposes = with_replicates(purposes, planned)
            named = purposes.named([run.run_id for run in planned])
            designs.append(named.design_id)
            new += self.writer.record_design(named, seen)
        for design_id, why in self.writer.planned_again.items():
            say(f"Design {design_id} was abandoned ({why}); it is planned again, and its runs count again.")
        if new or self.plan.to_train:
            assert self.provenance.sweep_id is not None
            about = {**settings_to_record(self.plan.runs), "designs": designs}
            self.writer.record_sweep(self.provenance.sweep_id, self.argv, about)

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
        self.writer.commit([finished_row(result, run, self.provenance, self.shared.store.path)])

    def _clear_what_kills_left(self, finished: Sequence[str]) -> None:
        """Remove the checkpoints of stored runs whose worker was killed between the commit and doing so itself."""
        checkpoints = self.store.layout.checkpoints
        left = {folder.name for folder in checkpoints.glob("*")} & set(finished)
        left = {name for name in left if any((checkpoints / name).glob("*-step-*"))}
        if not left:
            return
        from grok.checkpoints import remove_checkpoints, run_folder

        kept = [f"config.checkpoint.{name}" for name in ("keep", "keep_every", "keep_steps")]
        for row in self.store.table("runs", left, ["mode", "status", *kept]).to_pylist():
            if not keeps_checkpoints(row["mode"], row["status"], row["config.checkpoint.keep"]):
                with suppress(GrokError, OSError):  # nothing depends on it
                    folder = run_folder(self.shared.store.path, row["run_id"])
                    every, steps = row["config.checkpoint.keep_every"], row["config.checkpoint.keep_steps"]
                    remove_checkpoints(folder, every or 0, json.loads(steps or "[]"))

    def conclude(self, totals: Totals) -> Outcome:
        """Print what happened and how to go on; return the outcome."""
        for note in dict.fromkeys(totals.notes):
            say(note)
        statuses = self.store.statuses()
        requested = dict.fromkeys(self.plan.requested)
        self._clear_what_kills_left([r for r in requested if statuses.get(r, "failed") != "failed"])
        stored = {run_id: statuses[run_id] for run_id in requested if run_id in statuses}
        failed = [run_id for run_id, status in stored.items() if status == "failed"]
        new = len(requested.keys() & (totals.finished.keys() | totals.failed.keys()))
        path = shlex.quote(self.shared.store.path)
        complete = len(stored) == len(requested)
        # with retry_failed the store still has the failed row of a run that was not reached
        done = totals.finished.keys() | totals.elsewhere | totals.failed.keys()
        unreached = any(run.run_id not in done for run in self.plan.to_train)
        count = f"{len(stored)}" if complete else f"{len(stored)} of {len(requested)}"
        if totals.workers_go_on and not complete:
            count = f"At least {count}"  # they store what they have finished
        line = f"{count} run{'s' if len(requested) > 1 else ''} stored in {path} ({new} new)."
        error = next(iter(totals.failed.values()), "the column error says why")
        failure = f"{len(failed)} failed: {error}. The same command with retry_failed=true tries them again."
        if totals.fatal is not None:
            line = f"Stopped: {totals.fatal}. {line} {CORRECT if totals.to_correct else GO_ON}"
        elif totals.paused and not self.interrupted:
            run_id, words = next(iter(totals.paused.items()))
            more = len(totals.paused) - 1
            others = f" ({more} more run{'s' if more > 1 else ''} likewise)" if more else ""
            line = f"Paused: {line} Of run {run_id}, {words}{others}." + (f" {failure}" if failed else "")
        elif not complete or (self.interrupted and unreached):
            line = f"{'Interrupted' if self.interrupted else 'Incomplete'}: {line} {GO_ON}"
        elif failed:
            line = f"{line} {failure}"
        else:
            line = f"{line} Report: grok report {path}"
        say(line)
        return Outcome(self.plan.requested, stored, dict(totals.failed), 0 if complete and not failed else 1)
