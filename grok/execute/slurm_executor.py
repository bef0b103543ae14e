"""Groups of runs as SLURM jobs through submitit.

Partition, account, time limit and the like come from sbatch's own environment
variables (SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_QOS ...), so that
no cluster's ways are built in. The store must lie on a file system that all nodes
share. A group that reaches its time limit or is preempted is told by SIGUSR2 (submitit),
leaves a checkpoint for every run in flight, and its rest is submitted again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

from grok.execute.executors import WorkerDied
from grok.execute.groups import Group
from grok.execute.worker import GroupReport, WorkerSettings, run_group

STARTING = 0.2
"""Seconds between two questions about a job; its files say when it ends, so the scheduler is rarely asked."""


class SlurmExecutor:
    """Each group is one job of one task; as many are submitted at once as there are workers."""

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self.workers = workers
        self._settings = settings
        folder = Path(settings.live_path) / "slurm"
        self._executor = submitit.SlurmExecutor(folder=folder)
        self._executor.update_parameters(
            job_name="grok-lanes",
            cpus_per_task=1,
            ntasks_per_node=1,
            time=None,
            use_srun=False,
            setup=[f"export {name}={value}" for name, value in environment.items()],
        )

    def submit(self, group: Group, slot: int) -> Any:
        return self._executor.submit(run_group, group, self._settings, slot)

    def wait(self, tickets: Sequence[Any], seconds: float) -> Sequence[Any]:
        end = time.monotonic() + seconds
        while True:
            done = [ticket for ticket in tickets if ticket.done()]
            if done or time.monotonic() >= end:
                return done
            time.sleep(STARTING)

    def result(self, ticket: Any) -> GroupReport:
        try:
            report: GroupReport = ticket.result()
        except (FailedJobError, UncompletedJobError) as error:
            raise WorkerDied(f"SLURM job {ticket.job_id} ended as {ticket.state}") from error
        return report

    def renew(self) -> None:
        """Nothing to do: every group is a job of its own."""

    def close(self) -> None:
        """Nothing to do: jobs in flight were told to stop through the live folder."""
