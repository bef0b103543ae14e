"""A file that stays open for reading: whoever replaces it later changes nothing here, whoever overwrites it is noticed.

``grok.prepare`` puts a new corpus in place by a rename, so a run that trains on the old one
keeps reading the old bytes. Only a file that is overwritten in place changes under its readers.
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
    """One file, open for reading until the object is gone.

    Raises:
        DataError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}): run `grok prepare` again") from error
        weakref.finalize(self, os.close, self._handle)
        self.stamp = self._stamp()
        """Size and times as the file was last known to be what it should be."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._handle).st_size

    def map(self, dtype: np.dtype[Any]) -> np.memmap[Any, np.dtype[Any]]:
        """Return the content, memory-mapped for reading."""
        with os.fdopen(os.dup(self._handle), "rb") as file:
            return np.memmap(file, dtype=dtype, mode="r")

    def read(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the content as an array of its own."""
        return np.frombuffer(b"".join(self._parts()), dtype=dtype)

    def sha256(self) -> str:
        """Return the hash of all bytes; read, not mapped, because mapped pages count as memory in use."""
        hasher = hashlib.sha256()
        for part in self._parts():
            hasher.update(part)
        return hasher.hexdigest()

    def was_touched(self) -> bool:
        """Return whether the file was written to since ``stamp`` was taken; costs one system call."""
        return self._stamp() != self.stamp

    def trust(self) -> None:
        """Take the file as it is now for what it should be."""
        self.stamp = self._stamp()

    def _parts(self) -> Iterator[bytes]:
        position = 0
        while part := os.pread(self._handle, _PART, position):
            yield part
            position += len(part)

    def _stamp(self) -> tuple[int, ...]:
        now = os.fstat(self._handle)
        return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
