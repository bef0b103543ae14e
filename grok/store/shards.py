"""One shard on the disk: written whole, read with its checksums, upgraded from older schemas."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from grok.errors import StoreError
from grok.files import disk_errors, move, write_flushed
from grok.store.layout import EMPTY, Layout, staged
from grok.store.rows import Shard, with_partners
from grok.store.schema import KINDS, PARTNERS_KEY, schema, schema_version
from grok.store.seal import BLANK, SEAL_KEY, check_seal, seal
from grok.store.versions import upgrade

ROWS_PER_GROUP: Final = 65_536
"""Small enough that a reader of a few runs skips most of a compacted shard."""

FEW_ROWS: Final = 1_000
"""Up to here zstd costs more time per column than it saves bytes."""


REFUSED: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN}
)
"""Errors that tell of this process or of a connection, not of the file: it may be as good as ever."""


class ShardDamaged(Exception):
    """A file among the shards that is not a whole shard; the message says why."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell a damaged file from one that cannot be read just now, which must never be put aside.

    Raises:
        ShardDamaged: the bytes are not those of a shard.
        StoreError: no permission, no memory, too many open files, a file server that is away.
        FileNotFoundError: gone since it was listed.
    """
    try:
        yield
    except (FileNotFoundError, StoreError, ShardDamaged):
        raise
    except MemoryError as error:  # Arrow's own is one of its parsing errors too
        raise StoreError(f"reading {path}: not enough memory; nothing was changed") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in REFUSED:
            with disk_errors(f"reading {path}"):
                raise
        raise ShardDamaged(_one_line(error)) from error


def write_parquet(table: pa.Table, file: IO[bytes]) -> None:
    """Write ``table`` with a checksum on every page, and sealed: with checksums of all its bytes in the footer.

    Most shards are small, and the runs table has some 200 columns, so what costs per
    column is left out: dictionaries and statistics that nobody filters by, and Arrow's
    own copy of the schema.
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
    """Add a shard to the store; the rename of its runs table, the last one, is the commit.

    All tables are written and flushed before the first one gets its name. The caller
    holds the lock. On an error nothing of the shard is left in the tables.
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
    """Put ``table`` in the place of the shard's table of this kind, at once."""
    path = staged(layout, f"{kind}-{name}")
    write_flushed(path, lambda file: write_parquet(table, file))
    move(path, layout.shard(kind, name))


def ensure_readable(layout: Layout) -> None:
    """Keep every table readable as a whole: a shard without rows stands in where there is no other."""
    for kind in KINDS:
        empty = layout.shard(kind, EMPTY)
        if layout.names(kind):
            empty.unlink(missing_ok=True)
        elif not empty.exists():
            replace_table(layout, kind, EMPTY, schema(kind).empty_table())


def open_shard(path: Path) -> pq.ParquetFile:
    """Open a shard after reading its footer.

    Raises:
        ShardDamaged: truncated, not parquet, or not a shard of a store.
        StoreError: written by a newer schema, or the system refuses to read it.
        FileNotFoundError: gone since it was listed.
    """
    with reading(path):
        check_seal(path, thorough=False)  # before the library sees it: some damage to a footer would end the process
        file = pq.ParquetFile(path, page_checksum_verification=True)
        schema_version(file.metadata.metadata, path)
    return file


def read_shard(path: Path, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the shard's table with the current columns (or some of them), whatever version wrote it.

    Raises: see :func:`open_shard`.
    """
    with open_shard(path) as file:
        current = file.schema_arrow.equals(schema(kind))
        with reading(path):
            if current and columns is not None:
                return file.read(columns=list(columns)).select(list(columns))
            table = file.read().replace_schema_metadata(file.metadata.metadata)
    try:
        table = upgrade(kind, table)
    except (pa.ArrowException, KeyError) as error:
        raise ShardDamaged(f"not a table of {kind}: {_one_line(error)}") from error
    return table if columns is None else table.select(list(columns))


def check_shard(path: Path, kind: str, thorough: bool) -> bool:
    """Check the footer, or with ``thorough`` every byte; return whether its columns are this version's.

    Raises: see :func:`open_shard`.
    """
    with open_shard(path) as file, reading(path):
        if thorough and not check_seal(path, thorough=True):
            for group in range(file.num_row_groups):
                file.read_row_group(group)
        return bool(file.schema_arrow.equals(schema(kind)))


def partners(path: Path) -> list[str]:
    """Return the tables that must have a shard of the same name as this runs shard."""
    with open_shard(path) as file:
        text = (file.metadata.metadata or {}).get(PARTNERS_KEY, b"").decode()
    return [kind for kind in text.split(",") if kind]


def read_whole(layout: Layout, name: str) -> Shard:
    """Return all three tables of a shard.

    Raises:
        ShardDamaged: one of them is damaged or missing.
    """
    tables = {"runs": read_shard(layout.shard("runs", name), "runs")}
    needed = partners(layout.shard("runs", name))
    for kind in ("curves", "steps"):
        path = layout.shard(kind, name)
        if kind in needed and not path.exists():
            raise ShardDamaged(f"its {kind} are missing")
        tables[kind] = read_shard(path, kind) if path.exists() else schema(kind).empty_table()
    return Shard(**tables)


def concat(shards: Sequence[Shard]) -> Shard:
    """Return one shard of all, ordered by run and step."""

    def joined(kind: str, order: list[Any]) -> pa.Table:
        return pa.concat_tables([s.table(kind) for s in shards]).combine_chunks().sort_by(order)

    by_step = [("run_id", "ascending"), ("step", "ascending")]
    return Shard(joined("runs", [("run_id", "ascending")]), joined("curves", by_step), joined("steps", by_step))


def without_runs(shard: Shard, run_ids: Collection[str]) -> Shard:
    """Return the shard without these runs."""
    return shard.only(set(shard.runs["run_id"].to_pylist()) - set(run_ids))


def _one_line(error: BaseException) -> str:
    if isinstance(error, StoreError):
        return str(error)
    words = "".join(c if c.isprintable() else " " for c in str(error)).split()  # damaged bytes may be quoted
    return " ".join(words)[:200] or type(error).__name__
