"""Files that are either whole or not there, locks between processes, and clear words for what a disk refuses.

The rules that everything in a store rests on: a file is written under another name in
the same file system, flushed to the disk, renamed to its own name, and the folder is
flushed. A reader therefore sees all of a file or none of it, also after a power cut.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from grok.errors import StoreError, disk_remedy

LOCK_PATIENCE: Final = 600.0
"""Seconds (of the monotonic clock) to wait for another process that is writing."""


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError inside into a one-line StoreError that says what would do."""
    try:
        yield
    except OSError as error:
        reason = disk_remedy(error.errno, str(error))
        raise StoreError(f"{doing}: {reason}; what was stored before is untouched") from error


def flush_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_flushed(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a new file with ``write(file)`` and flush it to the disk; on an error nothing is left of it.

    ``write`` may also read what it wrote.
    """
    try:
        with path.open("x+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def move(source: Path, target: Path) -> None:
    """Rename ``source`` over ``target`` and flush the target's folder."""
    source.replace(target)
    flush_folder(target.parent)


def write_json(path: Path, value: Any, tmp: Path) -> None:
    """Write ``value`` as readable JSON to ``path`` at once, by way of the folder ``tmp``."""
    text = json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n"
    staged = tmp / f"{path.name}.{unique()}"
    write_flushed(staged, lambda file: file.write(text.encode()))
    move(staged, path)


def unique() -> str:
    """Return 16 hex digits that no other process or machine has, from the system's entropy."""
    return os.urandom(8).hex()


@contextmanager
def locked(path: Path, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Hold the exclusive lock on the file ``path``.

    ``flock``: released by the kernel when its holder dies, whatever killed it. Linux
    passes it to the server on NFS (version 4, or 3 with lockd), so that it also holds
    between machines there; on a mount with ``nolock`` or ``local_lock=flock`` it holds
    on one machine only.

    Raises:
        StoreError: the lock stayed with another process for ``patience`` seconds.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        start, pause = time.monotonic(), 0.001
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - start > patience:
                    holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
                    raise StoreError(
                        f"{path.parent}: another process has been writing for {patience:.0f} s (last holder: "
                        f"{holder}): end it, or wait for it, and give the command again"
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(handle)  # also unlocks


def exchange(a: Path, b: Path) -> None:
    """Swap two folders in one step: whoever lists either name sees all of the one or all of the other.

    Raises:
        OSError: this system or file system cannot (NFS, some others).
    """
    swap = 2  # RENAME_EXCHANGE of Linux's renameat2(2), RENAME_SWAP of macOS's renamex_np(2)
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        failed = libc.renamex_np(os.fsencode(a), os.fsencode(b), ctypes.c_uint(swap))
    elif hasattr(libc, "renameat2"):
        here = -100  # AT_FDCWD: paths are relative to the current folder
        failed = libc.renameat2(here, os.fsencode(a), here, os.fsencode(b), ctypes.c_uint(swap))
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    for parent in {a.parent, b.parent}:
        flush_folder(parent)


def file_identity(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is replaced: inode, size, time of change."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def remove_quietly(path: Path) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        path.unlink()
