"""Groups of runs on a Dask cluster: the one at DASK_SCHEDULER_ADDRESS, else a local one of processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from dask import config as dask_config
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed import wait as wait_for
from distributed.client import FutureCancelledError, FuturesCancelledError

from grok.errors import ConfigError
from grok.execute.executors.base import WorkerDied, unfit
from grok.execute.groups import Group
from grok.execute.worker import GroupReport, WorkerSettings, run_group_in_worker

CONNECT: Final = "30s"
"""How long a scheduler that is said to be there may take to answer."""

LOST: Final = "scheduler-connection-lost"
"""Dask's own word for it."""


class DaskExecutor:
    """Each group is one task; a group whose worker died is not tried again by Dask itself."""

    spreads_deaths = False

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self._settings = settings
        self._cluster: LocalCluster | None = None
        # a group is tried again by the sweep, which knows how; busy machines are slow to start a worker
        dask_config.set({"distributed.scheduler.allowed-failures": 0, "distributed.comm.timeouts.connect": "300s"})
        # of a scheduler that is gone it prints tracebacks; the sweep says it in its last line
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        address = dask_config.get("scheduler-address", None)
        if address is None:
            dask_config.set({"distributed.nanny.pre-spawn-environ": environment})
            # that a worker ends slowly, or is restarted, is no news: the sweep says what it lost
            self._cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
            )
        try:
            self._client = Client(self._cluster) if self._cluster is not None else Client(timeout=CONNECT)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"executor=dask: no scheduler answers at DASK_SCHEDULER_ADDRESS={address}: start it, or correct "
                "the address"
            ) from error
        # a cluster that grows by need may have no worker yet
        threads = sum(self._client.nthreads().values()) or workers
        self.workers = workers if self._cluster is not None else min(workers, threads)

    def submit(self, group: Group, slot: int) -> Future:
        return self._client.submit(run_group_in_worker, group, self._settings, slot, pure=False)

    def wait(self, tickets: Sequence[Future], seconds: float) -> Sequence[Future]:
        try:
            wait_for(tickets, timeout=seconds, return_when="FIRST_COMPLETED")
        except TimeoutError:
            return []
        except FuturesCancelledError:
            pass  # each says it again when asked for its result
        return [ticket for ticket in tickets if ticket.done()]

    def result(self, ticket: Future) -> GroupReport:
        try:
            report: GroupReport = ticket.result()
        except (FutureCancelledError, KilledWorker) as error:
            if getattr(error, "reason", None) == LOST:  # no group is at fault, and none can be submitted
                return GroupReport(fatal="the connection to the Dask scheduler is lost", workers_go_on=True)
            raise WorkerDied("its Dask worker was lost") from error
        except Exception as error:  # a group never raises by itself
            return unfit("Dask", error)
        return report

    def renew(self) -> None:
        """Nothing to do: the cluster replaces its workers."""

    def close(self) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
