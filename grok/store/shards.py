"""Reads and writes one shard: its tables are committed together, checked by checksums, upgraded from older schemas."""

from __future__ import annotations

import functools
import io
import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from grok.errors import one_line
from grok.files import flush_folder, move, remove_quietly, write_flushed
from grok.store.damage import ForeignFile, ShardDamaged, reading
from grok.store.layout import EMPTY, Layout, staged
from grok.store.rows import Shard, with_partners
from grok.store.schema import KIND_KEY, KINDS, PARTNERS_KEY, TABLES, schema, schema_version
from grok.store.seal import BLANK, SEAL_KEY, check_open, check_seal, seal
from grok.store.versions import upgrade

ROWS_PER_GROUP: Final = 65_536
"""Rows of a row group: few enough that a reader of some runs skips most of a compacted shard."""

FEW_ROWS: Final = 1_000
"""Up to this number of rows the codec is snappy: zstd would cost much time per column and save few bytes."""


def write_parquet(table: pa.Table, file: IO[bytes]) -> None:
    """Write ``table`` with a checksum on every page, and seal it (:mod:`grok.store.seal`).

    Most shards are small and the runs table has some 200 columns. To save the cost per
    column there are no dictionaries and statistics for columns that nobody filters by,
    and no Arrow schema.
    """
    points = "step" in table.column_names
    options = {
        "compression": "snappy" if table.num_rows <= FEW_ROWS else "zstd",
        "use_dictionary": [name for name in ("run_id", "event") if points and name in table.column_names],
        "write_statistics": [name for name in ("run_id", "step") if name in table.column_names],
        "write_page_checksum": True,
        "store_schema": False,
    }
    with pq.ParquetWriter(file, table.schema.remove_metadata(), **options) as writer:
        writer.write_table(table.replace_schema_metadata(None), row_group_size=ROWS_PER_GROUP)
        writer.add_key_value_metadata({**table.schema.metadata, SEAL_KEY: BLANK})
    seal(file)


def write_shard(layout: Layout, name: str, shard: Shard) -> None:
    """Add a shard to the store; the last rename, of its runs table, is the commit.

    All tables are written and flushed before the first rename. The caller holds the lock.
    After an error no file of the shard is left in the tables' folders.
    """
    parts: list[tuple[str, pa.Table]] = [(k, shard.table(k)) for k in ("curves", "steps") if shard.table(k).num_rows]
    parts.append(("runs", with_partners(shard.runs, shard)))
    paths = {kind: staged(layout, f"{kind}-{name}") for kind, _ in parts}
    moved: list[Path] = []
    try:
        for kind, table in parts:
            write_flushed(paths[kind], lambda file, table=table: write_parquet(table, file))  # type: ignore[misc]
        for kind, _ in parts:
            target = layout.shard(kind, name)
            moved.append(target)
            move(paths[kind], target)
    except OSError:
        for path in (*reversed(moved), *paths.values()):
            path.unlink(missing_ok=True)
        raise


def replace_table(layout: Layout, kind: str, name: str, table: pa.Table) -> None:
    """Replace the shard's table of this kind by ``table``, with one rename."""
    path = staged(layout, f"{kind}-{name}")
    write_flushed(path, lambda file: write_parquet(table, file))
    move(path, layout.shard(kind, name))


Removal = list[tuple[Path | None, Path]]
"""Renames in their order: a staged file and its place; None: what is at the place goes."""


def stage_removal(layout: Layout, name: str, whole: Shard, gone: Collection[str]) -> Removal:
    """Write what is left of a shard (read as ``whole``) without some runs to ``tmp/``; :func:`remove_staged` follows.

    Everything that needs room on the disk is done here, before the store changes.
    """
    rest = without_runs(whole, gone)
    if rest.runs.num_rows == 0:
        return [(None, layout.shard(kind, name)) for kind in KINDS]  # runs first: curves without them are orphans
    removal: Removal = []
    # Curves first: a kill in between leaves a run without a curve, never points that would be there twice after the
    # run's next commit. A table stays even without rows: the metadata of the runs shard names it.
    tables = {kind: rest.table(kind) for kind in ("curves", "steps")} | {"runs": with_partners(rest.runs, whole)}
    for kind, table in tables.items():
        if kind == "runs" or whole.table(kind).num_rows > table.num_rows:
            path = staged(layout, f"{kind}-{name}")
            write_flushed(path, lambda file, table=table: write_parquet(table, file))  # type: ignore[misc]
            removal.append((path, layout.shard(kind, name)))
    return removal


def remove_staged(removal: Removal) -> None:
    """Carry out a staged removal; the shard's other runs stay readable at every moment."""
    for source, target in removal:
        if source is not None:
            move(source, target)
        else:
            remove_quietly(target)
            flush_folder(target.parent)


def remove_runs(layout: Layout, name: str, whole: Shard, gone: Collection[str]) -> None:
    """Remove runs from a shard (read as ``whole``)."""
    remove_staged(stage_removal(layout, name, whole, gone))


def ensure_readable(layout: Layout) -> None:
    """Keep every table's folder readable as a whole: a table without shards gets one without rows."""
    for kind in TABLES:
        empty = layout.shard(kind, EMPTY)
        if layout.names(kind):
            empty.unlink(missing_ok=True)
        elif not empty.exists():
            replace_table(layout, kind, EMPTY, schema(kind).empty_table())


def open_shard(path: Path, kind: str) -> pq.ParquetFile:
    """Open a shard of this table, after a check of its footer.

    Raises:
        ShardDamaged: it is truncated, or its bytes differ from those that were written.
        ForeignFile: it is not a shard of a store, or a shard of another table.
        StoreError: a newer schema wrote it, or it cannot be read at the moment.
        FileNotFoundError: it was removed after it was listed.
    """
    with reading(path):
        check_seal(path, thorough=False)  # before Arrow reads it: a damaged footer can crash the process
        file = pq.ParquetFile(path, page_checksum_verification=True)
        try:
            _check_notes(file.metadata.metadata or {}, kind, path)
        except BaseException:
            file.close()
            raise
    return file


def _check_notes(notes: Mapping[bytes, bytes], kind: str, path: Path) -> None:
    try:
        schema_version(notes, path)
    except ValueError as error:
        raise ForeignFile(one_line(error)) from error
    table = notes.get(KIND_KEY, kind.encode()).decode(errors="replace")
    if table != kind:
        raise ForeignFile(f"a shard of {table!r}, not of {kind}")


def read_shard(path: Path, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the shard's table with the current columns (or some of them); older schemas are upgraded.

    Raises: see :func:`open_shard`.
    """
    with open_shard(path, kind) as file:
        current = file.schema_arrow.equals(schema(kind))
        with reading(path):
            if current and columns is not None:
                return file.read(columns=list(columns)).select(list(columns))
            table = file.read().replace_schema_metadata(file.metadata.metadata)
    try:
        table = upgrade(kind, table)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ForeignFile(f"not a table of {kind}: {one_line(error)}") from error
    return table if columns is None else table.select(list(columns))


@dataclass(frozen=True, slots=True)
class Facts:
    """The result of a check of one shard."""

    current: bool
    """Whether it has this version's columns."""
    partners: tuple[str, ...]
    """Of a runs shard: the tables that must have a shard of the same name."""
    run_ids: list[str]
    """Of a runs shard that was checked thoroughly: its runs."""


def check_shard(path: Path, kind: str, thorough: bool) -> Facts:
    """Check a shard's footer, or with ``thorough`` every byte.

    Raises: see :func:`open_shard`.
    """
    run_ids: list[str] = []
    with open_shard(path, kind) as file, reading(path):
        if thorough and not check_seal(path, thorough=True):
            for group in range(file.num_row_groups):
                file.read_row_group(group)
        if thorough and kind == "runs" and "run_id" in file.schema_arrow.names:
            run_ids = file.read(columns=["run_id"])["run_id"].to_pylist()
        return Facts(bool(file.schema_arrow.equals(schema(kind))), _partners(file), run_ids)


def _partners(file: pq.ParquetFile) -> tuple[str, ...]:
    text = (file.metadata.metadata or {}).get(PARTNERS_KEY, b"").decode(errors="replace")
    return tuple(kind for kind in text.split(",") if kind in ("curves", "steps"))


def current_digest(path: Path, kind: str) -> bytes | None:
    """Return the digest of a shard with this version's columns, or None if it has no seal; reads only the footer.

    Raises:
        ForeignFile: it is a shard of another table or has the columns of another version.
        Otherwise: see :func:`open_shard`.
    """
    with reading(path):
        seal = check_seal(path, thorough=False)
    if seal is not None and seal.note(KIND_KEY) == kind.encode() and seal.footer.startswith(_columns_as_written(kind)):
        return seal.digest
    with open_shard(path, kind) as file:
        if not file.schema_arrow.equals(schema(kind)):
            raise ForeignFile("it has the columns of another version")
    return None if seal is None else seal.digest


@functools.cache
def _columns_as_written(kind: str) -> bytes:
    """Return the first bytes of a footer with this version's columns, as the installed Arrow writes it.

    The comparison of bytes is fast. Parsing the columns of some hundred shards with Arrow
    takes longer than reading their rows, so only footers that differ are parsed.
    """
    one = {pa.string(): "", pa.int64(): 0, pa.float64(): 0.0, pa.bool_(): False, pa.timestamp("us"): 0}
    row = pa.Table.from_arrays([pa.array([one[field.type]], field.type) for field in schema(kind)], schema=schema(kind))
    footers = []
    for table in (row, schema(kind).empty_table()):
        file = io.BytesIO()
        write_parquet(table, file)
        seal = check_open(file, thorough=False)
        assert seal is not None
        footers.append(seal.footer)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*footers, strict=False))
    return bytes(byte for byte, _ in same)  # up to the number of rows, which follows the columns


def partners(path: Path) -> tuple[str, ...]:
    """Return the tables that must have a shard of the same name as this runs shard."""
    with open_shard(path, "runs") as file:
        return _partners(file)


def read_whole(layout: Layout, name: str) -> Shard:
    """Return all three tables of a shard.

    Raises:
        ShardDamaged: one of them is damaged or missing.
    """
    tables = {"runs": read_shard(layout.shard("runs", name), "runs")}
    needed = partners(layout.shard("runs", name))
    for kind in ("curves", "steps"):
        path = layout.shard(kind, name)
        exists = os.path.lexists(path)
        if kind in needed and not exists:
            raise ShardDamaged(f"its {kind} are missing")
        tables[kind] = read_shard(path, kind) if exists else schema(kind).empty_table()
    return Shard(**tables)


def concat(shards: Sequence[Shard]) -> Shard:
    """Return one shard with the rows of all, ordered by run and step."""

    def joined(kind: str, order: list[Any]) -> pa.Table:
        return pa.concat_tables([s.table(kind) for s in shards]).combine_chunks().sort_by(order)

    by_step = [("run_id", "ascending"), ("step", "ascending")]
    return Shard(joined("runs", [("run_id", "ascending")]), joined("curves", by_step), joined("steps", by_step))


def without_runs(shard: Shard, run_ids: Collection[str]) -> Shard:
    """Return the shard without these runs."""
    return shard.only(set(shard.runs["run_id"].to_pylist()) - set(run_ids))
