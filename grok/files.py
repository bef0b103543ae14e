"""Files and folders that are either whole or not there, locks between processes, clear words for a disk's refusal.

The rules that everything on the disk rests on: a file or folder is written under another
name in the same file system, flushed to the disk, renamed to its own name, and the folder
that holds it is flushed. A reader therefore sees all of it or nothing, also after a power
cut. What a killed process left unfinished carries that process in its name; the next
writer removes it once the process is gone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TextIO

from grok.errors import GrokError, StoreError, disk_remedy
from grok.processes import host_in_names, start_of

TRIES: Final = 3
"""Times to write a folder that another process clears away meanwhile: it has no reason to do so twice."""

LARGEST_NOTE: Final = 1000
"""Bytes that a lock's file may hold: who took it last. A larger one is something else, and is not written over."""

_UNFINISHED: Final = ".tmp-"
"""In the name of every folder that is being written or removed."""

_WRITER: Final = re.compile(r"(.+)\+(\d+)\+([\d.]*)\+[0-9a-f]{8}")
"""What follows it: host, process and its start; nothing of this kind where anybody may remove the folder."""

LOCK_PATIENCE: Final = 600.0
"""Seconds (of the monotonic clock) to wait for another process that is writing."""


@contextmanager
def disk_errors(
    doing: str, kind: type[GrokError] = StoreError, kept: str = "what was stored before is untouched"
) -> Iterator[None]:
    """Turn an OSError inside into a one-line error of this ``kind`` that says what would do."""
    try:
        yield
    except OSError as error:
        reason = disk_remedy(error.errno, str(error))
        raise kind(f"{doing}: {reason}; {kept}") from error


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


def replace_text(path: Path, text: str) -> None:
    """Put ``text`` in the place of a file at once, unflushed: for what no longer counts after a power cut."""
    staged = path.with_name(f".{path.name}.{unique()}")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


def unique() -> str:
    """Return 16 hex digits that no other process or machine has, from the system's entropy."""
    return os.urandom(8).hex()


class FolderCrossed(OSError):
    """Another process took or cleared the folder that this one was writing."""


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` to write in; at the end it takes the name of ``target``.

    The old ``target`` is replaced, and who has its files open keeps reading them. On an
    error nothing is left of the new folder, and what was there is untouched. The folder that
    holds it is made when missing, not those around.

    Raises:
        FolderCrossed: another process did the same at the same moment.
        OSError: the disk refuses.
    """
    pid = os.getpid()
    folder = _beside(target, f"{host_in_names()}+{pid}+{start_of(pid) or ''}+{os.urandom(4).hex()}")
    try:
        target.parent.mkdir(exist_ok=True)
        folder.mkdir()
        yield folder
        _flush_tree(folder)
        _put_in_place(folder, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY) or not folder.exists():
            raise FolderCrossed(*error.args, *([error.filename] if error.filename else [])) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_folder(target: Path, write: Callable[[Path], object]) -> None:
    """Write a folder whole: ``write(folder)`` fills one beside ``target``, which then takes its name.

    What another process clears away meanwhile is no fault of the disk, and is written again.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            with staged_folder(target) as folder:
                write(folder)
            return
        except FolderCrossed:
            if not tries_left:
                raise


def discard_folder(path: Path) -> None:
    """Remove a folder: by a rename first, so that no half of it is ever taken for a whole one."""
    doomed = _beside(path, f"old-{os.urandom(4).hex()}")
    with suppress(FileNotFoundError):
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clear_unfinished(parent: Path, target: Path | None = None, *, everything: bool = False) -> None:
    """Remove the unfinished folders in ``parent`` whose writers are gone.

    Args:
        parent: where they are.
        target: only those that were to become this folder.
        everything: also those that somebody may still be writing, who then loses the whole
            of it and never a half.
    """
    prefix = "" if target is None else f".{target.name}{_UNFINISHED}"
    for path in list(parent.iterdir()):
        if is_unfinished(path) and path.name.startswith(prefix) and (everything or not _is_being_written(path.name)):
            with suppress(OSError):
                discard_folder(path)


def is_unfinished(path: Path) -> bool:
    """Return whether ``path`` has the name of a folder that is being written or removed."""
    return _UNFINISHED in path.name


def _beside(target: Path, words: str) -> Path:
    return target.with_name(f".{target.name.partition(_UNFINISHED)[0].lstrip('.')}{_UNFINISHED}{words}")


def _is_being_written(name: str) -> bool:
    """Return whether the process that writes the folder may be alive: on another machine nobody can tell."""
    writer = _WRITER.fullmatch(name.partition(_UNFINISHED)[2])
    if writer is None:
        return False
    return writer[1] != host_in_names() or (start_of(int(writer[2])) or "") == writer[3]


def _put_in_place(folder: Path, target: Path) -> None:
    replaced = _beside(target, f"old-{os.urandom(4).hex()}")
    with suppress(FileNotFoundError):
        target.rename(replaced)
    try:
        folder.rename(target)
    except OSError:
        with suppress(OSError):  # what was there keeps its name
            replaced.rename(target)
        raise
    flush_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _flush_tree(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            _flush_tree(path)
        else:
            flush_file(path)
    flush_folder(folder)


def flush_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Hold the exclusive lock on the file ``path``.

    ``flock``: released by the kernel when its holder dies, whatever killed it. Linux
    passes it to the server on NFS (version 4, or 3 with lockd), so that it also holds
    between machines there; on a mount with ``nolock`` or ``local_lock=flock`` it holds
    on one machine only.

    Raises:
        StoreError: the lock stayed with another process for ``patience`` seconds, or the file is no lock.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
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
        if os.fstat(handle).st_size > LARGEST_NOTE:
            raise StoreError(f"{path} is not a lock of this project: move it away")
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


def discard_output(stream: TextIO) -> None:
    """Send what goes to ``stream`` nowhere, what it has buffered included: that would fail again at the very end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
