"""Where groups of runs execute: one small interface, five places.

An executor is given groups one at a time, as many in flight as it has workers, so who
calls it knows at every moment which groups a dying worker may have taken along.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final, Protocol

from grok.errors import ConfigError
from grok.execute.groups import Group
from grok.execute.worker import IDLE, GroupReport, WorkerSettings, run_group, run_group_in_worker
from grok.plugins import activate, active, code_of, load

EXTRAS: Final = {"dask": "distributed", "ray": "ray", "slurm": "submitit"}
"""The package that an executor needs."""

ORPHAN_CHECK: Final = 0.5
"""Seconds between two looks whether the parent still lives."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Environment of arithmetic workers: a pool of threads that computes nothing still takes time to start."""


class WorkerDied(Exception):
    """The worker of a group is gone (killed, out of memory, crashed), and perhaps others' with it."""


class Executor(Protocol):
    """Runs groups somewhere. Not thread-safe; used from the main thread."""

    workers: int
    """Groups that can be in flight at once."""

    spreads_deaths: bool
    """Whether a worker that dies takes the groups of all others along."""

    def submit(self, group: Group, slot: int) -> Hashable:
        """Start a group on a free worker; return a ticket."""

    def wait(self, tickets: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return the tickets that are done, after at most about ``seconds``."""

    def result(self, ticket: Any) -> GroupReport:
        """Return a done group's report.

        Raises:
            WorkerDied: its worker is gone.
        """

    def renew(self) -> None:
        """Make the executor usable again after a worker died; nothing is in flight."""

    def close(self) -> None:
        """End the workers."""


class InlineExecutor:
    """Runs each group in this very process."""

    workers = 1
    spreads_deaths = False

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._done: GroupReport | None = None

    def submit(self, group: Group, slot: int) -> str:
        import torch

        threads = torch.get_num_threads()
        try:
            self._done = run_group(group, self._settings, slot)
        finally:
            torch.set_num_threads(threads)  # the caller's: what it computes afterwards may depend on them
        if self._done.device_lost:
            self._done.fatal = f"this process can no longer use its GPU ({self._done.error})"
        return group.name

    def wait(self, tickets: Sequence[str], seconds: float) -> Sequence[str]:
        return tickets

    def result(self, ticket: str) -> GroupReport:
        assert self._done is not None
        return self._done

    def renew(self) -> None:
        """Nothing to do: where this process dies, so does the sweep."""

    def close(self) -> None:
        """Nothing to do."""


class LokyExecutor:
    """Runs groups on worker processes of this machine (joblib's loky)."""

    spreads_deaths = True

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self.workers = workers
        self._settings = settings
        self._environment = environment
        self._flying: list[Future[GroupReport]] = []
        self._open()

    def _open(self) -> None:
        from joblib.externals.loky import get_reusable_executor

        # loky replaces a worker whose memory grows by 300 MB, which importing torch already does
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        self._pool = get_reusable_executor(
            max_workers=self.workers,
            timeout=None,  # a worker that waits for the last group of a long sweep is no idler
            reuse=False,
            kill_workers=True,
            env=self._environment,
            initializer=_mind_the_parent,
            initargs=(os.getpid(),),
        )

    def submit(self, group: Group, slot: int) -> Future[GroupReport]:
        future: Future[GroupReport] = self._pool.submit(run_group_in_worker, group, self._settings, slot)
        self._flying = [*(other for other in self._flying if not other.done()), future]
        return future

    def wait(self, tickets: Sequence[Future[GroupReport]], seconds: float) -> Sequence[Future[GroupReport]]:
        done = wait(tickets, timeout=seconds, return_when=FIRST_COMPLETED).done
        return [ticket for ticket in tickets if ticket in done]

    def result(self, ticket: Future[GroupReport]) -> GroupReport:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        try:
            return ticket.result()
        except BrokenProcessPool as error:  # includes joblib's TerminatedWorkerError
            raise WorkerDied("its worker was killed, ran out of memory or crashed") from error

    def renew(self) -> None:
        self._pool.shutdown(wait=True, kill_workers=True)
        self._open()

    def close(self) -> None:
        # idle workers end by themselves: killed ones would leave what their compilers hold (semaphores) to be
        # complained about after the last line; one that still trains is not waited for
        self._pool.shutdown(wait=True, kill_workers=not all(future.done() for future in self._flying))


def _mind_the_parent(parent: int) -> None:
    """Set up a worker process: interrupts are the parent's affair, and without a parent it ends."""
    # a terminal sends Ctrl-C to the whole process group; the parent asks workers to stop by other means
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK)
        IDLE.wait()  # a group in flight notices by itself and leaves its checkpoints first
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def unfit(cluster: str, error: Exception) -> GroupReport:
    """Return the report of a group that a cluster's worker could not even begin: no run is at fault for that."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return GroupReport(
        fatal=f"a worker of the {cluster} cluster cannot run a group ({lines[-1] if lines else type(error).__name__}): "
        "every worker needs the same environment as this process"
    )


def refuse_unavailable(kind: str, folder: str = ".") -> None:
    """Refuse an executor that this machine lacks; ``folder`` is where one of the user's own is looked for.

    Raises:
        ConfigError: there is no such code, the extra that it needs is not installed, or there is no SLURM here.
    """
    if "." in kind:  # code of the user's own
        activate(code_of(folder, [kind, *active().targets]))
        load(kind)
        return
    package = EXTRAS.get(kind)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"executor={kind} needs the package {package!r}: pip install 'grok-lab[{kind}]', or use executor=loky"
        )
    if kind == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError("executor=slurm: no sbatch here; give the command on a SLURM login node, or use loky")


def make_executor(kind: str, settings: WorkerSettings, *, workers: int, one_thread: bool) -> Executor:
    """Return the executor that ``executor=kind`` asks for, with ``workers`` groups in flight."""
    environment = ONE_THREAD if one_thread else {}
    if kind == "inline":
        return InlineExecutor(settings)
    if kind == "loky":
        return LokyExecutor(settings, workers, environment)
    if "." in kind:  # the user's own
        made = load(kind)
    else:  # a cluster's, whose module needs a package of EXTRAS
        made = getattr(importlib.import_module(f"grok.execute.executors.{kind}"), f"{kind.capitalize()}Executor")
    executor: Executor = made(settings, workers, environment)
    return executor
