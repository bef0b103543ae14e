"""Reads files and folders in a fixed order, as text or as rows."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from grok.errors import DataError

CHUNK_BYTES: Final = 2**20
MAX_VALUE: Final = 2**26
"""Largest number of characters of one JSON value; a longer one counts as damage."""

_UNPACKED: Final = (".gz", ".xz")
_PACKED: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".bz2", ".zip", ".7z", ".zst", ".rar")
"""Suffixes of archives, which are refused: without that, their bytes would be read as text."""


@dataclass(frozen=True, slots=True)
class InputDigest:
    """One input: its name, the number of its files, their bytes, and a hash of their contents in order."""

    name: str
    files: int
    bytes: int
    sha256: str


def files_below(path: Path) -> list[Path]:
    """Return the file ``path``, or every file below the folder ``path`` in natural order of its relative name.

    Hidden files are left out.

    Raises:
        DataError: no file, or an archive.
    """
    if path.is_file():
        return [_unpacked(path)]
    if not path.is_dir():
        raise DataError(f"--input {path}: {'not a file or folder' if path.exists() else 'no such file or folder'}")
    files = [
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise DataError(f"--input {path}: the folder has no files")
    return sorted(map(_unpacked, files), key=lambda file: natural_key(file.relative_to(path).as_posix()))


def _unpacked(file: Path) -> Path:
    if file.name.lower().endswith(_PACKED):
        raise DataError(
            f"--input {file} is an archive: unpack it and give the folder, or its files"
            " (single .gz and .xz files are read as they are)"
        )
    return file


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts ``data2`` before ``data10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def digest(path: Path, workers: int) -> InputDigest:
    """Return the digest of a file or folder, reading all of it."""
    files = files_below(path)
    with ThreadPoolExecutor(workers) as pool:  # hashlib releases the interpreter's lock
        hashes = list(pool.map(_sha256, files))
    together = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    return InputDigest(path.name, len(files), sum(file.stat().st_size for file in files), together)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_chunks(path: Path) -> Iterator[str]:
    """Yield the text of a file, about a million characters at a time, with its line ends.

    Bytes that are not UTF-8 become U+FFFD, which the corpus report counts. ``.gz`` and ``.xz`` are unpacked.

    Raises:
        DataError: the file cannot be read.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    try:
        with _open(path) as file:
            while data := file.read(CHUNK_BYTES):
                yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def _open(path: Path) -> BinaryIO:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return cast(BinaryIO, lzma.open(path, "rb")) if suffix == ".xz" else path.open("rb")


def is_table(path: Path) -> bool:
    """Return whether the file has rows (parquet, JSON, JSON lines), by its suffix."""
    return _plain_suffix(path) == ".parquet" or is_json(path)


def is_json(path: Path) -> bool:
    """Return whether the file is read as JSON or JSON lines, by its suffix."""
    return _plain_suffix(path) in (".json", ".jsonl", ".ndjson")


def rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """Yield the text of each row, from the first of ``columns`` that the file has.

    Raises:
        DataError: the file has none of the columns, or is damaged.
    """
    if _plain_suffix(path) == ".parquet":
        yield from _parquet_rows(path, columns)
    else:
        yield from _json_rows(path, columns)


def _plain_suffix(path: Path) -> str:
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in _UNPACKED else name.suffix


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            column = _first_known(path, columns, names)
            for batch in file.iter_batches(batch_size=512, columns=[column]):
                for row, text in enumerate(batch.column(0).to_pylist()):
                    if not isinstance(text, str):
                        raise DataError(f"{path}: row {row} of a batch of column {column!r} has no text: {text!r:.60}")
                    yield text
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error})") from error


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    for number, record in enumerate(json_values(text_chunks(path), path)):
        if isinstance(record, str):
            yield _whole_characters(record)
            continue
        if not isinstance(record, dict):
            raise DataError(
                f"{path}: value {number} is a {type(record).__name__}, expected an object with a text field"
            )
        text = record[_first_known(path, columns, list(record))]
        if not isinstance(text, str):
            raise DataError(f"{path}: value {number} has no text: {text!r:.60}")
        yield _whole_characters(text)


def _whole_characters(text: str) -> str:
    """Return ``text`` with U+FFFD for single halves of surrogate pairs: JSON can contain them, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _first_known(path: Path, columns: Sequence[str], names: Sequence[str]) -> str:
    for column in columns:
        if column in names:
            return column
    raise DataError(
        f"{path}: no field {' or '.join(map(repr, columns))}; it has {', '.join(names)}; name one with --field"
    )


def json_values(chunks: Iterable[str], path: Path) -> Iterator[Any]:
    """Yield the values of a JSON array or of JSON lines, in bounded memory.

    Raises:
        DataError: the text is not JSON; the message has the offset.
    """
    decoder, buffer, before = json.JSONDecoder(), "", 0
    between_values = re.compile(r"[\s\[\],]*")
    for chunk in chunks:
        buffer += chunk
        position = 0
        while True:
            between = between_values.match(buffer, position)
            position = between.end() if between else position
            try:
                value, end = decoder.raw_decode(buffer, position)
            except json.JSONDecodeError:
                break  # the rest of the value is in the next chunk, or the file is damaged
            except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
                raise DataError(f"{path}: a value of this JSON cannot be read ({error})") from error
            if end == len(buffer) and not isinstance(value, (dict, str)):
                break  # the next chunk may have more digits of this number
            yield value
            position = end
        buffer, before = buffer[position:], before + position
        if len(buffer) > MAX_VALUE:
            break
    if buffer.strip(" \t\r\n[],"):
        raise DataError(f"{path}: not JSON, or truncated, at character {before:,}: {buffer[:60]!r}")
