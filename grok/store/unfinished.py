"""Finishes a compaction that a kill interrupted while it exchanged tables.

Tables are *in step* when every shard has its partners in the other tables. Tables that are in
step are not changed. Otherwise tables are exchanged with those in the compaction's folder
until all three are in step, but only with tables whose seals and keys prove that they hold the
same rows: no content of ``tmp/`` is trusted.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from grok.files import exchange, flush_folder
from grok.store.damage import NotAShard
from grok.store.layout import EMPTY, Layout, shard_names
from grok.store.quarantine import put_aside
from grok.store.schema import KINDS
from grok.store.shards import check_shard, partners, read_shard
from grok.untrusted import is_file, is_folder

READY: Final = "ready.json"
"""A file in a compaction's folder: its tables are complete, and the exchange may have begun."""

COMPACTION: Final = "compaction."
"""Prefix of a compaction's folder in ``tmp/``."""

LEFT: Final = "left by an interrupted compaction"


def unfinished_compaction(layout: Layout) -> Path | None:
    """Return the folder of a compaction that was ready and is not finished, or None."""
    return next(_unfinished(layout), None)


def _unfinished(layout: Layout) -> Iterator[Path]:
    if is_folder(layout.tmp):
        for folder in sorted(layout.tmp.glob(f"{COMPACTION}*")):
            if is_folder(folder) and is_file(folder / READY):
                yield folder


def exchange_tables(layout: Layout, folder: Path) -> None:
    """Exchange the tables with those in ``folder``, which hold the same rows. The caller holds the lock."""
    for kind in ("curves", "steps", "runs"):
        exchange(folder / kind, layout.table(kind))
    _remove(folder)


def finish_compaction(layout: Layout) -> list[str]:
    """Bring the tables back into step; return the names of files that were moved to quarantine instead.

    The caller holds the lock.

    Raises:
        StoreError: a shard cannot be read at the moment; nothing was changed.
    """
    quarantined = []
    for folder in list(_unfinished(layout)):
        tables = {kind: layout.table(kind) for kind in KINDS}
        waiting = {kind: folder / kind for kind in KINDS if is_folder(folder / kind)}
        in_step = _in_step(tables)
        if not in_step or not all(_is_sound(kind, table) for kind, table in tables.items()):
            kinds = [] if in_step else _to_exchange(tables, waiting)
            for kind in kinds:
                exchange(folder / kind, layout.table(kind))
            if not kinds:  # the folder may hold the only whole rows of some runs
                quarantined += [
                    put_aside(layout, kind, folder / kind / f"{name}.parquet", LEFT)
                    for kind in KINDS
                    if is_folder(folder / kind)
                    for name in sorted(shard_names(folder / kind) - {EMPTY})
                ]
        _remove(folder)
    return quarantined


def _remove(folder: Path) -> None:
    (folder / READY).unlink()
    flush_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _in_step(tables: Mapping[str, Path]) -> bool:
    """Return whether every runs shard has its partners, and no other table has a shard without runs."""
    if not all(is_folder(table) for table in tables.values()):
        return False
    names = {kind: shard_names(table) - {EMPTY} for kind, table in tables.items()}
    if not names["curves"] | names["steps"] <= names["runs"]:
        return False
    for name in sorted(names["runs"]):
        try:
            needed = partners(tables["runs"] / f"{name}.parquet")
        except NotAShard:
            continue  # a damaged shard is no reason to exchange tables
        if any(name not in names[kind] for kind in needed):
            return False
    return True


def _is_sound(kind: str, table: Path) -> bool:
    """Return whether no shard in the folder is damaged; otherwise ``tmp/`` may have the only whole rows."""
    for name in sorted(shard_names(table) - {EMPTY}):
        try:
            check_shard(table / f"{name}.parquet", kind, thorough=True)
        except NotAShard:
            return False
    return True


def _to_exchange(tables: Mapping[str, Path], waiting: Mapping[str, Path]) -> list[str]:
    """Return the smallest set of tables that must be exchanged so that all are in step; none where that fails."""
    same = [kind for kind in waiting if _same_rows(kind, tables[kind], waiting[kind])]
    for count in range(1, len(same) + 1):
        for kinds in itertools.combinations(same, count):
            if _in_step({**tables, **{kind: waiting[kind] for kind in kinds}}):
                return list(kinds)
    return []


def _same_rows(kind: str, table: Path, waiting: Path) -> bool:
    """Return whether both folders hold only undamaged shards, with rows of the same keys."""
    if not is_folder(table):
        return False
    try:
        return _keys(kind, table) == _keys(kind, waiting)
    except (NotAShard, FileNotFoundError):
        return False


def _keys(kind: str, folder: Path) -> list[tuple[str, str]]:
    """Return the sorted keys of the folder's rows: ``run_id``, and ``step`` where the table has it."""
    keys = []
    for name in sorted(shard_names(folder) - {EMPTY}):
        path = folder / f"{name}.parquet"
        check_shard(path, kind, thorough=True)
        columns = ["run_id"] if kind == "runs" else ["run_id", "step"]
        rows = read_shard(path, kind, columns)
        keys += list(zip(*(pc.cast(rows[c], "string").to_pylist() for c in columns), strict=True))
    return sorted(keys)
