"""A shard's seal: checksums of all its bytes, kept in its own footer.

Parquet has a checksum for every page and none for the footer, where one changed bit
renames a column, hides rows from a reader that filters, or ends the reading process.
So a place is kept for two checksums among the footer's notes, and filled in when the
file is complete: of everything before the footer, and of the footer itself with the
place blank. Readers of parquet that know nothing of it see one more note.

Shards of versions before this have no seal, and are read as they are.
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
"""Value of the note until the file is sealed."""

_BEFORE_VALUE: Final = 2
"""Bytes between key and value in Thrift's compact form: the field, and the value's length."""

_TAIL: Final = 8
"""Bytes after the footer: its length, and ``PAR1``."""


class SealBroken(ValueError):
    """The bytes are not those that were written; the message says which."""


def seal(file: IO[bytes]) -> None:
    """Fill in the checksums of a complete parquet file, opened for reading and writing."""
    start, footer = _footer(file)
    at = footer.index(SEAL_KEY) + len(SEAL_KEY) + _BEFORE_VALUE
    assert footer[at : at + len(BLANK)] == BLANK, "the note is not where Thrift puts it"
    body = _body_checksum(file, start)
    file.seek(start + at)
    file.write(body + _footer_checksum(footer, body))
    file.seek(0, 2)


@dataclass(frozen=True, slots=True)
class Seal:
    """A shard's checksums and the footer that they stand in, which is proven to be as it was written."""

    digest: bytes
    """Of all its bytes: two shards of one digest are copies."""
    footer: bytes

    def note(self, key: bytes) -> bytes | None:
        """Return a short note (of up to 127 bytes) from the footer, or None where there is none."""
        at = self.footer.find(bytes([len(key)]) + key)
        if at < 0:
            return None
        at += 1 + len(key) + _BEFORE_VALUE
        return self.footer[at : at + self.footer[at - 1]]


def check_seal(path: Path, thorough: bool) -> Seal | None:
    """Compare the checksums with the file's bytes: of the footer, and of the rest if ``thorough``.

    Returns the seal, or None where there is none.

    Raises:
        SealBroken: the bytes are not those that were written, or no parquet file's.
        OSError: the file cannot be read.
    """
    with open_file(path, follow=True) as file:
        return check_open(file, thorough)


def check_open(file: IO[bytes], thorough: bool) -> Seal | None:
    """Do what :func:`check_seal` does with a file that is open for reading."""
    start, footer = _footer(file)
    key = footer.find(SEAL_KEY)
    if key < 0:
        return None
    at = key + len(SEAL_KEY) + _BEFORE_VALUE
    value = footer[at : at + len(BLANK)]
    blank = footer[:at] + BLANK + footer[at + len(BLANK) :]
    if value[_DIGITS:] != _footer_checksum(blank, value[:_DIGITS]):
        raise SealBroken("the bytes of its footer are not those that were written")
    if thorough and value[:_DIGITS] != _body_checksum(file, start):
        raise SealBroken("its bytes are not those that were written")
    return Seal(value, footer)


def _footer(file: IO[bytes]) -> tuple[int, bytes]:
    """Return where the footer starts, and its bytes."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or not 0 < length <= size - _TAIL:
        raise SealBroken("it does not end as a parquet file does: cut short, or something else")
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
