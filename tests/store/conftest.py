"""A small store, and what a power cut would take from one."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from grok.store import Row, StoreWriter
from tests.store.contract import example_design, example_rows


def store_of(path: str | Path, rows: Sequence[Row]) -> Path:
    """Commit ``rows`` to the store at ``path``, made when missing; return ``path``."""
    with StoreWriter(path) as writer:
        writer.commit(rows)
    return Path(path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six runs in two shards."""
    with StoreWriter(tmp_path / "S") as writer:
        for start in (0, 3):
            report = writer.commit(example_rows(range(start, start + 3)))
            writer.record_design(example_design(report.written))
    return tmp_path / "S"


@pytest.fixture
def lost_in_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What got its name in this test and may be empty, or without that name, after a power cut."""
    flushed: set[tuple[int, int]] = set()
    lost: set[str] = set()

    def fsync(handle: int) -> None:
        about = os.fstat(handle)
        flushed.add((about.st_ino, about.st_mtime_ns))
        lost.difference_update([name for name in lost if name.startswith(f"name in {about.st_ino}: ")])

    def renamed(rename: Callable[..., None], source: Path, target: Path) -> None:
        for file in filter(Path.is_file, (Path(source), *Path(source).rglob("*"))):
            about = file.stat()
            if (about.st_ino, about.st_mtime_ns) not in flushed:
                lost.add(f"content: {target} {file.name}")
        rename(source, target)
        lost.add(f"name in {Path(target).parent.stat().st_ino}: {target}")

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, functools.partial(renamed, getattr(os, name)))
    return lost
