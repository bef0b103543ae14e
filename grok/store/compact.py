"""Compaction: merges many small shards into few large ones; a reader sees every row exactly once at any moment.

The compacted tables are built in ``tmp/`` as whole folders; large shards that need no
work are linked into them. Then one system call per table exchanges its folder with the
new one. A process that lists a table sees all old shards or all new ones; both hold the
same rows. A raw reader that listed the folder before the exchange may find a file
missing: it gets an error, never wrong numbers, and must list again.
:class:`grok.store.reader.Store` does so by itself.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from grok.errors import StoreError
from grok.files import disk_errors, exchange, flush_folder, locked, unique, write_flushed
from grok.store.damage import ForeignFile, refuse_without_threads
from grok.store.layout import EMPTY, Layout, make_store, read_marker, refuse_older, shard_names, strangers
from grok.store.quarantine import Recovered
from grok.store.recovery import recover
from grok.store.rows import Shard, with_partners
from grok.store.schema import KEYS, SHARDS, TABLES, schema
from grok.store.shards import check_shard, concat, open_shard, read_shard, read_whole, write_parquet
from grok.store.unfinished import COMPACTION, READY, exchange_tables
from grok.untrusted import is_folder

SHARD_ROWS: Final = 1_000_000
"""Rows after which a compacted shard is closed: limits memory, and the loss when a shard is damaged."""

SMALL: Final = 64
"""A shard with fewer runs is small. A writer that finds this many small shards merges them."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The number of shards of runs before and after."""

    before: int
    after: int
    recovered: list[Recovered]
    """The repairs that were made first."""
    designs: int = 0
    """Number of shards of designs that are fewer now."""

    def __str__(self) -> str:
        designs = f", {self.designs} fewer of designs" if self.designs else ""
        if self.after < self.before:
            return f"{self.before} shards, now {self.after}{designs}"
        return f"{self.before} shards: nothing to do{designs}"


def compact(path: str | Path, shard_rows: int = SHARD_ROWS) -> Compaction:
    """Merge the shards of the store at ``path`` and return their number before and after.

    Commits wait meanwhile; readers do not. A kill leaves the old shards, the new ones, or
    a partial exchange, which the next writer finishes.

    Raises:
        StoreError: no store, an older or newer schema, a full disk, or a file system
            that cannot exchange folders (NFS): ``merge`` into a new store compacts there.
    """
    layout = Layout(Path(path))
    read_marker(layout)
    make_store(path)
    refuse_without_threads(layout.root)
    with disk_errors(f"compacting {path}"), locked(layout.lock):
        refuse_older(layout)
        _refuse_folders(layout)
        recovered = recover(layout, thorough=True)
        before, designs = own_shards(layout), own_shards(layout, "designs")
        if not can_exchange(layout):
            raise StoreError(
                f"{path}: this file system cannot exchange two folders in one step, so compacting here would show "
                f"readers missing or repeated rows for a moment: run `grok store merge {path} --into NEW` instead"
            )
        merge_shards(layout, before, shard_rows)
        merge_shards(layout, designs, shard_rows, of="designs")
        fewer = len(designs) - len(own_shards(layout, "designs"))
        return Compaction(len(before), len(own_shards(layout)), recovered, fewer)


def _refuse_folders(layout: Layout) -> None:
    """Raise StoreError where a table holds a folder: a folder cannot be linked into the new table."""
    for kind in TABLES:
        for path in strangers(layout.table(kind)):
            if is_folder(path):
                raise StoreError(f"{path} is a folder among shards: move it away, then compact again")


def merge_shards(layout: Layout, names: Collection[str], shard_rows: int = SHARD_ROWS, of: str = "runs") -> None:
    """Merge these shards of an intact store into shards of up to ``shard_rows`` rows. The caller holds the lock.

    Shards of designs are one table, so one exchange is all: a kill leaves nothing to finish.

    Raises:
        ShardDamaged: one of them is damaged; nothing has changed.
        OSError: the disk refuses; nothing has changed.
    """
    groups = [group for group in _groups(layout, of, names, shard_rows) if len(group) > 1]
    if not groups:
        return
    folder = layout.tmp / f"{COMPACTION if of == 'runs' else f'{of}.'}{unique()}"
    try:
        _make_ready(layout, folder, of, groups)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if of == "runs":
        exchange_tables(layout, folder)
    else:
        exchange(folder / of, layout.table(of))
        shutil.rmtree(folder, ignore_errors=True)


def own_shards(layout: Layout, of: str = "runs") -> set[str]:
    """Return the names of the store's own shards; foreign files are left out and not touched."""
    own = set()
    for name in layout.names(of):
        with suppress(ForeignFile):
            for kind in SHARDS[of]:
                if layout.shard(kind, name).exists() and not check_shard(layout.shard(kind, name), kind, False).current:
                    raise ForeignFile("its columns are not this version's")
            own.add(name)
    return own


def _groups(layout: Layout, of: str, names: Collection[str], shard_rows: int) -> Iterator[list[str]]:
    """Yield the names of shards to merge into one, the smallest first."""
    group: list[str] = []
    rows = 0
    sizes = {name: rows_of(layout, name, of) for name in names}
    for name, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        if group and rows + size > shard_rows:
            yield group
            group, rows = [], 0
        group.append(name)
        rows += size
    if group:
        yield group


def rows_of(layout: Layout, name: str, of: str = "runs") -> int:
    """Return the number of rows in all tables of a shard; reads footers.

    Raises:
        NotAShard: a table is damaged, or no table of this store.
    """
    total = 0
    for kind in SHARDS[of]:
        path = layout.shard(kind, name)
        if path.exists():
            with open_shard(path, kind) as file:
                total += file.metadata.num_rows
    return total


def _make_ready(layout: Layout, folder: Path, of: str, groups: list[list[str]]) -> None:
    kinds = SHARDS[of]
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
    for group in groups:
        if of == "runs":
            _write(folder, unique(), concat([read_whole(layout, name) for name in group]))
        else:
            tables = [read_shard(layout.shard(of, name), of) for name in group]
            rows = pa.concat_tables([table.replace_schema_metadata(schema(of).metadata) for table in tables])
            _write_table(folder, of, unique(), rows.sort_by([(name, "ascending") for name in KEYS[of]]))
    merged = {name for group in groups for name in group}
    for kind in kinds:
        _link_others(layout.table(kind), folder / kind, merged | {EMPTY})
    for kind in kinds:
        if not shard_names(folder / kind):
            _write_table(folder, kind, EMPTY, schema(kind).empty_table())
        flush_folder(folder / kind)
    if of != "runs":
        return
    contents = {kind: sorted(shard_names(folder / kind)) for kind in kinds}
    write_flushed(folder / f"{READY}.new", lambda file: file.write(json.dumps(contents).encode()))
    (folder / f"{READY}.new").rename(folder / READY)
    flush_folder(folder)
    flush_folder(layout.tmp)


def _link_others(table: Path, folder: Path, merged: Collection[str]) -> None:
    """Link every unmerged entry into the new table: large shards and foreign files."""
    with os.scandir(table) as entries:
        for entry in entries:
            if entry.name.removesuffix(".parquet") not in merged or not entry.name.endswith(".parquet"):
                os.link(entry.path, folder / entry.name, follow_symlinks=False)


def _write(folder: Path, name: str, shard: Shard) -> None:
    tables = {"runs": with_partners(shard.runs, shard), "curves": shard.curves, "steps": shard.steps}
    for kind, table in tables.items():
        if kind == "runs" or table.num_rows:
            _write_table(folder, kind, name, table)


def _write_table(folder: Path, kind: str, name: str, table: pa.Table) -> None:
    write_flushed(folder / kind / f"{name}.parquet", lambda file: write_parquet(table, file))


def can_exchange(layout: Layout) -> bool:
    """Return whether the file system can exchange two folders; tries it on empty ones. The caller holds the lock."""
    a, b = layout.tmp / f"try.{unique()}", layout.tmp / f"try.{unique()}"
    a.mkdir()
    b.mkdir()
    try:
        exchange(a, b)
    except OSError:
        return False
    finally:
        a.rmdir()
        b.rmdir()
    return True
