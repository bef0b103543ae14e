"""Groups of runs on a Ray cluster: the one at RAY_ADDRESS, else a local one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayError, WorkerCrashedError

from grok.errors import ConfigError, one_line
from grok.execute.executors.base import WorkerDied, unfit
from grok.execute.groups import Group
from grok.execute.worker import GroupReport, WorkerSettings, run_group_in_worker

PATIENCE: Final = 30.0
"""Seconds without an answer after which the head is gone: it may start anew; after 60 Ray ends this process itself."""


class RayExecutor:
    """Each group is one task of one core; a group whose worker died is not tried again by Ray itself."""

    spreads_deaths = False

    def __init__(self, settings: WorkerSettings, workers: int, environment: dict[str, str]) -> None:
        self._settings = settings
        address = os.environ.get("RAY_ADDRESS")
        local: dict[str, Any] = {} if address else {"num_cpus": workers}
        try:
            ray.init(
                **local,
                include_dashboard=False if local else None,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": environment},
            )
        except Exception as error:  # of a node that starts too slowly it says a plain Exception
            raise ConfigError(
                f"executor=ray: cannot connect to Ray at RAY_ADDRESS={address}: start it with "
                "`ray start`, correct the address, or set RAY_AUTH_MODE=token where it asks for its token"
                if address
                else f"executor=ray: Ray does not start here ({one_line(error)}): try again when the machine "
                "is less busy, or use executor=loky"
            ) from error
        self.workers = max(1, min(workers, int(ray.cluster_resources().get("CPU", 1))))
        self._head = str(ray.get_runtime_context().gcs_address)
        self._silent_since: float | None = None
        self._lost = False
        self._task = ray.remote(num_cpus=1, max_retries=0)(run_group_in_worker)

    def submit(self, group: Group, slot: int) -> Any:
        return self._task.remote(group, self._settings, slot)

    def wait(self, tickets: Sequence[Any], seconds: float) -> Sequence[Any]:
        done, _ = ray.wait(list(tickets), num_returns=1, timeout=seconds)
        silent = not done and not _answers(self._head)
        self._silent_since = (self._silent_since or time.monotonic()) if silent else None
        self._lost = self._silent_since is not None and time.monotonic() - self._silent_since > PATIENCE
        return list(tickets) if self._lost else list(done)

    def result(self, ticket: Any) -> GroupReport:
        if self._lost:  # no group is at fault, and Ray would end this process after a minute, without a word of ours
            return GroupReport(fatal=f"Ray's head at {self._head} is gone", workers_go_on=True)
        try:
            report: GroupReport = ray.get(ticket)
        except (WorkerCrashedError, RayActorError, OutOfMemoryError, NodeDiedError, ObjectLostError) as error:
            raise WorkerDied("its Ray worker was lost") from error
        except RayError as error:  # a group never raises by itself
            return unfit("Ray", error)
        return report

    def renew(self) -> None:
        """Nothing to do: Ray starts a fresh worker for the next task."""

    def close(self) -> None:
        ray.shutdown()


def _answers(address: str) -> bool:
    """Return whether somebody listens at ``host:port``; a slow answer counts as one."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True
