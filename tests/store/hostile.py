"""Stores as somebody might make them who means harm: links, names that lead elsewhere, tables of other rows."""

import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pyarrow as pa

from grok.analysis.report import main as report
from grok.commands.store import main as store_command
from grok.store import StoreWriter
from grok.store.layout import Layout
from grok.store.rows import Shard, to_shard
from grok.store.schema import KINDS
from grok.store.shards import write_shard
from grok.sweeps.search.config import StudyConfig
from grok.sweeps.search.record import StudyRecord
from tests.store.contract import example_design, example_rows


def fill(path: Path, seeds: range = range(4)) -> Path:
    """Make a store of two shards with everything that a store has."""
    half = len(seeds) // 2
    with StoreWriter(path) as writer:
        for part in (seeds[:half], seeds[half:]):
            report = writer.commit(example_rows(part))
            writer.record_design(example_design(report.written, kind="repeat", parent=report.written[0]))
        writer.record_sweep("sweep-1", ["x"], {"settings": {}, "runs": []})
        lease = writer.claim(["somebody"])
        assert lease.granted
        owner = next(Layout(path).leases.glob("*.json")).read_text()
    name = json.loads(owner)["owner"]["name"]
    (path / "leases" / f"{name}.json").write_text(owner.replace('"pid": ', '"pid": 9999'))
    for folder in ("search", "live/sweep-0", "checkpoints/run-1/weights-final", "conflicts", "tmp"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    space = {"optim.lr": {"low": 1e-4, "high": 1e-2}}
    StudyRecord(StudyConfig(name="one", objective="val_loss"), path / "search", {"space": space}, {"optim.lr": 1e-3})
    (path / "checkpoints/run-1/weights-final/manifest.json").write_text("{}")
    (path / "live/sweep-0/group-1.json").write_text("{}")
    return path


def with_texts(path: Path, kind: str | None, column: str, texts: list[str]) -> None:
    """Add a shard of as many runs as ``texts``, sealed; ``column`` of one table, or of all, has these texts."""
    shard = to_shard(example_rows(range(90, 90 + len(texts))))
    of_run = dict(zip(shard.runs["run_id"].to_pylist(), texts, strict=True))

    def changed(table: pa.Table) -> pa.Table:
        if column not in table.column_names:
            return table
        values = pa.array([of_run[run_id] for run_id in table["run_id"].to_pylist()], pa.string())
        return table.set_column(table.column_names.index(column), table.schema.field(column), values)

    tables = {k: changed(shard.table(k)) if kind in (k, None) else shard.table(k) for k in KINDS}
    write_shard(Layout(path), "00000000000000fe", Shard(**tables))


def precious(folder: Path) -> Path:
    """Make a folder of somebody's, with something in it for every way in."""
    for name in ("secret", "run-1/weights-final", "00000001-step-1", "sweep-0"):
        (folder / name).mkdir(parents=True)
        (folder / name / "precious.txt").write_text("precious")
    (folder / "file").write_text("precious")
    (folder / "x.json").write_text('{"precious": 1}')
    os.utime(folder / "sweep-0", (0, 0))
    return folder


def outside_state(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Return everything below ``folder`` with its content."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(folder.rglob("*")):
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = path.lstat().st_mode, content
    return found


COMMANDS: dict[str, Callable[[Path, Path], int]] = {
    "status": lambda path, room: store_command(["status", str(path)]),
    "verify": lambda path, room: store_command(["verify", str(path)]),
    "compact": lambda path, room: store_command(["compact", str(path)]),
    "migrate": lambda path, room: store_command(["migrate", str(path)]),
    "retire": lambda path, room: store_command(["retire", str(path), "", "--why", "a try"]),
    "restore": lambda path, room: store_command(["restore", str(path)]),
    "merge from": lambda path, room: store_command(["merge", str(path), "--into", str(room / "into")]),
    "merge to": lambda path, room: store_command(["merge", str(path), str(fill(room / "other", range(2, 6)))]),
    "export": lambda path, room: store_command(["export", str(path), "--tensorboard", str(room / "boards")]),
    "report": lambda path, room: report([str(path), "--out", str(room / "report")]),
}
"""Every command that opens a store; ``room`` is a folder that it may write in besides."""


FEW = ("compact", "merge from")
"""Those that touch most, for tests that should be quick."""


def every_command(path: Path, room: Path, only: Collection[str] = tuple(COMMANDS)) -> Iterator[tuple[str, int]]:
    """Run every command (or some) on the store at ``path`` and yield its exit status."""
    for number, (name, run) in enumerate(COMMANDS.items()):
        if name not in only:
            continue
        own = room / str(number)
        own.mkdir(parents=True)
        yield name, run(path, own)
