"""Reads a store into pandas frames, also while other processes write; writes nothing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from grok.errors import StoreError, nearest
from grok.files import disk_errors
from grok.processes import Owner, alive_here
from grok.store import shards
from grok.store.designs import KEY, unsound
from grok.store.layout import Layout, StoreGone, read_marker, refuse_missing, strangers
from grok.store.recovery import unfinished_compactions
from grok.store.rows import Shard, filter_runs, repeats
from grok.store.schema import KEYS, TABLES, schema
from grok.untrusted import read_json

if TYPE_CHECKING:
    import pandas as pd

OWNER: Final = ".owner"
"""In the folder of a running sweep: which process it belongs to."""


def is_owner_alive(folder: Path) -> bool | None:
    """Return whether the process of a sweep's ``folder`` is alive; None if that cannot be known from this machine."""
    try:
        return alive_here(Owner.from_json(read_json(folder / OWNER)))
    except (OSError, ValueError):
        return None


T = TypeVar("T")

TOGETHER: Final = 200
"""Most shards in memory before their rows are joined: until then each column of a shard takes some kilobytes."""
_TRIES: Final = 200
"""Number of attempts, 10 ms apart, to list and read the shards while compactions move them."""


class DamagedShardWarning(UserWarning):
    """A file was left out because it is damaged, foreign or a copy; the next writer quarantines shards and copies."""


def open_store(path: str | Path) -> Store:
    """Open the store at ``path`` for reading. Neither this call nor any method of the store writes.

    Raises:
        StoreError: no store is at ``path``, or it was written by a newer schema.
    """
    layout = Layout(Path(path))
    read_marker(layout)
    shards.refuse_without_threads(layout.root)
    for folder in (layout.table(kind) for kind in TABLES):
        for entry in strangers(folder) if folder.is_dir() else []:
            if entry.suffix == ".parquet":
                warnings.warn(f"left out {entry}: not a file, or a link to none", DamagedShardWarning, stacklevel=2)
    return Store(layout)


class Store:
    """A store for reading. Every call sees the runs committed before it, also while a sweep is writing.

    Integer columns with nulls have pandas' type ``Int64``, never floats. Damaged shards
    are left out with a :class:`DamagedShardWarning` that names the file.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def runs(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per run, ordered by ``run_id``; all columns, or ``run_id`` and ``columns``.

        Raises:
            StoreError: an unknown column, or the shards cannot be read at the moment.
        """
        return to_pandas("runs", self.table("runs", None, columns))

    def curves(self, run_ids: Iterable[str] | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per evaluation, ordered by run and step, of all runs or those in ``run_ids``.

        The frame has all columns, or ``run_id``, ``step`` and ``columns``.

        Raises:
            StoreError: as for :meth:`runs`.
        """
        return to_pandas("curves", self.table("curves", run_ids, columns))

    def steps(self, run_ids: Iterable[str] | None = None, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per optimiser step of a language model; arguments and errors as for :meth:`curves`."""
        return to_pandas("steps", self.table("steps", run_ids, columns))

    def designs(self) -> pd.DataFrame:
        """Return what each run was for: one row per (design_id, run_id, role, unit), in the order of planning.

        Rows that this version cannot understand are left out with a warning; nobody knows what their runs were for.
        """
        table = self.designs_table()
        odd = unsound(table)
        if odd:
            row, why = next(iter(odd.items()))
            line = f"left out {len(odd)} rows of {self.layout.table('designs')}: run {table['run_id'][row]}: {why}"
            warnings.warn(line, DamagedShardWarning, stacklevel=2)
            table = table.filter(pa.array([row not in odd for row in range(table.num_rows)], pa.bool_()))
        return to_pandas("designs", table)

    def designs_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the Arrow table behind :meth:`designs`, or its key and ``columns``; odd rows are not left out.

        A store that lost the folder has no rows, with a warning.
        """
        table = self.table("designs", None, columns)
        return table if columns is not None else table.sort_by([(name, "ascending") for name in ("planned_at", *KEY)])

    def statuses(self) -> dict[str, str]:
        """Return the status of every stored run by ``run_id``; reads two columns."""
        table = self._read("runs", None, ["run_id", "status"])
        return dict(zip(table["run_id"].to_pylist(), table["status"].to_pylist(), strict=True))

    def run_ids(self, status: str | None = None) -> set[str]:
        """Return the ``run_id`` of every stored run, or of those with one status; reads two columns."""
        return {run_id for run_id, s in self.statuses().items() if status in (None, s)}

    def run(self, prefix: str) -> pd.Series:
        """Return the row of the one run whose ``run_id`` begins with ``prefix``.

        Raises:
            StoreError: no run, or more than one, has this prefix.
        """
        name = self.named(prefix, self.run_ids(), "run")
        frame = to_pandas("runs", self.table("runs", [name], None))
        if frame.empty:
            raise StoreError(f"run {name} cannot be read: `grok store verify {self.layout.root}` says why")
        return frame.iloc[0]

    def named(self, prefix: str, names: Collection[str], what: str) -> str:
        """Return the one of ``names`` that begins with ``prefix``; ``what`` they are: ``run`` or ``design``.

        Raises:
            StoreError: none has this prefix, or more than one.
        """
        matching = sorted(name for name in names if name.startswith(prefix))
        if prefix in matching:  # the name of a branch begins with its parent's
            return prefix
        if not matching:
            raise StoreError(f"no {what} in {self.layout.root} begins with {prefix!r}{nearest(prefix, names)}")
        if len(matching) > 1:
            some = ", ".join(matching[:4]) + (", ..." if len(matching) > 4 else "")
            raise StoreError(
                f"{len(matching)} {what}s begin with {prefix!r} ({some}): give more characters of the {what}_id"
            )
        return matching[0]

    def table(self, kind: str, run_ids: Iterable[str] | None, columns: Sequence[str] | None) -> pa.Table:
        """Return the Arrow table behind :meth:`runs`, :meth:`curves`, :meth:`steps` and :meth:`designs`, by its key.

        Raises:
            StoreError: an unknown column.
        """
        names, keys = schema(kind).names, KEYS[kind]
        if columns is not None:
            for column in columns:
                if column not in names:
                    raise StoreError(f"{kind} has no column {column!r}{nearest(column, names)}")
            names = [name for name in names if name in {*columns, *keys}]
        wanted = None if run_ids is None else pa.array(sorted(set(run_ids)), pa.string())
        table = self._read(kind, wanted, names)
        first = [name for name in (*keys, "planned_at") if name in table.column_names]  # the row that was planned first
        table = self._readable(kind, self._once(kind, table.sort_by([(name, "ascending") for name in first]), keys))
        return table if columns is None else table.select(list(dict.fromkeys([*keys, *columns])))

    def _once(self, kind: str, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Return the sorted table with every key once; a shard that was copied into the folder repeats its keys."""
        again = repeats(table, keys)
        count = pc.sum(again).as_py()
        if not count:
            return table
        where = f"{self.layout.table(kind)}: {count} rows are copies of others"
        warnings.warn(f"{where} and are left out; the next writer quarantines the copies", DamagedShardWarning, 2)
        return table.filter(pc.invert(again))

    def _readable(self, kind: str, table: pa.Table) -> pa.Table:
        """Return ``table`` without texts that are not JSON of their column's type: null in curves, else without rows.

        A row of runs or designs is left out whole, because without its settings it would pass for another one.
        """
        for name, (texts, reason) in shards.odd_texts(kind, table).items():
            odd = pc.fill_null(pc.is_in(table[name], value_set=texts), False)
            where = f"{self.layout.table(kind)}: {name} of {pc.sum(odd).as_py()} rows is not as it was written"
            left = "the values are left out" if kind == "curves" else "they are left out"
            warnings.warn(f"{where} ({reason}); {left}, `grok store verify` names them", DamagedShardWarning, 3)
            if kind != "curves":
                table = table.filter(pc.invert(odd))
            else:
                values = pc.if_else(odd, pa.scalar(None, pa.string()), table[name])
                table = table.set_column(table.column_names.index(name), table.schema.field(name), values)
        return table

    def shards(self) -> Iterator[Shard]:
        """Yield every shard, upgraded to the current columns; damaged shards are left out with a warning."""
        for name in sorted(self._consistent(lambda: self.layout.names("runs"))):
            try:
                yield shards.read_whole(self.layout, name)
            except shards.NotAShard as problem:
                _warn(self.layout.shard("runs", name), problem)

    def _read(self, kind: str, wanted: pa.Array | None, columns: list[str]) -> pa.Table:
        """Read shard by shard, upgrading older ones and leaving damaged ones out."""

        def once() -> pa.Table:
            tables = [pa.schema([schema(kind).field(name) for name in columns]).empty_table()]
            for name in sorted(self._visible(kind)):
                path = self.layout.shard(kind, name)
                try:
                    table = shards.read_shard(path, kind, columns).replace_schema_metadata(None)
                except shards.NotAShard as problem:
                    _warn(path, problem)
                    continue
                table = table if wanted is None else filter_runs(table, wanted)
                tables.append(table.cast(tables[0].schema))
                if len(tables) > TOGETHER:
                    tables = [pa.concat_tables(tables).combine_chunks()]
            return pa.concat_tables(tables)

        return self._consistent(once)

    def _visible(self, kind: str) -> set[str]:
        """Return the names of the table's shards whose runs are committed."""
        if kind == "designs" and not self.layout.table(kind).is_dir():
            lost = f"{self.layout.table(kind)} is missing: nobody knows what the runs were for"
            warnings.warn(lost, DamagedShardWarning, stacklevel=2)
            return set()
        if kind in ("runs", "designs") or unfinished_compactions(self.layout):
            # During an unfinished compaction each table is complete, but the tables may
            # have different shards, so a missing runs shard does not mean an orphan.
            return self.layout.names(kind)
        before = self.layout.names("runs")
        names = self.layout.names(kind)
        if not before <= self.layout.names("runs") or unfinished_compactions(self.layout):
            raise FileNotFoundError("shards were moved while being listed")
        return names & before

    def _consistent(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``, called again while files vanish between listing and reading."""
        for _ in range(_TRIES):
            try:
                return read()
            except MemoryError as error:
                raise StoreError(f"reading {self.layout.root}: not enough memory; nothing was changed") from error
            except FileNotFoundError:
                if not self.layout.marker.exists():
                    raise StoreGone(self.layout.root) from None
                time.sleep(0.01)
            except OSError:
                with disk_errors(f"reading {self.layout.root}", kept="nothing was changed"):
                    raise
        refuse_missing(self.layout)
        raise StoreError(f"{self.layout.root} changes faster than it can be read: try again")


def _warn(path: Path, problem: shards.NotAShard) -> None:
    warnings.warn(f"left out {path}: {problem}", DamagedShardWarning, stacklevel=2)


def to_pandas(kind: str, table: pa.Table) -> pd.DataFrame:
    """Return ``table`` as a frame; nullable integers and flags become ``Int64`` and ``boolean``."""
    import pandas as pd

    table = table.replace_schema_metadata(None)
    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    needed = [n for n in table.column_names if not schema(kind).field(n).nullable]
    fast = table.select(needed).to_pandas()
    rest = table.drop_columns(needed).to_pandas(types_mapper=nullable.get)
    frame: pd.DataFrame = pd.concat([fast, rest], axis=1)[table.column_names]
    return frame
