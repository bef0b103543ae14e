"""Restores the runs of whole files in ``quarantine/``.

A shard goes to quarantine when its bytes differ from those that were written, or when one
of its tables is missing. The file may be whole again (from a backup, for example), or the
missing table may also be in quarantine. Rows are matched by ``run_id``, not by file name.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from grok.files import locked, remove_quietly
from grok.store.compare import Conflict
from grok.store.damage import NotAShard
from grok.store.layout import Layout, read_marker, shard_names
from grok.store.quarantine import Recovered
from grok.store.reader import open_store
from grok.store.rows import Shard, filter_runs
from grok.store.schema import SHARDS, TABLES, schema
from grok.store.shards import check_shard, partners, read_shard
from grok.store.writer import StoreWriter
from grok.untrusted import is_plain

POINTS = ("curves", "steps")


@dataclass(slots=True)
class Restoration:
    """The result of a restoration."""

    runs: list[str] = field(default_factory=list)
    """Runs that were restored."""
    designs: int = 0
    """Number of rows of designs that were restored."""
    stored: int = 0
    """Number of runs in quarantine that the store already holds."""
    left: list[str] = field(default_factory=list)
    """Files that stay in quarantine, each with the reason."""
    conflicts: list[Conflict] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    """The repairs that were made first."""


def restore(path: str | Path) -> Restoration:
    """Commit every run in quarantine that has its row and all its points, and remove its file from quarantine.

    A run that the store already holds is compared like any late duplicate. Damaged files,
    and points without their runs, stay in quarantine.

    Raises:
        StoreError: no store, an older or newer schema, a full disk, or a file that cannot be read at the moment.
    """
    read_marker(Layout(Path(path)))
    with StoreWriter(path) as writer:
        done = Restoration(recovered=writer.recovered)
        tables = _whole_tables(writer.layout, done)
        points = {kind: _joined(kind, tables[kind]) for kind in POINTS}
        for file, runs in tables["runs"].items():
            shard, incomplete = _with_points(file, runs, points)
            report = writer.commit_shard(shard)
            done.runs += report.written + report.replaced
            done.stored += len(report.duplicates)
            done.conflicts += report.conflicts
            if incomplete:
                done.left.append(f"{file}: the points of {len(incomplete)} of its runs are missing")
            elif not report.conflicts:
                _remove(writer.layout, file)
        for file, rows in tables["designs"].items():
            added, unequal = writer.merge_designs({str(file): rows})
            done.designs += added
            done.conflicts += unequal
            if not unequal:
                _remove(writer.layout, file)
        _remove_used_points(writer.layout, tables)
        for kind in POINTS:
            left = [file for file in tables[kind] if file.exists()]
            done.left += [f"{file}: {kind} of runs that have no row" for file in left]
    return done


def _whole_tables(layout: Layout, done: Restoration) -> dict[str, dict[Path, pa.Table]]:
    """Return the whole tables in quarantine by file."""
    tables: dict[str, dict[Path, pa.Table]] = {kind: {} for kind in TABLES}
    for name in sorted(shard_names(layout.quarantine)):
        kind = name.partition("-")[0]
        if kind not in TABLES:
            continue
        file = layout.quarantine / f"{name}.parquet"
        try:
            check_shard(file, kind, thorough=True)
            table = read_shard(file, kind)
        except NotAShard as problem:
            done.left.append(f"{file}: {problem}")
            continue
        if kind in SHARDS and not all(map(is_plain, table["run_id"].to_pylist())):
            done.left.append(f"{file}: a run_id in it is not a plain name")
            continue
        tables[kind][file] = table
    return tables


def _joined(kind: str, tables: dict[Path, pa.Table]) -> pa.Table:
    """Return the points of all tables; of equal (``run_id``, ``step``) only the first."""
    whole = pa.concat_tables(
        [schema(kind).empty_table(), *(t.replace_schema_metadata(schema(kind).metadata) for t in tables.values())]
    )
    seen: set[tuple[str, int]] = set()
    keys = zip(whole["run_id"].to_pylist(), whole["step"].to_pylist(), strict=True)
    first = [not (key in seen or seen.add(key)) for key in keys]  # type: ignore[func-returns-value]
    return whole.filter(pa.array(first, pa.bool_()))


def _with_points(file: Path, runs: pa.Table, points: dict[str, pa.Table]) -> tuple[Shard, list[str]]:
    """Return the runs that have all their points, as a shard, and the ``run_id`` of the others."""
    wanted = runs["run_id"].combine_chunks()
    shard = Shard(runs, *(filter_runs(points[kind], wanted) for kind in POINTS))
    if any(not shard.table(kind).num_rows for kind in partners(file)):
        return shard.only(set()), wanted.to_pylist()
    last: dict[str, int] = defaultdict(lambda: -1)
    for run_id, step in zip(shard.curves["run_id"].to_pylist(), shard.curves["step"].to_pylist(), strict=True):
        last[run_id] = max(last[run_id], step)
    rows = runs.select(["run_id", "status", "steps"]).to_pylist()
    incomplete = [row["run_id"] for row in rows if row["status"] == "completed" and last[row["run_id"]] != row["steps"]]
    return shard.only(set(wanted.to_pylist()) - set(incomplete)), incomplete


def _remove_used_points(layout: Layout, tables: dict[str, dict[Path, pa.Table]]) -> None:
    """Remove the files whose points are all in the store."""
    store = open_store(layout.root)
    for kind in POINTS:
        for file, table in tables[kind].items():
            run_ids = table["run_id"].unique().to_pylist()
            held = store.table(kind, run_ids, ["run_id", "step"])
            stored = set(zip(held["run_id"].to_pylist(), held["step"].to_pylist(), strict=True))
            if set(zip(table["run_id"].to_pylist(), table["step"].to_pylist(), strict=True)) <= stored:
                _remove(layout, file)


def _remove(layout: Layout, file: Path) -> None:
    """Remove a file from quarantine, and its reason if no other file of the shard is left."""
    with locked(layout.lock):
        remove_quietly(file)
        name = file.stem.partition("-")[2]
        if not any(other.name.endswith(f"-{name}.parquet") for other in layout.quarantine.iterdir()):
            remove_quietly(layout.quarantine / f"{name}.json")
