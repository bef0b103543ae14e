"""What the workers of a running sweep say and hear, through small files in the store: ``live/<sweep_id>/``.

Files, because workers may be on other machines and are killed without warning. Each is
replaced at once by a rename, none is flushed to the disk: nothing here is ever needed
again, and readers take a missing or odd file for no news.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from grok.files import replace_text
from grok.processes import Owner
from grok.store.in_flight import OWNER, is_owner_alive
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
