"""Groups of runs as SLURM jobs through submitit: the elements of job arrays.

Partition, account, time limit and the like come from sbatch's own environment
variables (SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_QOS ...), which
win over what submitit writes into its script, so that no cluster's ways are built in.
The store must lie on a file system that all nodes share.

A job that is told to leave (90 s before its time limit, or preempted) checkpoints its
runs and ends; what is left of its group is submitted again. One that SLURM queues again
by itself (preemption, a node's failure) begins anew and finds its checkpoints. What
became of a job that left no result is asked of squeue and scontrol, which, unlike
sacct, answer on clusters without accounting.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

from grok.errors import ConfigError, one_line
from grok.execute.executors.base import WorkerDied
from grok.execute.groups import Group
from grok.execute.live import LiveFolder
from grok.execute.worker import LEAVE, GroupReport, WorkerSettings, run_group_in_worker

LOOK_EVERY: Final = 0.2
"""Seconds between two looks for results, which are files."""

ASK_EVERY: Final = 5.0
"""Seconds between two questions to the scheduler."""

GRACE: Final = 10.0
"""Seconds that a job's result may take to appear on a shared file system once the scheduler no longer knows the job."""

ARRAY_SIZE: Final = 1000
"""Elements of an array where the cluster does not say its limit: SLURM's default."""

JOB_NAME: Final = "grok-lanes"


class GroupJob:
    """What a job runs."""

    def __init__(self, group: Group, settings: WorkerSettings) -> None:
        self.group, self.settings = group, settings

    def __call__(self) -> GroupReport:
        # submitit's own handler would queue the job again without the checkpoints of this moment
        for request in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM):
            signal.signal(request, lambda number, frame: LEAVE.set())
        return run_group_in_worker(self.group, self.settings)


class Ticket:
    """A group on its way: first waiting for the others of its array, then a job."""

    def __init__(self, task: GroupJob) -> None:
        self.task = task
        self.job: Any = None
        self.missing_since: float | None = None
        """When the scheduler first did not know the job any more."""


class SlurmExecutor:
    """Submits what has gathered since the last look as one array."""

    spreads_deaths = False

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self.workers = workers
        self._settings = settings
        self._live = LiveFolder(Path(settings.live_path))
        self._gathered: list[Ticket] = []
        self._flying: set[Ticket] = set()
        self._queried_at = 0.0
        self._withdrawn = False
        self._array_size = max_array_size()
        self._executor = submitit.SlurmExecutor(folder=Path(settings.live_path) / "slurm")
        self._executor.update_parameters(
            job_name=JOB_NAME,
            cpus_per_task=1,
            ntasks_per_node=1,
            array_parallelism=workers,
            time=None,
            setup=[f"export {name}={value}" for name, value in environment.items()],
        )

    def submit(self, group: Group, slot: int) -> Ticket:
        self._gathered.append(Ticket(GroupJob(group, self._settings)))
        return self._gathered[-1]

    def _send(self) -> None:
        """Submit what has gathered.

        Raises:
            ConfigError: sbatch refuses.
        """
        try:
            for start in range(0, len(self._gathered), self._array_size):
                part = self._gathered[start : start + self._array_size]
                with self._executor.batch():
                    for ticket in part:
                        ticket.job = self._executor.submit(ticket.task)
                self._flying.update(part)
        except (FailedJobError, FailedSubmissionError) as error:
            reasons = re.findall(r"sbatch: error: (.*)", str(error)) or [one_line(error)]
            raise ConfigError(
                f"executor=slurm: sbatch refused the jobs: {reasons[-1]}; partition, account and limits come from "
                "SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT and the like in the environment"
            ) from error
        finally:
            self._gathered.clear()

    def wait(self, tickets: Sequence[Ticket], seconds: float) -> Sequence[Ticket]:
        self._send()
        end = time.monotonic() + seconds
        while True:
            if self._live.stop_requested() and not self._withdrawn:
                self._withdrawn = True
                self._cancel("--state=PENDING")  # they would begin only to leave
            self._ask()
            late = time.monotonic() - GRACE
            gone = {t for t in tickets if t.missing_since is not None and t.missing_since <= late}
            done = [ticket for ticket in tickets if _has_result(ticket) or ticket in gone]
            if done or time.monotonic() >= end:
                return done
            time.sleep(LOOK_EVERY)

    def _ask(self) -> None:
        """Note which jobs the scheduler no longer knows."""
        if not self._flying or time.monotonic() - self._queried_at < ASK_EVERY:
            return
        self._queried_at = time.monotonic()
        known = known_jobs()
        if known is None:
            return  # the scheduler is not to be reached just now
        for ticket in self._flying:
            if ticket.job.job_id in known:
                ticket.missing_since = None
            elif ticket.missing_since is None:
                ticket.missing_since = time.monotonic()

    def result(self, ticket: Ticket) -> GroupReport:
        self._flying.discard(ticket)
        if not _has_result(ticket):
            if self._withdrawn:
                return GroupReport()
            raise WorkerDied(f"SLURM job {ticket.job.job_id} {fate(ticket.job.job_id)}")
        try:
            report: GroupReport = ticket.job.result()
        except (FailedJobError, UncompletedJobError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
            last = lines[-1] if lines else type(error).__name__
            raise WorkerDied(f"SLURM job {ticket.job.job_id} ended with {last}") from error
        return report

    def _cancel(self, *options: str) -> None:
        if self._flying:
            jobs = sorted(ticket.job.job_id for ticket in self._flying)
            subprocess.run(["scancel", "--quiet", *options, *jobs], check=False, capture_output=True)

    def renew(self) -> None:
        """Nothing to do: every group is a job of its own."""

    def close(self) -> None:
        """Withdraw what is still in flight: an undisturbed sweep leaves nothing."""
        self._cancel()


def max_array_size() -> int:
    """Return how many elements an array may have on this cluster; 1 where it has no arrays."""
    reply = subprocess.run(["scontrol", "show", "config"], check=False, capture_output=True, text=True)
    setting = re.search(r"^MaxArraySize\s*=\s*(\d+)", reply.stdout, re.MULTILINE)
    return max(1, int(setting[1])) if setting else ARRAY_SIZE


def known_jobs() -> set[str] | None:
    """Return the ids of this user's jobs that wait or run, or None where the scheduler does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", f"--name={JOB_NAME}", "--format=%i"]
    reply = subprocess.run(command, check=False, capture_output=True, text=True)
    return set(reply.stdout.split()) if reply.returncode == 0 else None


def fate(job_id: str) -> str:
    """Return how a job ended, in words, as far as the scheduler remembers."""
    reply = subprocess.run(["scontrol", "show", "job", job_id], check=False, capture_output=True, text=True)
    state = re.search(r"JobState=(\S+) Reason=(\S+)", reply.stdout)
    if state is None:
        return "left no result"
    return f"ended as {state[1]}" + ("" if state[2] == "None" else f" ({state[2]})")


def _has_result(ticket: Ticket) -> bool:
    return bool(ticket.job.paths.result_pickle.exists())
