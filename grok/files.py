"""Atomic writes of files and folders, locks between processes, and one-line errors of the file system.

A file or folder is written under another name in the same file system, flushed to the disk,
renamed to its own name, and its parent folder is flushed. So a reader sees all of it or
nothing, also after a power failure. The name of an unfinished folder has its writer's
process; the next writer removes it when that process has ended.
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
"""Number of attempts to write a folder that another process removes meanwhile, which it should do only once."""

LARGEST_NOTE: Final = 1000
"""Largest number of bytes in a lock's file, which names its last holder. A larger file is no lock and not changed."""

_UNFINISHED: Final = ".tmp-"
"""Part of the name of every folder that is being written or removed."""

_WRITER: Final = re.compile(r"(.+)\+(\d+)\+([\d.]*)\+[0-9a-f]{8}")
"""The rest of that name: host, process and its start time. Without them any process may remove the folder."""

LOCK_PATIENCE: Final = 600.0
"""Seconds to wait for another process that holds a lock."""


@contextmanager
def disk_errors(
    doing: str, kind: type[GrokError] = StoreError, kept: str = "what was stored before is unchanged"
) -> Iterator[None]:
    """Turn an OSError of the block into a one-line error of this ``kind`` with the remedy."""
    try:
        yield
    except OSError as error:
        reason = disk_remedy(error.errno, str(error))
        raise kind(f"{doing}: {reason}; {kept}") from error


def flush_folder(folder: Path) -> None:
    """Flush the names in ``folder`` to the disk."""
    flush_file(folder)


def write_flushed(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a new file with ``write(file)`` and flush it to the disk; after an error the file is removed.

    ``write`` may also read the file.
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
    """Write ``value`` as indented JSON to ``path`` with one rename, from a file in the folder ``tmp``."""
    text = json.dumps(value, indent=1, sort_keys=False, allow_nan=False) + "\n"
    staged = tmp / f"{path.name}.{unique()}"
    write_flushed(staged, lambda file: file.write(text.encode()))
    move(staged, path)


def replace_text(path: Path, text: str) -> None:
    """Replace a file by ``text`` with one rename, without a flush: for files that are useless after a power failure."""
    staged = path.with_name(f".{path.name}.{unique()}")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)


def unique() -> str:
    """Return 16 random hexadecimal digits from the system's entropy, for unique names."""
    return os.urandom(8).hex()


class FolderCrossed(OSError):
    """Another process replaced or removed the folder that this process was writing."""


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` for writing, and rename it to ``target`` at the end.

    An existing ``target`` is replaced; processes with its files open can still read them. After an
    error the new folder is removed and ``target`` is unchanged. The parent folder is made when
    missing, its parents are not.

    Raises:
        FolderCrossed: another process wrote the same target at the same time.
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
    """Write a folder atomically: ``write(folder)`` fills a new folder, which is then renamed to ``target``.

    If another process removes the unfinished folder, it is written again.

    Raises:
        FolderCrossed: that happened ``TRIES`` times.
        OSError: the disk refuses.
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
    """Remove a folder; it is renamed first, so that no reader uses a part of it."""
    doomed = _beside(path, f"old-{os.urandom(4).hex()}")
    with suppress(FileNotFoundError):
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def share_file(source: Path, target: Path) -> bool:
    """Make ``target`` a second name of the file ``source`` (a hard link); False where that cannot be.

    The file's bytes stay as long as it has a name. Neither name may be written to afterwards.
    """
    try:
        target.hardlink_to(source)
    except OSError:  # gone meanwhile, too many names, or a file system without hard links
        return False
    return True


def clear_unfinished(parent: Path, target: Path | None = None, *, everything: bool = False) -> None:
    """Remove the unfinished folders in ``parent`` whose writers have ended.

    Args:
        parent: the folder to search.
        target: remove only unfinished folders of this target.
        everything: also remove folders whose writer may be alive. Such a writer loses its
            whole folder, never a part of it.
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
    """Return whether the folder's writer may be alive; a writer on another machine always may."""
    writer = _WRITER.fullmatch(name.partition(_UNFINISHED)[2])
    if writer is None:
        return False
    return writer[1] != host_in_names() or (start_of(int(writer[2])) or "") == writer[3]


def _put_in_place(folder: Path, target: Path) -> None:
    replaced = folder
    try:
        _swap(folder, target)  # so that a kill at any moment leaves a target
    except OSError:  # there is no target yet, or the file system cannot swap
        replaced = _beside(target, f"old-{os.urandom(4).hex()}")
        with suppress(FileNotFoundError):
            target.rename(replaced)
        try:
            folder.rename(target)
        except OSError:
            with suppress(OSError):  # the old folder gets its name back
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
    """Flush the content of a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Hold the exclusive lock on the file ``path``.

    The lock is ``flock``: the kernel releases it when its holder ends, also by a kill. On NFS
    (version 4, or 3 with lockd) Linux passes it to the server, so that it also holds between
    machines; on a mount with ``nolock`` or ``local_lock=flock`` it holds on one machine only.

    Raises:
        StoreError: another process held the lock for ``patience`` seconds, or the file is no lock.
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
                        f"{holder}): end it, or wait for it, and run the command again"
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
        if os.fstat(handle).st_size > LARGEST_NOTE:
            raise StoreError(f"{path} is not a lock of this project: move it away")
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        with suppress(OSError):  # also unlocks; an error here says nothing about what was written under the lock
            os.close(handle)


def exchange(a: Path, b: Path) -> None:
    """Swap two folders atomically: a process that lists one of them sees all of either folder.

    Raises:
        OSError: the system or file system cannot (NFS, for example).
    """
    _swap(a, b)
    for parent in {a.parent, b.parent}:
        flush_folder(parent)


def _swap(a: Path, b: Path) -> None:
    swap = 2  # RENAME_EXCHANGE of Linux's renameat2(2), RENAME_SWAP of macOS's renamex_np(2)
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        failed = libc.renamex_np(os.fsencode(a), os.fsencode(b), ctypes.c_uint(swap))
    elif hasattr(libc, "renameat2"):
        at = -100  # AT_FDCWD: paths are relative to the current folder
        failed = libc.renameat2(at, os.fsencode(a), at, os.fsencode(b), ctypes.c_uint(swap))
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def file_identity(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time of a file: they change when the file is replaced."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def discard_output(stream: TextIO) -> None:
    """Discard the output to ``stream``, also what is buffered, whose flush at the process's end would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
