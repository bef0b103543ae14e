"""Trains one group of runs in this process: engine events become rows, checkpoints and progress."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from grok.config import GptConfig, RunConfig
from grok.errors import ConfigError, GrokError
from grok.execute import resume
from grok.execute.groups import Group, PlannedRun
from grok.execute.live import Ledger, LiveFolder
from grok.plugins import Code, activate, exits_refused
from grok.processes import Rank, cores_of_a_rank
from grok.records import Checkpoint, Event, Job, Paused, Progress, RunResult, StopRequested
from grok.store import Provenance, Row, StoreGone, StoreWriter
from grok.terminal import print_warnings_in_one_line

# Freed memory stays with the process, in large pages: a step's activations come back where they were.
#
# A training step allocates and frees the same few megabytes hundreds of times. glibc
# hands such blocks back to the kernel, which must then clear and map the same pages again
# at the next step: at the default regime 850 to 1,750 page faults a step, 1 to 3 ms of 25.
# The 30 MB that a step walks through are also more pages of 4 KiB than the processor
# keeps addresses of; pages of 2 MiB, which Linux gives to those who ask, save another 3 to 5%.

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3

KEPT: Final = 2**30
"""Bytes: blocks up to this size come from the heap, and the heap's end is not given back below it."""
MADV_HUGEPAGE: Final = 14
HUGE_PAGE: Final = 2**21
HUGE: Final = 2**29
"""Bytes of the heap for which large pages are requested: addresses only, until they are used."""


@functools.cache
def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory; return whether it can (glibc)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # neither musl nor macOS has it
        return False
    return all(mallopt(option, KEPT) == 1 for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))


@functools.cache
def use_large_pages() -> bool:
    """Let the heap grow by ``HUGE`` bytes and ask for large pages there; return whether the kernel agreed.

    After ``keep_freed_memory``, before what is to lie there is allocated.
    """
    if not keep_freed_memory():
        return False
    library = ctypes.CDLL(None, use_errno=True)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = library.malloc(HUGE)
    if start is None:  # a limit on address space
        return False
    first = -(-start // HUGE_PAGE) * HUGE_PAGE
    length = (start + HUGE - first) // HUGE_PAGE * HUGE_PAGE
    agreed = library.madvise(first, length, MADV_HUGEPAGE) == 0
    library.free(start)  # the heap keeps it: what is allocated next comes from there
    return bool(agreed)


# The engine of each mode.


def train(jobs: Sequence[Job], *, lanes: int | None, device: str, stop: StopRequested) -> Iterator[Event]:
    """Return the events of the engine that trains ``jobs``, all of one mode; only now is torch imported."""
    if isinstance(jobs[0].config, GptConfig):
        from grok.gpt.training import engine as gpt

        return gpt.train(jobs, lanes=lanes, device=device, stop=stop)
    from grok.arithmetic import engine as arithmetic

    return arithmetic.train(jobs, lanes=lanes, device=device, stop=stop)


# The code that trained a run: a resumed run may have begun under other code.

KEY = "code"
"""Where a checkpoint's state holds it: ``{"commits": [...], "dirty": bool | None}``."""
UNKNOWN = "unknown"


def code_of(job: Job, now: Provenance) -> dict[str, Any]:
    """Return the commits that a run is trained under, oldest first, and whether there were changes in any of them."""
    before: dict[str, Any] = {"commits": [], "dirty": False}
    if job.resume is not None:
        before = job.resume.state.get(KEY, before)
    either = (before["dirty"], now.git_dirty)
    commits = dict.fromkeys([*before["commits"], now.git_commit or UNKNOWN])
    return {"commits": list(commits), "dirty": True in either or (None if None in either else False)}


def under(code: Mapping[str, Any], now: Provenance) -> Provenance:
    """Return the provenance of a run that was trained under ``code``: all its commits in one text."""
    if code["commits"] == [UNKNOWN]:
        return now
    return replace(now, git_commit=" | ".join(code["commits"]), git_dirty=code["dirty"])


PUBLISH: Final = 0.5
"""Seconds between two words about progress."""

STOP_CHECK: Final = 0.2
"""Seconds between two looks for a request to stop: engines ask at every step."""

IDLE: Final = threading.Event()
"""Set while this process trains no group."""
IDLE.set()

LEAVE: Final = threading.Event()
"""Set when this worker alone is to leave: its scheduler wants the place back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings that every worker of a sweep gets. Plain data: it travels by pickle."""

    store_path: str
    live_path: str
    flush_seconds: float
    device: str
    lanes: int | None
    retry_failed: bool
    provenance: Provenance
    parent: tuple[str, int] | None
    """Host and process that started this worker and must live; None where the executor sees to that."""
    own_code: Code = field(default_factory=Code)
    """The user's own code that the sweep's runs name, as it was when the sweep was planned."""


@dataclass(slots=True)
class Ended:
    """What runs came to: those of a group, or of a whole sweep."""

    finished: dict[str, str] = field(default_factory=dict)
    """Status of every run that was committed."""
    paused: dict[str, str] = field(default_factory=dict)
    """Runs that have used their time and left a checkpoint, with what continues them."""
    grokked: int = 0
    """How many of the finished runs generalised."""
    notes: list[str] = field(default_factory=list)
    """What the user should know: conflicts, repairs, checkpoints that could not be used."""
    fatal: str | None = None
    """Why no group can go on: the store cannot be written, or the settings do not fit this machine."""
    to_correct: bool = False
    """Whether ``fatal`` is a fault of the command or of the user's own code: the same command would meet it again."""
    workers_go_on: bool = False
    """Whether workers that cannot be reached any more may still store runs."""

    def add(self, part: Ended) -> None:
        """Add what further runs came to."""
        self.finished |= part.finished
        self.paused |= part.paused
        self.grokked += part.grokked
        self.notes += part.notes
        if part.fatal is not None:
            self.fatal, self.to_correct, self.workers_go_on = part.fatal, part.to_correct, part.workers_go_on


@dataclass(slots=True)
class GroupReport(Ended):
    """How a group ended. What the runs came to is in the store."""

    held: dict[str, str] = field(default_factory=dict)
    """Runs that another sweep is training now, each with that sweep's process."""
    stored: list[str] = field(default_factory=list)
    """Runs that another sweep has finished meanwhile."""
    error: str | None = None
    """The exception that came out of the engine, in one line."""
    device_lost: bool = False
    """Whether the error was a CUDA device's: this process can train nothing more on it."""


def run_group(group: Group, settings: WorkerSettings, slot: int = 0) -> GroupReport:
    """Train the runs of ``group`` that nobody else trains, and commit each within the flush interval.

    Never raises for what a run or a disk does: the report says it. On a request to stop
    (the live folder's, a signal, the parent's death) every run in flight leaves a checkpoint.
    """
    report = GroupReport()
    activate(settings.own_code)
    IDLE.clear()
    try:
        with StoreWriter(settings.store_path, thorough=False, create=False) as writer:
            try:
                claim = writer.claim([run.run_id for run in group.runs], retry_failed=settings.retry_failed)
                report.held, report.stored = claim.held, claim.done
                if claim.granted:
                    _train(group, set(claim.granted), writer, settings, slot, report)
            finally:
                report.notes += [f"Repaired: {repair}" for repair in writer.recovered]
    except (GrokError, OSError) as error:
        gone = not (Path(settings.store_path) / "store.json").is_file()
        report.fatal = one_line(StoreGone(Path(settings.store_path)) if gone else error)
        report.to_correct = isinstance(error, ConfigError) and not gone
    finally:
        IDLE.set()
    return report


def run_group_in_worker(group: Group, settings: WorkerSettings, slot: int = 0) -> GroupReport:
    """Return :func:`run_group`'s report from a worker process, which ends where its CUDA device is lost.

    The executor then sees a worker that died: another takes its place, and what was not finished is tried again.
    """
    print_warnings_in_one_line()
    report = run_group(group, settings, slot)
    if report.device_lost:
        print(f"worker {os.getpid()} ends, another takes its place: {report.error}", file=sys.stderr, flush=True)
        os._exit(1)
    return report


def one_line(error: BaseException) -> str:
    """Return an exception as one line: its own words for ours, with type and place for others."""
    text = " ".join(str(error).split())
    if isinstance(error, GrokError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def _train(
    group: Group, granted: set[str], writer: StoreWriter, settings: WorkerSettings, slot: int, report: GroupReport
) -> None:
    live = LiveFolder(Path(settings.live_path))
    runs = [run for run in group.runs if run.run_id in granted]
    device = prepare_process([run.config for run in runs], settings.device, slot + Rank.of_this_process().local)
    by_id = {run.run_id: run for run in runs}
    provenance = settings.provenance.on_this_machine(settings.lanes)
    refuse_unclean(provenance, runs[0].config)
    view = WorkerView(live, group.name)
    stop = StopCheck(live, settings.parent)

    def committed(row: Row) -> None:
        report.finished[row.result.run_id] = row.result.status
        if not keeps_checkpoints(row.config.mode, row.result.status, row.config.checkpoint.keep):
            from grok.checkpoints import remove_checkpoints, run_folder

            its, folder = row.config.checkpoint, run_folder(settings.store_path, row.result.run_id)
            remove_checkpoints(folder, its.keep_every, its.keep_steps)

    with exits_refused(), Ledger(writer, settings.flush_seconds, committed) as ledger:
        try:
            jobs = [job_of(run, settings.store_path, report.notes) for run in runs]
            code = {job.run_id: code_of(job, provenance) for job in jobs}
            for event in train(jobs, lanes=settings.lanes, device=device, stop=stop):
                if isinstance(event, RunResult):
                    run = by_id.get(event.run_id) or by_id[event.parent_run_id or ""]
                    if event.tensors and writer.holds(event.run_id):
                        event.tensors = {}  # its row will be dropped; the weights there belong to the one that stays
                    ledger.add(finished_row(event, run, under(code[run.run_id], provenance), settings.store_path))
                elif isinstance(event, Paused):
                    report.paused[event.run_id] = event.words
                elif isinstance(event, Checkpoint):
                    ledger.settle_branches(event.run_id)
                    run = by_id[event.run_id]
                    state = {**event.state, KEY: code[event.run_id]}
                    kept = replace(event, state=state, trajectory_id=run.identity.trajectory_id)
                    keep_checkpoint(settings.store_path, kept, run.config)
                ledger.check()
                view.show(event)
        except (GrokError, OSError):  # ours, with words of what would do; or the disk: no other run would fare better
            raise
        except Exception as error:  # the caller decides about retry
            from grok.runs import is_device_error

            report.error = one_line(error)
            report.device_lost = is_device_error(error)
    report.notes += ledger.notes
    report.grokked = view.grokked
    live.retract(group.name)  # from here on the group's report counts


def prepare_process(configs: Sequence[RunConfig], device: str, slot: int) -> str:
    """Set this process's threads, allocator and GPU; return the engine's device for a group.

    One thread in arithmetic mode, because its bits depend on it;
    the ``slot``-th worker takes the ``slot``-th GPU.
    """
    import torch

    use_large_pages()
    config = configs[0]
    if isinstance(config, GptConfig):
        torch.set_num_threads(config.train.threads or cores_of_a_rank())
    else:
        torch.set_num_threads(1)
    if device == "auto":
        bound = any(config.only_on_cpu() for config in configs)
        device = "cuda" if torch.cuda.is_available() and not bound else "cpu"
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("device=cuda: no CUDA device is usable here, expected cpu or auto")
        torch.cuda.set_device(slot % torch.cuda.device_count())
    elif any(config.precision.startswith("tf32") for config in configs):
        raise ConfigError("precision=tf32 is a mode of CUDA devices: on a CPU expected float32, float64 or bf16")
    return device


def refuse_unclean(provenance: Provenance, config: RunConfig) -> None:
    """Refuse code that is not committed, where that is asked for.

    Raises:
        ConfigError: it is not, or nobody can tell.
    """
    if config.require_clean and provenance.git_dirty is not False:
        found = "the code has changes that are not committed" if provenance.git_dirty else "there is no git checkout"
        raise ConfigError(
            f"require_clean=true: {found}; run from a checkout without changes, or set require_clean=false to have "
            "them noted as git_dirty"
        )


def job_of(run: PlannedRun, store_path: str, notes: list[str]) -> Job:
    """Return the engine's job, with the checkpoint that it goes on from; add to ``notes`` what happened to others."""
    checkpoint, said = resume.checkpoint_to_resume(run, store_path)
    notes += said
    kept = resume.StoredCheckpoints(store_path, run.run_id, resume.origin_of(run))
    return Job(run_id=run.run_id, config=run.config, resume=checkpoint, kept=kept)


def keep_checkpoint(store_path: str, checkpoint: Checkpoint, config: RunConfig) -> None:
    from grok.checkpoints import run_folder, save_checkpoint

    folder = run_folder(store_path, checkpoint.run_id)
    settings = config.checkpoint
    if (metrics := resume.metrics_of(config)) is not None:
        checkpoint = replace(checkpoint, state={**checkpoint.state, resume.METRICS: metrics})
    # a language model's last checkpoint may have been made just before a divergence, with all that leads to it
    keep = 2 if isinstance(config, GptConfig) else 1
    save_checkpoint(folder, checkpoint, keep, settings.keep_every, settings.keep_steps)


def finished_row(result: RunResult, run: PlannedRun, provenance: Provenance, store_path: str) -> Row:
    """Return the row of ``result``; weights that are to be kept are written first, as the row says that they are."""
    if result.tensors:
        from grok.checkpoints import Origin, run_folder, save_weights

        of = Origin(result.run_id, run.identity.trajectory_id, result.numerics)
        for moment, tensors in result.tensors.items():
            save_weights(run_folder(store_path, result.run_id), moment, tensors, of)
        result.tensors = {}
    if (trunk := run.trunk()) is not None and result.parent_run_id is None:
        result.parent_run_id, result.branch_step = trunk[0].run_id, trunk[1]
    identity = run.identity if result.run_id == run.run_id else replace(run.identity, run_id=result.run_id)
    return Row(result, run.config, identity, provenance, run.data_hash, run.code)


def keeps_checkpoints(mode: str, status: str, keep: bool) -> bool:
    """Return whether a stored run keeps its checkpoints: where ``checkpoint.keep`` asked for it, and one more case.

    A language model that diverged does: hours of it are good, and are gone on from under other settings.
    """
    return keep or (mode == "gpt" and status == "diverged")


class StopCheck:
    """Whether this worker must stop: the live folder, a signal or the loss of its parent says so."""

    def __init__(self, live: LiveFolder, parent: tuple[str, int] | None) -> None:
        self.requested = False
        self._live = live
        here = parent is not None and parent[0] == socket.gethostname() and parent[1] != os.getpid()
        self._parent = parent[1] if parent is not None and here else None
        self._next = 0.0
        if Rank.of_this_process().size > 1:  # torchrun is the parent; the sweep itself minds signals
            self._parent = os.getppid()
        elif self._parent is not None and threading.current_thread() is threading.main_thread():
            for request in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
                signal.signal(request, lambda *_: setattr(self, "requested", True))

    def __call__(self) -> bool:
        now = time.monotonic()
        if not self.requested and now >= self._next:
            self._next = now + STOP_CHECK
            orphaned = self._parent is not None and os.getppid() != self._parent
            self.requested = LEAVE.is_set() or orphaned or self._live.stop_requested()
        return self.requested


class WorkerView:
    """One group's progress, written to the live folder now and then."""

    def __init__(self, live: LiveFolder, group_name: str) -> None:
        self.grokked = 0
        self._live = live
        self._name = group_name
        self._flying: dict[str, tuple[int, int, float | None]] = {}
        self._finished = 0
        self._last = 0.0

    def show(self, event: Event) -> None:
        """Take one event; publish when the last word is old enough."""
        if isinstance(event, Progress):
            accuracy = event.val_acc if math.isfinite(event.val_acc) else None
            self._flying[event.run_id] = (event.step, event.steps, accuracy)
        elif isinstance(event, RunResult):
            self._flying.pop(event.run_id, None)
            self._finished += 1
            self.grokked += event.grokked_step is not None
        now = time.monotonic()
        if now - self._last >= PUBLISH:
            self._last = now
            self._live.publish(
                self._name, {"flying": self._flying, "finished": self._finished, "grokked": self.grokked}
            )
