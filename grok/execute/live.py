"""A worker's side of the store: finished runs are written soon, and small files say what it does.

Files, because workers may be on other machines and are killed without warning. Each is
replaced at once by a rename, none is flushed to the disk: nothing here is ever needed
again, and readers take a missing or odd file for no news.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from grok.files import replace_text
from grok.processes import Owner
from grok.store import Row, StoreWriter
from grok.store.reader import OWNER, is_owner_alive
from grok.untrusted import is_folder, read_json_object

STALE: Final = 86400.0
"""Seconds without a sign of life after which a killed sweep's folder is removed by the next one."""


@dataclass(frozen=True, slots=True)
class LiveFolder:
    """The folder of one running sweep."""

    path: Path

    @classmethod
    def create(cls, store_path: str | Path, sweep_id: str) -> LiveFolder:
        """Make the folder of a new sweep, and remove those of sweeps that died long ago."""
        parent = Path(store_path) / "live"
        folder = cls(parent / sweep_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a full disk is said by what must be written
            (folder.path / OWNER).write_text(json.dumps(asdict(Owner.this_process())))
        for other in parent.iterdir():
            with suppress(OSError):
                stale = is_folder(other) and time.time() - other.stat().st_mtime > STALE
                if stale and not is_owner_alive(other):
                    shutil.rmtree(other)
        return folder

    def keep(self) -> None:
        """Say that the sweep lives, to those on other machines: its jobs may wait for days without a word."""
        with suppress(OSError):
            os.utime(self.path)

    def remove(self) -> None:
        """Remove the folder, and its parent when no other sweep is running."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def request_stop(self) -> None:
        """Ask every worker to checkpoint and return."""
        with suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)  # whoever cleared the folder did not mean this,
            self.path.mkdir(exist_ok=True)  # but a store that was removed is not begun again
            (self.path / "stop").touch()

    def stop_requested(self) -> bool:
        return (self.path / "stop").exists()

    def publish(self, name: str, news: dict[str, Any]) -> None:
        """Replace the last report of the group ``name``."""
        with suppress(OSError):  # progress is a courtesy: a full disk must not end training here
            replace_text(self.path / f"{name}.json", json.dumps(news))

    def retract(self, name: str) -> None:
        """Remove the last report of the group ``name``."""
        with suppress(OSError):
            (self.path / f"{name}.json").unlink()

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield the last report of every group in flight."""
        for file in sorted(self.path.glob("*.json")):
            with suppress(OSError, ValueError):
                yield read_json_object(file)


# A worker's side of the store: what is finished is written soon, and other sweeps see that this one lives.

HEARTBEAT: Final = 5.0
"""Seconds between signs of life; other machines count a sweep as dead after two minutes without."""

TICK: Final = 0.25


class Ledger:
    """Finished runs on their way to the store: a shard is a flush, at most ``flush_seconds`` after the first.

    The engine may be silent for long (it compiles, or a run is far from its next
    evaluation), so a thread of its own writes and gives signs of life.
    """

    def __init__(self, writer: StoreWriter, flush_seconds: float, on_commit: Callable[[Row], None]) -> None:
        """``on_commit`` is called for each run once its row is on the disk, from either thread.

        It is not called for a row that the store dropped: the run's files belong to the row that stays.
        """
        self._writer = writer
        self._flush_seconds = flush_seconds
        self._on_commit = on_commit
        self._pending: list[Row] = []
        self._oldest = 0.0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self._error: Exception | None = None
        self.notes: list[str] = []
        """What the store had to say: runs that it holds with other bits, damage put right."""
        self._thread = threading.Thread(target=self._tend, name="ledger", daemon=True)

    def __enter__(self) -> Ledger:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()
        self.flush()  # also after an error: what is finished is finished

    def add(self, row: Row) -> None:
        """Take a finished run. Raises what the last write raised, if it did."""
        self.check()
        with self._lock:
            if not self._pending:
                self._oldest = time.monotonic()
            self._pending.append(row)

    def check(self) -> None:
        """Raise what a write in the background raised."""
        if self._error is not None:
            raise self._error

    def flush(self) -> None:
        """Write everything that is pending."""
        with self._writing:
            with self._lock:
                rows, self._pending = self._pending, []
            try:
                report = self._writer.commit(rows)
            except BaseException:
                with self._lock:
                    self._pending = rows + self._pending
                raise
        self.notes += [f"Conflict: {conflict}" for conflict in report.conflicts]
        self.notes += [f"Repaired: {repair}" for repair in report.recovered]
        stays = {*report.written, *report.replaced}
        for row in rows:
            if row.result.run_id in stays:
                self._on_commit(row)

    def settle_branches(self, run_id: str) -> None:
        """Write what a rollback of this run abandoned before its next checkpoint is kept: that one knows only of
        the branch that goes on, and a process killed after it would lose the other."""
        with self._lock:
            waiting = any(r.result.status == "rolled_back" and r.result.parent_run_id == run_id for r in self._pending)
        if waiting:
            self.flush()

    def _tend(self) -> None:
        beat = time.monotonic()
        while not self._closing.wait(TICK):
            try:
                now = time.monotonic()
                if now - beat >= HEARTBEAT:
                    self._writer.heartbeat()
                    beat = now
                if self._pending and now - self._oldest >= self._flush_seconds:
                    self.flush()
            except Exception as error:  # told to the thread that trains, which ends
                self._error = error
                return
