"""Runs of a sweep in the logs that people use, while the sweep goes on.

The process that the command began writes them: it has nothing else to do, and it sees what the workers commit,
wherever they are. So no worker waits for a log, and a log that fails costs no run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from grok.config import ArithmeticConfig, RunConfig
from grok.errors import StoreError, one_line
from grok.execute.export import Opened, Points, openers, with_curves, write_run
from grok.execute.planned import PlannedRun
from grok.plugins import exits_refused
from grok.store import Store

LOOK: Final = 10.0
"""Seconds between two looks for runs that were committed."""


class RunLogs:
    """Writes each committed run of ``runs`` into the sinks that its settings name, while it is entered.

    Language models are left out: their engine writes into its sinks at every step.
    """

    def __init__(self, store: Store, runs: Sequence[PlannedRun], tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._waiting: dict[str, RunConfig] = {
            run.run_id: run.config
            for run in runs
            if isinstance(run.config, ArithmeticConfig) and openers(store, run.config.log)
        }
        self._failed: set[str] = set()
        """Sinks that failed once."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="logs", daemon=True)

    def __enter__(self) -> RunLogs:
        if self._waiting:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if kind is None and self._waiting:
            self._write()

    def _tend(self) -> None:
        while not self._closing.wait(LOOK):
            self._write()

    def _write(self) -> None:
        """Write what was committed since the last look."""
        try:
            statuses = self._store.statuses()
            # a failed run is not logged; its row may be an old one, while retry_failed=true trains the run again
            ended = [run_id for run_id in self._waiting if statuses.get(run_id, "failed") != "failed"]
            rows = self._store.table("runs", ended, None).to_pylist() if ended else []
            for row, points in with_curves(self._store, rows):
                self._write_one(row, points)
                del self._waiting[row["run_id"]]
        except (OSError, StoreError) as error:  # who trains says so too; the next look sees these runs again
            if self._closing.is_set():
                self._tell(f"logs: the store cannot be read ({error}); `grok store export` writes them later")

    def _write_one(self, row: Mapping[str, Any], points: Points) -> None:
        for name, open_sink in openers(self._store, self._waiting[row["run_id"]].log).items():
            if name not in self._failed:
                self._into(name, open_sink, row, points)

    def _into(self, name: str, open_sink: Opened, row: Mapping[str, Any], points: Points) -> None:
        try:
            with exits_refused():
                write_run(self._store, row, points, open_sink)
        except Exception as error:  # each has errors of its own, and none of them is worth a run
            self._failed.add(name)
            reason = one_line(error)
            self._tell(
                f"log.{name} failed and is left out from here on ({reason}); the runs go on, and `grok store export` "
                "writes them later"
            )
