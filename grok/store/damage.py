"""Decides whether a file that cannot be read is damaged (only the file's bytes can prove it), and whether a text is.

Reading also fails for reasons outside the file: no permission, too little memory, too few
threads, a temporary error of a disk or a file server. A shard counts as damaged only when
its bytes were read whole, twice, and differ from those that were written.
"""

from __future__ import annotations

import functools
import io
import os
import re
import threading
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grok.config import config_columns
from grok.errors import StoreError, disk_remedy, one_line
from grok.files import disk_errors
from grok.store.layout import EMPTY
from grok.store.seal import check_open
from grok.untrusted import open_file, read_json_text

_OUR_NAME: Final = re.compile(r"[0-9a-f]{16}")
"""Name of a shard that a commit or a compaction wrote."""

_NUMBER: Final = r"(-?[0-9]{1,18}(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?|null)"
_ENTRY: Final = rf'"[ !#-\[\]-~]{{1,100}}": ?{_NUMBER}'
_PLAIN_MAP: Final = rf"^\{{({_ENTRY}(, ?{_ENTRY})*)?\}}$"
"""Nearly every map of numbers: Arrow finds these, without a Python object for each."""
_SHORT: Final = 10_000
"""Characters of a text that cannot have too many entries."""


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
        yield
    except (FileNotFoundError, StoreError, NotAShard):
        raise
    except MemoryError as error:  # before ArrowException: Arrow's memory error is both
        raise StoreError(f"reading {path}: not enough memory; nothing was changed") from error
    except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
        _judge(path, error)


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
    sealed = False
    try:
        with open_file(path, follow=True) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, not from memory
            whole = io.BytesIO(file.read())
    except FileNotFoundError:
        raise
    except MemoryError as error:
        raise StoreError(f"reading {path}: not enough memory; nothing was changed") from error
    except OSError as error:
        with disk_errors(f"reading {path}", kept="nothing was changed"):
            raise
        raise AssertionError from error
    try:
        sealed = check_open(whole, thorough=True) is not None
        with pq.ParquetFile(whole, page_checksum_verification=True, pre_buffer=False) as shard:
            for group in range(shard.num_row_groups):
                shard.read_row_group(group, use_threads=False)
    except MemoryError as error:
        raise StoreError(f"reading {path}: not enough memory; nothing was changed") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        ours = path.stem == EMPTY or _OUR_NAME.fullmatch(path.stem) is not None
        return (ShardDamaged if ours and not sealed else ForeignFile)(one_line(error))
    return None


@functools.cache
def threads_refused() -> str | None:
    """Return why the system refuses the threads that Arrow reads with, or None; tried once per process.

    Arrow waits forever for a thread that the system refuses.
    """
    release = threading.Event()
    threads = [threading.Thread(target=release.wait) for _ in range(pa.cpu_count() + pa.io_thread_count())]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        return str(error)
    finally:
        release.set()
        for thread in started:
            thread.join()
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
        texts = pc.unique(table[name].drop_null()) if kind != "curves" else table[name].drop_null()
        if kind == "curves":
            plain = pc.and_(pc.match_substring_regex(texts, _PLAIN_MAP), pc.less(pc.binary_length(texts), _SHORT))
            texts = pc.unique(texts.filter(pc.invert(plain)))
        reasons = {text: reason for text in texts.to_pylist() if (reason := _oddness(text, hint))}
        if reasons:
            odd[name] = (pa.array(reasons, pa.string()), next(iter(reasons.values())))
    return odd


def _oddness(text: str, hint: Any) -> str | None:
    try:
        read_json_text(text, hint)
    except ValueError as error:
        return one_line(error)
    return None
