"""Reads text as documents in a fixed order, from every form in which the corpora are published.

A source yields :class:`~grok.text.documents.Piece`: a document, or the next part of
a long one, so that memory does not grow with the text. The order is that of the inputs, then
of the names in a folder, then of the rows in a file.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import lzma
import re
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, Final

from grok.errors import DataError, in_words
from grok.streams import MAX_SEED, Stream
from grok.text.tokenizers import END_OF_TEXT

CHUNK_BYTES: Final = 2**20
MAX_VALUE: Final = 2**26
"""Largest number of characters of one JSON value, or of a text without a line end; a longer one counts as damage."""

_UNPACKED: Final[dict[str, Callable[..., Any]]] = {".gz": gzip.open, ".xz": lzma.open}
"""Opens a packed file, by its suffix."""
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


def digest_of_fables(name: str) -> InputDigest:
    """Return the digest of texts that are in no file: the hash has the length of each."""
    hasher, size = hashlib.sha256(), 0
    for text in write_fables(*parse_fables(name)):
        data = text.encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
        size += len(data)
    return InputDigest(f"fables {name}", 1, size, hasher.hexdigest())


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
    with in_words(DataError, f"{path} cannot be read", OSError, EOFError, lzma.LZMAError, zlib.error):
        with _UNPACKED.get(path.suffix.lower(), open)(path, "rb") as file:
            while data := file.read(CHUNK_BYTES):
                yield decoder.decode(data)
        yield decoder.decode(b"", final=True)


def is_table(path: Path) -> bool:
    """Return whether the file has rows (parquet, JSON, JSON lines), by its suffix."""
    return _plain_suffix(path) == ".parquet" or is_json(path)


def is_json(path: Path) -> bool:
    """Return whether the file is read as JSON or JSON lines, by its suffix."""
    return _plain_suffix(path) in (".json", ".jsonl", ".ndjson")


def rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    """Return the text of each row, from the first of ``columns`` that the file has.

    Raises:
        DataError: the file has none of the columns, or is damaged.
    """
    return (_parquet_rows if _plain_suffix(path) == ".parquet" else _json_rows)(path, columns)


def _plain_suffix(path: Path) -> str:
    name = Path(path.name.lower())
    return Path(name.stem).suffix if name.suffix in _UNPACKED else name.suffix


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    with in_words(DataError, f"{path} cannot be read as parquet", pyarrow.ArrowException, OSError):
        with pyarrow.parquet.ParquetFile(path) as file:
            column = _first_known(path, columns, file.schema_arrow.names)
        # a text that stands once in a dictionary and in a thousand rows is in memory once
        with pyarrow.parquet.ParquetFile(path, read_dictionary=[column]) as file:
            for batch in file.iter_batches(batch_size=512, columns=[column]):
                for row, text in enumerate(value.as_py() for value in batch.column(0)):
                    if not isinstance(text, str):
                        raise DataError(f"{path}: row {row} of a batch of column {column!r} has no text: {text!r:.60}")
                    yield text


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[str]:
    for number, record in enumerate(json_values(text_chunks(path), path)):
        text = record[_first_known(path, columns, list(record))] if isinstance(record, dict) else record
        if not isinstance(text, str):
            raise DataError(f"{path}: value {number} has no text: {text!r:.60}")
        # JSON can contain single halves of surrogate pairs, UTF-8 cannot: they become U+FFFD
        yield text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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


# Short generated fables: a corpus for tests and for first runs without a download.
#
# A fable is a function of (seed, number). An animal wants something, meets a hindrance, gets help or
# refuses it, and learns a lesson from the outcome. Names, pronouns and objects agree within a fable, so
# that a small model can learn more than spelling.

_WORDS: Final = tomllib.loads(files("grok.text").joinpath("fables.toml").read_text(encoding="utf-8"))


def write_fables(count: int, seed: int) -> Iterator[str]:
    """Yield ``count`` fables; fable ``i`` depends on (seed, i) alone."""
    for number in range(count):
        yield _fable(Stream("fables", seed).at(number))


def parse_fables(name: str) -> tuple[int, int]:
    """Return (count, seed) of ``"COUNT"`` or ``"COUNT:SEED"``.

    Raises:
        DataError: ``name`` has neither form.
    """
    numbers = re.fullmatch(r"(\d{1,19})(?::(\d{1,19}))?", name)
    if numbers is None or int(numbers[1]) < 1 or int(numbers[2] or 0) > MAX_SEED:
        raise DataError(f"fables --input {name}: expected COUNT or COUNT:SEED, for example 2000:0")
    return int(numbers[1]), int(numbers[2] or 0)


def _fable(stream: Stream) -> str:
    draws = iter(stream.uniform(16))

    def one(kind: str) -> Any:
        return _WORDS[kind][int(next(draws) * len(_WORDS[kind]))]

    (name, they), (friend, _) = (_WORDS["names"][i] for i in stream.at("names").permutation(len(_WORDS["names"]))[:2])
    first, second = (_WORDS["animals"][i] for i in stream.at("animals").permutation(len(_WORDS["animals"]))[:2])
    wish, trouble, deed, outcome = one("wishes")
    them = "her" if they == "she" else "him"
    lines = [
        f"There was once {'an' if (nature := one('natures'))[0] in 'aeiou' else 'a'} {nature} {first} called {name}."
        f" {they.capitalize()} lived"
        f" {one('places')}.",
        f"One day {name} wanted {wish}. But it {trouble}. {name} {one('failures')}, and nothing changed.",
        f"Then {friend} the {second} came by.",
    ]
    if next(draws) < 0.6:
        lines.append(
            f"{one('asks').format(n=name)} So {friend} stayed with {them}. Together they {deed}, and {outcome}."
        )
        lines.append(f"That night {name} and {friend} sat side by side. {one('helped')}")
    else:
        lines.append(f"{one('pride').format(n=name)} So {friend} went on. {name} sat alone, and {they} had no supper.")
        lines.append(f"In the morning {name} was still hungry. {one('refused')}")
    return "\n".join(lines)


# Cuts text into documents at ``<|endoftext|>``, and long documents into pieces.

PIECE_CHARACTERS: Final = 2**20
"""Characters above which a document is cut into pieces."""

_SAFE_CUT: Final = re.compile(
    r"""(?<=\S)\n(?=[^\s<])     # after a single line end
      | (?<=\S)\r(?=\n[^\s<])  # inside a CRLF
      | \S(?=[ ][^\s<])        # before a single blank
    """,
    re.VERBOSE,
)
# GPT-2's word pattern ends a word at each of these places, whatever the text around them is, so the pieces have the ids
# and the number of words of the whole. No cut before "<": a marker may begin there, whose white space is dropped.
_CARRIED: Final = 16
"""Characters that are kept for the next chunk: a marker, or a place to cut, may extend across two chunks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or the next part of one."""

    text: str
    ends_document: bool
    """Whether the document ends with this piece."""


def documents_of(chunks: Iterable[str], *, strip: bool = False) -> Iterator[Piece]:
    """Yield the documents of one text (a file, or a row of a table) that comes in ``chunks``.

    ``<|endoftext|>`` ends a document, and so does the end of the text. One line end on either side
    of the marker belongs to the marker; with ``strip`` all white space around a document is dropped.
    A blank document is one piece with blank text, so that the caller can count such documents.
    """
    pending: list[str] = []  # parts of the present document that are read but not yielded
    held, tail, first, begun = 0, "", True, False

    def clean(text: str, ends: bool, at_marker: bool) -> str:
        if not begun and (strip or not first):
            text = text.lstrip() if strip else text.removeprefix("\r\n" if text.startswith("\r\n") else "\n")
        if ends and (strip or at_marker):
            text = text.rstrip() if strip else text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")
        return text

    for chunk in chunks:
        *ended, tail = (tail + chunk).split(END_OF_TEXT)
        for text in ended:
            yield Piece(clean("".join([*pending, text]), True, True), True)
            pending, held, first, begun = [], 0, False, False
        while held + len(tail) > PIECE_CHARACTERS:
            cut = _last_safe_cut(tail, PIECE_CHARACTERS)
            if not cut:  # no place to cut: each part of a text is searched only once
                pending.append(tail[:-_CARRIED])
                held, tail = held + len(pending[-1]), tail[-_CARRIED:]
                _refuse_endless(held)
                break
            yield Piece(clean("".join([*pending, tail[:cut]]), False, False), False)
            pending, held, tail, begun = [], 0, tail[cut:], True
    last = clean("".join([*pending, tail]), True, False)
    # After a final marker at most a line end follows; that is no blank document.
    if begun or last.strip() or first:
        yield Piece(last, True)


def is_blank(piece: Piece, begins_document: bool) -> bool:
    """Return whether the piece is a document of only white space; such documents are counted and left out."""
    return begins_document and piece.ends_document and not piece.text.strip()


def without_blank_documents(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces of all documents that have more than white space."""
    begins = True
    for piece in pieces:
        if not is_blank(piece, begins):
            yield piece
        begins = piece.ends_document


@dataclass(frozen=True, slots=True)
class Filters:
    """What is left out of a text or changed in it, where it is asked for."""

    min_characters: int = 0
    """Shorter documents are left out."""
    max_characters: int | None = None
    """Longer ones are left out."""
    without_duplicates: bool = False
    """Documents that repeat an earlier one of the same input, word for word, are left out."""
    lower_case: bool = False
    """All text is lower-cased, before documents are compared."""

    def of(self, pieces: Iterable[Piece], counts: Counter[str] | None = None) -> Iterator[Piece]:
        """Yield the pieces of all documents that stay; ``counts`` gets the number of documents by what befell them.

        One document is in memory at a time, and 16 bytes of each if duplicates are left out. Blank ones stay.
        """
        if self == Filters():
            yield from pieces
            return
        counts, seen = Counter() if counts is None else counts, set[bytes]()
        for document in by_document(pieces):
            kept = (
                [Piece(piece.text.lower(), piece.ends_document) for piece in document] if self.lower_case else document
            )
            what = self._left_out(kept, seen)
            if what is None:
                yield from kept
            counts[what or ("lower-cased" if kept != document else "as they were")] += 1

    def _left_out(self, document: Sequence[Piece], seen: set[bytes]) -> str | None:
        """Return why a document is left out, or None; with ``without_duplicates`` a new one is added to ``seen``."""
        size = sum(len(piece.text) for piece in document)
        if len(document) == 1 and is_blank(document[0], True):
            return None
        if size < self.min_characters:
            return "too short"
        if self.max_characters is not None and size > self.max_characters:
            return "too long"
        if self.without_duplicates:
            hasher = hashlib.blake2b(digest_size=16)
            for piece in document:
                hasher.update(piece.text.encode())
            if hasher.digest() in seen:
                return "duplicates"
            seen.add(hasher.digest())
        return None


def by_document(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of each document together."""
    document: list[Piece] = []
    for piece in pieces:
        document.append(piece)
        if piece.ends_document:
            yield document
            document = []


def whole_documents(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield every document in one piece, for a tokeniser that is not ``piecewise``."""
    return (Piece("".join(piece.text for piece in document), True) for document in by_document(pieces))


def _last_safe_cut(text: str, limit: int) -> int:
    """Return the last offset up to ``limit`` where ``text`` may be cut, else the first one after it, else 0."""
    end, span = min(len(text), limit), 4096
    while True:
        start = max(0, end - span)
        cuts = [match.end() for match in _SAFE_CUT.finditer(text, start, end + 2)]
        if cuts:
            return cuts[-1]
        if start == 0:
            behind = _SAFE_CUT.search(text, end)
            return behind.end() if behind else 0
        span *= 8


# WikiText: its articles, recognised by their headings, its word count, and its detokeniser.
#
# Source: Merity et al. 2017, "Pointer Sentinel Mixture Models". The tokenised form has spaces
# around punctuation, ``<unk>`` for rare words, and ``@-@``, ``@,@``, ``@.@`` for hyphens, commas and full stops inside
# words.

_TITLE: Final = re.compile(r"^ ?= [^=].* = $|^ ?= [^=] = $")


def articles(*files: Iterable[str]) -> Iterator[Piece]:
    """Yield the articles in the lines of ``files``, which have their line ends; an article may go on in the next file.

    A title `` = Name = `` begins an article if the lines before and after it are blank (a formula
    may look like a title), or if it begins a file and the line after it is blank. The blank line
    before belongs to the article. Joined, the articles are the input.
    """
    article: list[str] = []
    numbered = chain.from_iterable(map(enumerate, files))
    for (number, line), (_, following) in pairwise(chain(numbered, [(0, "")])):
        previous = article[-1] if article and number else ""
        if _TITLE.match(line.rstrip("\r\n")) and not previous.strip() and not following.strip():
            blank = [article.pop()] if article and not article[-1].strip() else []
            if article:
                yield Piece("".join(article), True)
            article = blank
        article.append(line)
    if article:
        yield Piece("".join(article), True)


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in chunks, each with its ``\\n``."""
    parts: list[str] = []  # a line that is cut at every chunk is joined once
    held = 0
    for chunk in chunks:
        *ended, rest = chunk.split("\n")
        for line in ended:
            yield "".join([*parts, line, "\n"])
            parts, held = [], 0
        parts.append(rest)
        held += len(rest)
        _refuse_endless(held)
    if held:
        yield "".join(parts)


def _refuse_endless(characters: int) -> None:
    """Raise DataError for a text that would fill the memory: a packed file of 1 MB may hold 1 GB of one character."""
    if characters > MAX_VALUE:
        raise DataError(
            f"a text has more than {MAX_VALUE:,} characters without a line end or a blank, so it cannot be read in "
            "parts: is it text? Put line ends into it"
        )


def lines_of_rows(rows: Iterable[str]) -> Iterator[str]:
    """Yield the lines of WikiText in table form, one per row; an empty row is a blank line, `` \\n``."""
    for row in rows:
        yield row if row.endswith("\n") else row + "\n" if row else " \n"


def word_count(text: str) -> int:
    """Return the number of WikiText words: those separated by white space, and one for each line end.

    >>> word_count(" a cat @-@ nap . \\n \\n")
    7
    """
    return len(text.split()) + text.count("\n")


_JOINED: Final = (
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r"(?<=\w) '(s|t|re|ve|ll|d|m)\b"), r"'\1"),
    (re.compile(r" ([;:.!?,])(?=\s)"), r"\1"),
    (re.compile(r"\( ([^\n()]*) \)"), r"(\1)"),
    (re.compile(r"\[ ([^\n\[\]]*) \]"), r"[\1]"),
    (re.compile(r"\" ([^\n\"]*) \""), r'"\1"'),
    (re.compile(r"(?m)^ (=(?: =)+) (.*) \1 $"), lambda m: f"{(mark := m[1].replace(' ', ''))} {m[2]} {mark}"),
    (re.compile(r"(?m)^ +| +$"), ""),
)


def detokenize(text: str) -> str:
    """Return tokenised WikiText as ordinary text: joined at ``@-@``, no spaces before stops or inside brackets.

    >>> detokenize(" He ( the well @-@ known one ) didn 't see 1 @,@ 000 cats . \\n = = Cats = = \\n")
    "He (the well-known one) didn't see 1,000 cats.\\n== Cats ==\\n"
    """
    for pattern, replacement in _JOINED:
        text = pattern.sub(replacement, text)
    return text


# The forms in which corpora are published, and the function that opens a source of any form.


@dataclass(frozen=True, slots=True)
class Form:
    """The rules to read one kind of corpus."""

    doc: str
    columns: tuple[str, ...]
    """Columns of a table that may have the text, in the order of preference."""
    strip: bool = False
    """Whether white space around a document is dropped, so that all published forms give the same tokens."""
    words: Callable[[str], int] = lambda text: len(text.split())
    """Counts the words of a text."""
    word_rule: str = "white space"
    """The rule of ``words``, for the manifest."""


FORMS: Final[dict[str, Form]] = {
    "text": Form("any text, one document per file and per <|endoftext|>", ("text", "content", "document")),
    "tinystories": Form(
        "TinyStories: V1 or V2 text, parquet, or JSON shards (Eldan and Li 2023)", ("text", "story"), strip=True
    ),
    "wikitext": Form(
        "WikiText-2 or -103, tokenised or raw, as files or parquet; one document per article (Merity et al. 2017)",
        ("text", "page"),
        words=word_count,
        word_rule="white space, and one word per line end",
    ),
    "openwebtext": Form(
        "OpenWebText: parquet, JSON lines, or a folder of text files (Gokaslan and Cohen 2019)", ("text",), strip=True
    ),
    "fables": Form("short fables that grok generates from a seed", ("text",), strip=True),
}


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one split: files or folders, for fables numbers. ``pieces()`` reads it in the same order each time.

    Raises:
        DataError: an input is missing.
    """

    form: str
    inputs: tuple[str, ...]
    field: str | None = None
    filters: Filters = Filters()

    def __post_init__(self) -> None:
        if self.form != "fables":
            self._files()  # missing ones are refused before others are read

    def _files(self) -> list[list[Path]]:
        """Return the files of each input, in order."""
        return [files_below(Path(name)) for name in self.inputs]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table that may have the text: ``field``, or those of the form."""
        return (self.field,) if self.field else FORMS[self.form].columns

    def pieces(self, counts: Counter[str] | None = None) -> Iterator[Piece]:
        """Yield every document that the filters leave, long ones in pieces; ``counts``: of :meth:`Filters.of`."""
        return self.filters.of(self._pieces(), counts)

    def _pieces(self) -> Iterator[Piece]:
        if self.form == "fables":
            for name in self.inputs:
                for text in write_fables(*parse_fables(name)):
                    yield Piece(text, True)
        elif self.form == "wikitext":
            yield from self._articles()
        else:
            for file in chain(*self._files()):
                each_row = ([text] for text in rows(file, self.columns))
                for chunks in each_row if is_table(file) else [text_chunks(file)]:
                    yield from documents_of(chunks, strip=FORMS[self.form].strip)

    def reading(self) -> dict[str, Any]:
        """Return what decides the documents besides the bytes of the files: empty for most sources."""
        if self.form == "fables":
            return {}
        inputs = self._files()
        json_files = [[number for number, file in enumerate(files) if is_json(file)] for files in inputs]
        tables = sum(is_table(file) for files in inputs for file in files)
        return {
            **({"json": json_files} if any(json_files) else {}),
            **({"continued": True} if self.form == "wikitext" and tables > 1 else {}),
        }

    def digests(self, workers: int) -> list[InputDigest]:
        """Return the digest of each input, with the hash of all its bytes."""
        if self.form == "fables":
            return [digest_of_fables(name) for name in self.inputs]
        return [digest(Path(name), workers) for name in self.inputs]

    def _articles(self) -> Iterator[Piece]:
        """Yield WikiText's articles. Tables are published in parts that end anywhere, text files are whole."""
        for in_rows, parts in groupby(chain(*self._files()), key=is_table):
            if in_rows:
                yield from articles(*(lines_of_rows(rows(file, self.columns)) for file in parts))
            else:
                for file in parts:
                    yield from articles(lines_of(text_chunks(file)))
