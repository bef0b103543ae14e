"""Groups of runs on a Dask cluster: the one at DASK_SCHEDULER_ADDRESS, else a local one of processes."""

from __future__ import annotations

from collections.abc import Sequence

from dask import config as dask_config
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed import wait as wait_for
from distributed.client import FutureCancelledError

from grok.execute.executors import WorkerDied
from grok.execute.groups import Group
from grok.execute.worker import GroupReport, WorkerSettings, run_group


class DaskExecutor:
    """Each group is one task; a group whose worker died is not tried again by Dask itself."""

    spreads_deaths = False

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self._settings = settings
        self._cluster: LocalCluster | None = None
        # a group is tried again by the sweep, which knows how; busy machines are slow to start a worker
        dask_config.set({"distributed.scheduler.allowed-failures": 0, "distributed.comm.timeouts.connect": "300s"})
        if dask_config.get("scheduler-address", None) is None:
            dask_config.set({"distributed.nanny.pre-spawn-environ": environment})
            self._cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        self._client = Client(self._cluster) if self._cluster is not None else Client()
        threads = self._client.nthreads().values()
        self.workers = workers if self._cluster is not None else max(1, min(workers, sum(threads)))

    def submit(self, group: Group, slot: int) -> Future:
        return self._client.submit(run_group, group, self._settings, slot, pure=False)

    def wait(self, tickets: Sequence[Future], seconds: float) -> Sequence[Future]:
        try:
            wait_for(tickets, timeout=seconds, return_when="FIRST_COMPLETED")
        except TimeoutError:
            return []
        return [ticket for ticket in tickets if ticket.done()]

    def result(self, ticket: Future) -> GroupReport:
        try:
            report: GroupReport = ticket.result()
        except (KilledWorker, FutureCancelledError) as error:
            raise WorkerDied("its Dask worker was lost") from error
        return report

    def renew(self) -> None:
        """Nothing to do: the cluster replaces its workers."""

    def close(self) -> None:
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
