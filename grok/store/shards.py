"""Reads and writes one shard: its tables are committed together, sealed by checksums, upgraded, or proven damaged."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import threading
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grok.config import config_columns
from grok.errors import StoreError, disk_remedy, one_line
from grok.files import disk_errors, flush_folder, move, write_flushed
from grok.store.layout import EMPTY, Layout, staged
from grok.store.rows import Shard, with_partners
from grok.store.schema import KEYS, KIND_KEY, KINDS, PARTNERS_KEY, TABLES, TEXT, schema, schema_version, upgrade
from grok.untrusted import open_file, read_json_text

# A shard's seal: checksums of all its bytes, stored in its own footer.
#
# Parquet has a checksum for every page but none for the footer. One changed bit in a footer
# can rename a column, hide rows from a reader that filters, or crash the reading process.
# So the footer's key-value metadata reserves a value for two checksums, which is filled in
# when the file is complete: one of all bytes before the footer, one of the footer with the
# value blank. Other parquet readers see one more metadata entry.
#
# Shards of older versions have no seal and are read without this check.

SEAL_KEY: Final = b"grok.seal"
_DIGITS: Final = 32
BLANK: Final = b"0" * (2 * _DIGITS)
"""The metadata's value until the file is sealed."""

_BEFORE_VALUE: Final = 2
"""Bytes between key and value in Thrift's compact protocol: the field's header, and the value's length."""

_TAIL: Final = 8
"""Bytes after the footer: its length, and ``PAR1``."""


class SealBroken(ValueError):
    """The file's bytes differ from those that were written; the message says where."""


def seal(file: IO[bytes]) -> None:
    """Fill in the checksums of a complete parquet file, opened for reading and writing."""
    start, footer = _footer(file)
    at = footer.index(SEAL_KEY) + len(SEAL_KEY) + _BEFORE_VALUE
    assert footer[at : at + len(BLANK)] == BLANK, "the value is not where Thrift's compact protocol puts it"
    body = _body_checksum(file, start)
    file.seek(start + at)
    file.write(body + _footer_checksum(footer, body))
    file.seek(0, 2)


def check_seal(path: Path, thorough: bool) -> bool:
    """Compare the footer's checksum with its bytes, and with ``thorough`` also the checksum of the other bytes.

    Returns whether the file has a seal.

    Raises:
        SealBroken: the bytes differ from those that were written, or the file is not parquet.
        OSError: the file cannot be read.
    """
    with open_file(path, follow=True) as file:
        return check_open(file, thorough)


def check_open(file: IO[bytes], thorough: bool) -> bool:
    """As :func:`check_seal`, for a file that is open for reading."""
    start, footer = _footer(file)
    key = footer.find(SEAL_KEY)
    if key < 0:
        return False
    at = key + len(SEAL_KEY) + _BEFORE_VALUE
    value = footer[at : at + len(BLANK)]
    blank = footer[:at] + BLANK + footer[at + len(BLANK) :]
    if value[_DIGITS:] != _footer_checksum(blank, value[:_DIGITS]):
        raise SealBroken("the bytes of its footer differ from those that were written")
    if thorough and value[:_DIGITS] != _body_checksum(file, start):
        raise SealBroken("its bytes differ from those that were written")
    return True


def _footer(file: IO[bytes]) -> tuple[int, bytes]:
    """Return the footer's offset in the file, and its bytes."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or not 0 < length <= min(size - _TAIL, _LARGEST_FOOTER):
        raise SealBroken("it does not end like a parquet file: it is truncated, or another kind of file")
    start = size - _TAIL - length
    file.seek(start)
    return start, file.read(length)


def _footer_checksum(blank: bytes, body: bytes) -> bytes:
    return hashlib.sha256(blank + body).hexdigest()[:_DIGITS].encode()


def _body_checksum(file: IO[bytes], length: int) -> bytes:
    checksum, left = hashlib.sha256(), length
    file.seek(0)
    while left and (part := file.read(min(left, 1 << 20))):
        checksum.update(part)
        left -= len(part)
    return checksum.hexdigest()[:_DIGITS].encode()


# Decides whether a file that cannot be read is damaged (only the file's bytes can prove it), and whether a text is.
#
# Reading also fails for reasons outside the file: no permission, too little memory, too few
# threads, a temporary error of a disk or a file server. A shard counts as damaged only when
# its bytes were read whole, twice, and differ from those that were written.

_OUR_NAME: Final = re.compile(r"[0-9a-f]{16}")
"""Name of a shard that a commit or a compaction wrote."""

_NUMBER: Final = r"(-?[0-9]{1,18}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?|null)"
_ENTRY: Final = rf'"[ !#-\[\]-~]{{1,100}}": ?{_NUMBER}'
_PLAIN_MAP: Final = rf"^\{{({_ENTRY}(, ?{_ENTRY})*)?\}}$"
"""Nearly every map of numbers: Arrow finds these, without a Python object for each."""
_SHORT: Final = 10_000
"""Characters of a text that cannot have too many entries."""


MOST_UNPACKED: Final = 1 << 30
"""Bytes of rows that a shard of any size may hold."""
MOST_TIMES: Final = 200
"""A larger one holds at most so many times the bytes of its file; those that are written hold about 20 times."""
_LARGEST_FOOTER: Final = 1 << 27
"""Bytes: the footer of a million rows has a thousandth of it."""


class NotAShard(Exception):
    """A file in a table's folder that cannot be used as a shard; the message says why."""


class ShardDamaged(NotAShard):
    """A shard of this store whose bytes differ from those that were written."""


class ForeignFile(NotAShard):
    """A file that this store did not write as a shard of this table, whole or not."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of the block into one of those below.

    A shard that is only unreadable at the moment must never be put into quarantine.

    Raises:
        ShardDamaged: the bytes, read whole and twice, are not those that were written.
        ForeignFile: the file was never a shard of this store.
        StoreError: no permission, no memory, no threads, or an error of the disk or file server.
        FileNotFoundError: the file was removed after it was listed.
    """
    try:
        try:
            yield
        except (
            FileNotFoundError,
            StoreError,
            NotAShard,
            MemoryError,
        ):  # Arrow's memory error is an ArrowException, too
            raise
        except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
            _judge(path, error)
    except MemoryError as error:
        raise StoreError(f"reading {path}: not enough memory; nothing was changed") from error


def _judge(path: Path, error: Exception) -> NoReturn:
    """Read the file's bytes after an ``error`` of unknown cause; raise NotAShard if they prove it, else StoreError."""
    first, second = _examined(path), _examined(path)
    if first is not None and second is not None and str(first) == str(second):
        raise first from error
    number = error.errno if isinstance(error, OSError) else None
    reason = disk_remedy(number, one_line(error))
    raise StoreError(
        f"reading {path}: {reason}; its bytes are whole, so nothing was changed: run the command again"
    ) from error


def _examined(path: Path) -> NotAShard | None:
    """Return what is wrong with the file's bytes, or None where they are a whole shard.

    Reads with Python and one thread, so that an error of Arrow's threads or files has no influence.

    Raises:
        StoreError: the bytes cannot be read, so nothing is known of them.
        FileNotFoundError: the file was removed.
    """
    try:
        with open_file(path, follow=True) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, not from memory
            _footer(file)  # without one there may be any number of bytes
            file.seek(0)
            whole = io.BytesIO(file.read())
    except FileNotFoundError:
        raise
    except SealBroken as error:
        return _damage(path, False, error)
    except OSError as error:
        with disk_errors(f"reading {path}", kept="nothing was changed"):
            raise
        raise AssertionError from error
    sealed = False
    try:
        sealed = check_open(whole, thorough=True)
        with pq.ParquetFile(whole, page_checksum_verification=True, pre_buffer=False) as shard:
            for group in range(shard.num_row_groups):
                shard.read_row_group(group, use_threads=False)
    except MemoryError:  # before ArrowException: Arrow's memory error is both
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        return _damage(path, sealed, error)
    return None


def _damage(path: Path, sealed: bool, error: Exception) -> NotAShard:
    ours = path.stem == EMPTY or _OUR_NAME.fullmatch(path.stem) is not None
    return (ShardDamaged if ours and not sealed else ForeignFile)(one_line(error))


def refuse_bomb(path: Path, metadata: pq.FileMetaData) -> None:
    """Raise ForeignFile for a file of few bytes that would fill the memory: few values many times, or long ones.

    Only the footer is read, and where its sizes do not settle it, the dictionaries.
    """
    room = max(MOST_UNPACKED, MOST_TIMES * path.stat().st_size)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    unpacked = sum(group.total_byte_size + 8 * group.num_rows * group.num_columns for group in groups)
    if unpacked + sum(group.num_rows * group.total_byte_size for group in groups) > room >= unpacked:
        unpacked += _repeated(path, groups)
    if unpacked > room:
        raise ForeignFile(f"its {path.stat().st_size:,} bytes would become {unpacked:,}, expected at most {room:,}")


def _repeated(path: Path, groups: Sequence[pq.RowGroupMetaData]) -> int:
    """Return the bytes of all texts that stand once in a dictionary and many times in the rows."""
    chunks = (group.column(column) for group in groups for column in range(group.num_columns))
    texts = {c.path_in_schema for c in chunks if c.has_dictionary_page and c.physical_type == "BYTE_ARRAY"}
    total = 0
    for name in texts:
        with pq.ParquetFile(path, read_dictionary=[name], pre_buffer=False) as file:
            for group in range(len(groups)):
                for chunk in file.read_row_group(group, columns=[name]).column(0).chunks:
                    lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
                    total += pc.sum(lengths.cast("int64")).as_py() or 0
    return total


@functools.cache
def threads_refused() -> str | None:
    """Return why the system refuses the threads that Arrow reads with, or None; tried once per process.

    Arrow waits forever for a thread that the system refuses.
    """
    release, needed = threading.Event(), pa.cpu_count() + pa.io_thread_count()
    with ThreadPoolExecutor(needed) as pool:
        try:
            for _ in range(needed):
                pool.submit(release.wait)
        except RuntimeError as error:
            return str(error)
        finally:
            release.set()
    return None


def refuse_without_threads(path: Path) -> None:
    """Raise StoreError where the system refuses the threads that reading needs (see :func:`threads_refused`)."""
    if (reason := threads_refused()) is not None:
        raise StoreError(
            f"reading {path}: the system refuses threads ({reason}); nothing was changed: raise the limit on "
            "processes (ulimit -u) or on memory (ulimit -v)"
        )


@functools.cache
def json_columns(kind: str) -> dict[str, Any]:
    """Return the columns of table ``kind`` that hold JSON text, each with the type of its value."""
    if kind == "curves":
        return dict.fromkeys(("block_norms", "metrics"), dict[str, float | None])
    if kind != "runs":
        return {}
    settings = {f"config.{name}": hint for name, hint in config_columns().items()}
    typed = {name: hint for name, hint in settings.items() if typing.get_origin(hint) in (dict, list)}
    return {"layers": dict[str, int], "own_code": dict[str, str], **typed}


def odd_texts(kind: str, table: pa.Table) -> dict[str, tuple[pa.Array, str]]:
    """Return the columns of ``table`` with texts that are not JSON of their type: which texts, and why the first one.

    A sealed shard of another program may have them; no reader of a column then meets what it cannot take.
    """
    odd = {}
    for name, hint in json_columns(kind).items():
        if name not in table.column_names:
            continue
        texts = table[name].drop_null()
        if kind == "curves":
            plain = pc.and_(pc.match_substring_regex(texts, _PLAIN_MAP), pc.less(pc.binary_length(texts), _SHORT))
            texts = texts.filter(pc.invert(plain))
        reasons = {text: reason for text in pc.unique(texts).to_pylist() if (reason := _oddness(text, hint))}
        if reasons:
            odd[name] = (pa.array(reasons, pa.string()), next(iter(reasons.values())))
    return odd


def _oddness(text: str, hint: Any) -> str | None:
    try:
        read_json_text(text, hint)
    except ValueError as error:
        return one_line(error)
    return None


# Reads and writes one shard: its tables are committed together, checked by checksums, upgraded from older schemas.

ROWS_PER_GROUP: Final = 65_536
"""Rows of a row group: few enough that a reader of some runs skips most of a compacted shard."""

FEW_ROWS: Final = 1_000
"""Up to this number of rows the codec is snappy: zstd would cost much time per column and save few bytes."""


def write_parquet(table: pa.Table, file: IO[bytes]) -> None:
    """Write ``table`` with a checksum on every page, and seal it (:mod:`grok.store.shards`).

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


def write_table(path: Path, table: pa.Table) -> None:
    """Write ``table`` as a new file, and flush it."""
    write_flushed(path, lambda file: write_parquet(table, file))


def write_shard(layout: Layout, name: str, shard: Shard) -> None:
    """Add a shard to the store; the last rename, of its runs table, is the commit.

    All tables are written and flushed before the first rename. The caller holds the lock.
    After an error no file of the shard is left in the tables' folders.
    """
    parts = shard.written()
    paths = {kind: staged(layout, f"{kind}-{name}") for kind in parts}
    moved: list[Path] = []
    try:
        for kind, table in parts.items():
            write_table(paths[kind], table)
        for kind in parts:
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
    write_table(path, table)
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
            write_table(path, table)
            removal.append((path, layout.shard(kind, name)))
    return removal


def remove_staged(removal: Removal) -> None:
    """Carry out a staged removal; the shard's other runs stay readable at every moment."""
    for source, target in removal:
        if source is not None:
            move(source, target)
        else:
            target.unlink(missing_ok=True)
            flush_folder(target.parent)


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
            if not all(pa.types.is_primitive(column) or column == TEXT for column in file.schema_arrow.types):
                raise ForeignFile("it has columns of lists, maps or bytes")
            refuse_bomb(path, file.metadata)
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
    rows: int
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
        return Facts(bool(file.schema_arrow.equals(schema(kind))), file.metadata.num_rows, _partners(file), run_ids)


def _partners(file: pq.ParquetFile) -> tuple[str, ...]:
    text = (file.metadata.metadata or {}).get(PARTNERS_KEY, b"").decode(errors="replace")
    return tuple(kind for kind in text.split(",") if kind in ("curves", "steps"))


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


def joined(kind: str, tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all these tables of a kind, ordered by their key."""
    full = schema(kind)
    whole = pa.concat_tables([full.empty_table(), *(t.replace_schema_metadata(full.metadata) for t in tables)])
    return whole.combine_chunks().sort_by([(name, "ascending") for name in KEYS[kind]])


def concat(shards: Sequence[Shard]) -> Shard:
    """Return one shard with the rows of all, ordered by run and step."""
    return Shard(*(joined(kind, [shard.table(kind) for shard in shards]) for kind in KINDS))


def without_runs(shard: Shard, run_ids: Collection[str]) -> Shard:
    """Return the shard without these runs."""
    return shard.only(set(shard.runs["run_id"].to_pylist()) - set(run_ids))
