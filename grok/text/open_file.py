"""A file that stays open for reading: a replacement has no effect on its reader, an overwrite is detected.

``grok.prepare`` replaces a corpus by a rename, so a run that trains on the old one reads
the old bytes until it ends. Only a file that is overwritten in place changes for its readers.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError

_PART: Final = 2**20


class OpenFile:
    """One file, open for reading until the object is garbage-collected.

    Raises:
        DataError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): run `grok prepare` again") from error
        weakref.finalize(self, os.close, self._handle)
        self.stamp = self._stamp()
        """Device, inode, size and modification time when the file's content was last known to be right."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._handle).st_size

    def map(self, dtype: np.dtype[Any]) -> np.memmap[Any, np.dtype[Any]]:
        """Return the content, memory-mapped for reading."""
        with os.fdopen(os.dup(self._handle), "rb") as file:
            return np.memmap(file, dtype=dtype, mode="r")

    def read(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the content as an array in memory."""
        return np.frombuffer(b"".join(self._parts()), dtype=dtype)

    def sha256(self) -> str:
        """Return the hash of all bytes, in hexadecimal."""
        hasher = hashlib.sha256()
        for part in self._parts():
            hasher.update(part)
        return hasher.hexdigest()

    def was_touched(self) -> bool:
        """Return whether size or modification time differ from ``stamp``; costs one system call."""
        return self._stamp() != self.stamp

    def trust(self) -> None:
        """Set ``stamp`` to the file's present state: the caller compares the content."""
        self.stamp = self._stamp()

    def _parts(self) -> Iterator[bytes]:
        """Yield the content in parts; read, not memory-mapped: mapped pages count as memory in use."""
        position = 0
        while part := os.pread(self._handle, _PART, position):
            yield part
            position += len(part)

    def _stamp(self) -> tuple[int, ...]:
        now = os.fstat(self._handle)
        return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
