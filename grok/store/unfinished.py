"""A compaction that was cut short: whose tables stand half exchanged, and are brought back into step.

What lies in ``tmp/`` is believed in nothing. Tables that belong together as they are stay as
they are. Where they do not, and the folder that a compaction left holds tables of the very
same rows, proven by their seals and keys, those are exchanged until the three belong together.
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
"""In a compaction's folder in ``tmp/``: its tables are complete, the exchange has begun or may begin."""

COMPACTION: Final = "compaction."
"""Prefix of a compaction's folder in ``tmp/``."""


LEFT: Final = "left by a compaction that was cut short"


def unfinished_compaction(layout: Layout) -> Path | None:
    """Return the folder of a compaction that was ready and has not been finished, if there is one."""
    return next(_unfinished(layout), None)


def _unfinished(layout: Layout) -> Iterator[Path]:
    if is_folder(layout.tmp):
        for folder in sorted(layout.tmp.glob(f"{COMPACTION}*")):
            if is_folder(folder) and is_file(folder / READY):
                yield folder


def exchange_tables(layout: Layout, folder: Path) -> None:
    """Exchange the tables with those in ``folder``, which the caller has just made of the same rows, and holds the
    lock for."""
    for kind in ("curves", "steps", "runs"):
        exchange(folder / kind, layout.table(kind))
    _remove(folder)


def finish_compaction(layout: Layout) -> list[str]:
    """Bring tables that a kill left half exchanged back into step; return what was put aside.

    The caller holds the lock.

    Raises:
        StoreError: a shard cannot be read just now; nothing was changed.
    """
    put = []
    for folder in list(_unfinished(layout)):
        tables = {kind: layout.table(kind) for kind in KINDS}
        waiting = {kind: folder / kind for kind in KINDS if is_folder(folder / kind)}
        in_step = _in_step(tables)
        if not in_step or not all(_is_sound(kind, table) for kind, table in tables.items()):
            kinds = [] if in_step else _to_exchange(tables, waiting)
            for kind in kinds:
                exchange(folder / kind, layout.table(kind))
            if not kinds:  # whatever it is, it may be all that is left of some runs
                put += [
                    put_aside(layout, kind, folder / kind / f"{name}.parquet", LEFT)
                    for kind in KINDS
                    if is_folder(folder / kind)
                    for name in sorted(shard_names(folder / kind) - {EMPTY})
                ]
        _remove(folder)
    return put


def _remove(folder: Path) -> None:
    (folder / READY).unlink()
    flush_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _in_step(tables: Mapping[str, Path]) -> bool:
    """Return whether every shard has its partners in the other tables, and no table has others."""
    if not all(is_folder(table) for table in tables.values()):
        return False
    names = {kind: shard_names(table) - {EMPTY} for kind, table in tables.items()}
    if not names["curves"] | names["steps"] <= names["runs"]:
        return False
    for name in sorted(names["runs"]):
        try:
            needed = partners(tables["runs"] / f"{name}.parquet")
        except NotAShard:
            continue  # damage by itself: whatever the other tables hold, they need not be exchanged for it
        if any(name not in names[kind] for kind in needed):
            return False
    return True


def _is_sound(kind: str, table: Path) -> bool:
    """Return whether no shard in the folder is damaged; else what waits in ``tmp/`` may be the only whole copy."""
    for name in sorted(shard_names(table) - {EMPTY}):
        try:
            check_shard(table / f"{name}.parquet", kind, thorough=True)
        except NotAShard:
            return False
    return True


def _to_exchange(tables: Mapping[str, Path], waiting: Mapping[str, Path]) -> list[str]:
    """Return the fewest tables to exchange for the waiting ones so that all are in step, each with the same rows."""
    same = [kind for kind in waiting if _same_rows(kind, tables[kind], waiting[kind])]
    for count in range(1, len(same) + 1):
        for kinds in itertools.combinations(same, count):
            if _in_step({**tables, **{kind: waiting[kind] for kind in kinds}}):
                return list(kinds)
    return []


def _same_rows(kind: str, table: Path, waiting: Path) -> bool:
    """Return whether both folders hold sound shards only, with rows of the same keys."""
    if not is_folder(table):
        return False
    try:
        return _keys(kind, table) == _keys(kind, waiting)
    except (NotAShard, FileNotFoundError):
        return False


def _keys(kind: str, folder: Path) -> list[tuple[str, str]]:
    keys = []
    for name in sorted(shard_names(folder) - {EMPTY}):
        path = folder / f"{name}.parquet"
        check_shard(path, kind, thorough=True)
        columns = ["run_id"] if kind == "runs" else ["run_id", "step"]
        rows = read_shard(path, kind, columns)
        keys += list(zip(*(pc.cast(rows[c], "string").to_pylist() for c in columns), strict=True))
    return sorted(keys)
