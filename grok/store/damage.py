"""Whether a file that cannot be read is damaged: proven by its own bytes, or not at all.

Reading fails for many reasons that say nothing about the file: no permission, memory or
threads, a disk or a file server that refuses for once. Only bytes that were read whole,
twice, and are not those that were written make a shard damaged.
"""

from __future__ import annotations

import functools
import io
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from grok.errors import StoreError, disk_remedy
from grok.files import disk_errors
from grok.store.layout import EMPTY
from grok.store.seal import check_open
from grok.untrusted import open_file

_OUR_NAME: Final = re.compile(r"[0-9a-f]{16}")
"""Name of a shard that a commit or a compaction wrote."""


class NotAShard(Exception):
    """A file among the shards that is no shard; the message says why."""


class ShardDamaged(NotAShard):
    """A shard whose bytes are proven not to be those that were written."""


class ForeignFile(NotAShard):
    """A file that is no shard of this table: somebody else's, whatever state it is in."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tell a damaged shard, proven to be, from one that cannot be read just now, which must never be put aside.

    Raises:
        ShardDamaged: the bytes, read whole and twice, are not those of a shard.
        ForeignFile: they were never those of a shard.
        StoreError: no permission, no memory, no threads, a disk or a file server that refuses.
        FileNotFoundError: gone since it was listed.
    """
    try:
        yield
    except (FileNotFoundError, StoreError, NotAShard):
        raise
    except MemoryError as error:  # Arrow's own is one of its parsing errors too
        raise StoreError(f"reading {path}: not enough memory; nothing was changed") from error
    except (pa.ArrowException, OSError, ValueError, RuntimeError) as error:
        _judge(path, error)


def _judge(path: Path, error: Exception) -> NoReturn:
    """Raise what the file's bytes prove, after an ``error`` on reading it that may have come from anywhere."""
    first, second = _examined(path), _examined(path)
    if first is not None and second is not None and str(first) == str(second):
        raise first from error
    number = error.errno if isinstance(error, OSError) else None
    reason = disk_remedy(number, one_line(error))
    raise StoreError(
        f"reading {path}: {reason}; its bytes are whole, so nothing was changed: give the command again"
    ) from error


def _examined(path: Path) -> NotAShard | None:
    """Return what is wrong with the file's bytes, None where they are a shard's. No thread is used, no C++ input.

    Raises:
        StoreError: the bytes cannot be had, so nothing is known of them.
        FileNotFoundError: the file is gone.
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
    """Return why this process cannot have the threads that Arrow reads with, None where it can; asked once.

    Arrow waits without end for a thread that the system refuses.
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
    """Raise StoreError where the system refuses the threads that reading needs."""
    if (reason := threads_refused()) is not None:
        raise StoreError(
            f"reading {path}: the system refuses threads ({reason}); nothing was changed: raise the limit on "
            "processes (ulimit -u) or on memory (ulimit -v)"
        )


def one_line(error: BaseException) -> str:
    if isinstance(error, StoreError):
        return str(error)
    words = "".join(c if c.isprintable() else " " for c in str(error)).split()  # damaged bytes may be quoted
    return " ".join(words)[:200] or type(error).__name__
