"""A shard's seal: checksums of all its bytes, stored in its own footer.

Parquet has a checksum for every page but none for the footer. One changed bit in a footer
can rename a column, hide rows from a reader that filters, or crash the reading process.
So the footer's key-value metadata reserves a value for two checksums, which is filled in
when the file is complete: one of all bytes before the footer, one of the footer with the
value blank. Other parquet readers see one more metadata entry.

Shards of older versions have no seal and are read without this check.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from grok.untrusted import open_file

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


@dataclass(frozen=True, slots=True)
class Seal:
    """A shard's checksums and its footer, whose checksum was compared."""

    digest: bytes
    """Both checksums: two shards with equal digests are copies."""
    footer: bytes

    def note(self, key: bytes) -> bytes | None:
        """Return the metadata value of ``key`` (at most 127 bytes) from the footer, or None."""
        at = self.footer.find(bytes([len(key)]) + key)
        if at < 0:
            return None
        at += 1 + len(key) + _BEFORE_VALUE
        return self.footer[at : at + self.footer[at - 1]]


def check_seal(path: Path, thorough: bool) -> Seal | None:
    """Compare the footer's checksum with its bytes, and with ``thorough`` also the checksum of the other bytes.

    Returns the seal, or None if the file has none.

    Raises:
        SealBroken: the bytes differ from those that were written, or the file is not parquet.
        OSError: the file cannot be read.
    """
    with open_file(path, follow=True) as file:
        return check_open(file, thorough)


def check_open(file: IO[bytes], thorough: bool) -> Seal | None:
    """As :func:`check_seal`, for a file that is open for reading."""
    start, footer = _footer(file)
    key = footer.find(SEAL_KEY)
    if key < 0:
        return None
    at = key + len(SEAL_KEY) + _BEFORE_VALUE
    value = footer[at : at + len(BLANK)]
    blank = footer[:at] + BLANK + footer[at + len(BLANK) :]
    if value[_DIGITS:] != _footer_checksum(blank, value[:_DIGITS]):
        raise SealBroken("the bytes of its footer differ from those that were written")
    if thorough and value[:_DIGITS] != _body_checksum(file, start):
        raise SealBroken("its bytes differ from those that were written")
    return Seal(value, footer)


def _footer(file: IO[bytes]) -> tuple[int, bytes]:
    """Return the footer's offset in the file, and its bytes."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or not 0 < length <= size - _TAIL:
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
