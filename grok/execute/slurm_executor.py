"""Groups of runs as SLURM jobs through submitit: the elements of job arrays.

Partition, account, time limit and the like come from sbatch's own environment
variables (SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_QOS ...), which
win over what submitit writes into its script, so that no cluster's ways are built in.
The store must lie on a file system that all nodes share. A group that is preempted or
reaches its time limit is queued again by submitit and goes on from its runs' checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

from grok.execute.executors import WorkerDied
from grok.execute.groups import Group
from grok.execute.worker import GroupReport, WorkerSettings, run_group

LOOK_EVERY: Final = 0.2
"""Seconds between two looks for results; a job's files say when it ended, so the scheduler is rarely asked."""

ARRAY_SIZE: Final = 1000
"""Elements of one array: SLURM's default limit is 1,001."""


class GroupJob:
    """What a job runs; submitit queues it again, as it is, when the job is cut short."""

    def __init__(self, group: Group, settings: WorkerSettings) -> None:
        self.group, self.settings = group, settings

    def __call__(self) -> GroupReport:
        return run_group(self.group, self.settings)

    def checkpoint(self) -> Any:
        return submitit.helpers.DelayedSubmission(self)


class Ticket:
    """A group on its way: first waiting for the others of its array, then a job."""

    def __init__(self, task: GroupJob) -> None:
        self.task = task
        self.job: Any = None


class SlurmExecutor:
    """Submits what has gathered since the last look as one array."""

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self.workers = workers
        self._settings = settings
        self._gathered: list[Ticket] = []
        self._executor = submitit.SlurmExecutor(folder=Path(settings.live_path) / "slurm")
        self._executor.update_parameters(
            job_name="grok-lanes",
            cpus_per_task=1,
            ntasks_per_node=1,
            use_srun=False,
            array_parallelism=workers,
            time=None,
            setup=[f"export {name}={value}" for name, value in environment.items()],
        )

    def submit(self, group: Group, slot: int) -> Ticket:
        self._gathered.append(Ticket(GroupJob(group, self._settings)))
        return self._gathered[-1]

    def _send(self) -> None:
        for start in range(0, len(self._gathered), ARRAY_SIZE):
            part = self._gathered[start : start + ARRAY_SIZE]
            with self._executor.batch():
                for ticket in part:
                    ticket.job = self._executor.submit(ticket.task)
        self._gathered.clear()

    def wait(self, tickets: Sequence[Ticket], seconds: float) -> Sequence[Ticket]:
        self._send()
        end = time.monotonic() + seconds
        while True:
            done = [ticket for ticket in tickets if ticket.job.done()]
            if done or time.monotonic() >= end:
                return done
            time.sleep(LOOK_EVERY)

    def result(self, ticket: Ticket) -> GroupReport:
        try:
            report: GroupReport = ticket.job.result()
        except (FailedJobError, UncompletedJobError) as error:
            raise WorkerDied(f"SLURM job {ticket.job.job_id} ended as {ticket.job.state}") from error
        return report

    def renew(self) -> None:
        """Nothing to do: every group is a job of its own."""

    def close(self) -> None:
        """Nothing to do: jobs in flight were told to stop through the live folder."""
