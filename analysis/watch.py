"""Rewrites the report of a store while a sweep runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analysis.answers import Report, compile_report
from analysis.observations import Observations
from analysis.own import Own
from analysis.writing import write_answers, write_page
from grok.errors import StoreError
from grok.store import check_path

if TYPE_CHECKING:
    from analysis.figures.style import Drawing

EVERY: Final = 10
"""Seconds between two checks of the store."""
FOLDERS: Final = {"runs": "*.*", "sweeps": "*.*", "search": "*.*", "live": "*/*.run"}
"""Files that change when a store grows: of finished runs, planned sweeps, searches, and curves of runs in flight."""
PATIENCE: Final = 3
"""Failed reads in a row after which the error is raised."""


def watch(store: Path, out: Path, every: int, own: Sequence[Own] = ()) -> int:
    """Write the report of ``store`` whenever it has grown, with a check every ``every`` seconds; return 0 on Ctrl-C.

    If the store does not exist yet, wait for it.

    Raises:
        StoreError: ``store`` is no store, or stays unreadable, or ``out`` cannot be written.
    """
    seen: object = None
    failures = 0
    written: tuple[Report, dict[str, list[Drawing]]] | None = None
    print(f"watching {store}: checks every {every} s, Ctrl-C ends it", flush=True)
    try:
        while True:
            now = state(store) if check_path(store, to_write=False) else None
            if now is not None and now != seen:
                try:
                    report = compile_report(Observations.read(store), own)
                except StoreError:
                    # A compaction can remove a shard between listing and reading it.
                    failures += 1
                    if failures >= PATIENCE:
                        raise
                else:
                    failures, seen = 0, now
                    written = report, write_answers(report, out)
                    page = write_page(*written, out, reload_seconds=every)
                    print(f"{time.strftime('%H:%M:%S')}  {report.provenance.runs:,} runs  {page}", flush=True)
            time.sleep(every)
    except KeyboardInterrupt:
        if written is None:
            print(f"\nstopped: {store} has no runs yet")
        else:
            print(f"\nstopped: {written[0].provenance.runs:,} runs in {write_page(*written, out)}")
    return 0


def state(store: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of every file that a new run, sweep or search adds or changes."""
    files = []
    for folder, pattern in FOLDERS.items():
        for file in sorted((store / folder).glob(pattern)):
            try:
                stat = file.stat()
            except FileNotFoundError:  # removed by a compaction
                continue
            files.append((f"{folder}/{file.name}", stat.st_size, stat.st_mtime_ns))
    return tuple(files)
