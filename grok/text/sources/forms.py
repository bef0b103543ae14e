"""The forms in which corpora are published, and the function that opens a source of any form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from grok.errors import DataError, GrokError, nearest
from grok.plugins import load
from grok.text.sources import documents
from grok.text.sources.documents import (
    NO_FILTERS,
    Filters,
    InputDigest,
    Piece,
    digest,
    documents_of,
    files_below,
    is_json,
    is_table,
    rows,
    text_chunks,
)


def plain_word_count(text: str) -> int:
    """Return the number of words, separated by white space."""
    return len(text.split())


@dataclass(frozen=True, slots=True)
class Form:
    """The rules to read one kind of corpus."""

    doc: str
    columns: tuple[str, ...]
    """Columns of a table that may have the text, in the order of preference."""
    strip: bool = False
    """Whether white space around a document is dropped, so that all published forms give the same tokens."""
    words: Callable[[str], int] = plain_word_count
    """Counts the words of a text."""
    word_rule: str = "white space"
    """The rule of ``words``, for the manifest."""


def own_documents(target: str, name: str) -> Iterator[str]:
    """Yield the documents that the user's own code returns for one ``--input``.

    Raises:
        ConfigError: the command does not name that code, or it cannot be imported.
        DataError: the code fails, or returns a value that is no text.
    """
    code = load(target)
    try:
        for document in code(name):
            if not isinstance(document, str):
                raise DataError(f"{target} returned a {type(document).__name__} for {name}: expected texts")
            yield document
    except GrokError:
        raise
    except Exception as error:
        raise DataError(f"{target} fails for --input {name} ({type(error).__name__}: {error})") from error


def own_pieces(target: str, name: str) -> Iterator[Piece]:
    """Yield the documents of :func:`own_documents`, long ones in pieces."""
    for document in own_documents(target, name):
        yield from documents_of([document])


FORMS: Final[dict[str, Form]] = {
    "text": Form("any text, one document per file and per <|endoftext|>", ("text", "content", "document")),
    "tinystories": Form(
        "TinyStories: V1 or V2 text, parquet, or JSON shards (Eldan and Li 2023)", ("text", "story"), strip=True
    ),
    "wikitext": Form(
        "WikiText-2 or -103, tokenised or raw, as files or parquet; one document per article (Merity et al. 2017)",
        ("text", "page"),
        words=documents.word_count,
        word_rule="white space, and one word per line end",
    ),
    "openwebtext": Form(
        "OpenWebText: parquet, JSON lines, or a folder of text files (Gokaslan and Cohen 2019)", ("text",), strip=True
    ),
    "fables": Form("short fables that grok generates from a seed", ("text",), strip=True),
}

OWN: Final = Form("text of the user's own code", ())


def form_of(name: str) -> Form:
    """Return the form of that name; every other name is the import path of the user's own code."""
    return FORMS.get(name, OWN)


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one split; every call of ``pieces()`` reads it from the start, in the same order."""

    form: str
    inputs: tuple[str, ...]
    field: str | None = None
    filters: Filters = NO_FILTERS

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table that may have the text: ``field``, or those of the form."""
        return (self.field,) if self.field else form_of(self.form).columns

    def pieces(self, counts: Counter[str] | None = None) -> Iterator[Piece]:
        """Yield every document that the filters leave, long ones in pieces; ``counts``: of :meth:`Filters.of`."""
        return self.filters.of(self._pieces(), counts)

    def _pieces(self) -> Iterator[Piece]:
        if self.form == "wikitext":
            yield from self._articles()
            return
        for name in self.inputs:
            if self.form == "fables":
                yield from (Piece(text, True) for text in documents.write_fables(*documents.parse_fables(name)))
            elif self.form not in FORMS:
                yield from own_pieces(self.form, name)
            elif documents.is_hub(name):
                yield from self._pieces_of_rows(documents.rows_of_hub(name, self.columns))
            else:
                for file in files_below(Path(name)):
                    yield from self._pieces_of_file(file)

    def reading(self) -> dict[str, Any]:
        """Return what decides the documents besides the bytes of the files: empty for most sources."""
        if self.form == "fables" or self.form not in FORMS:
            return {}
        inputs = [files_below(Path(name)) for name in self.inputs if not documents.is_hub(name)]
        json_files = [[number for number, file in enumerate(files) if is_json(file)] for files in inputs]
        tables = sum(is_table(file) for files in inputs for file in files)
        return {
            **({"json": json_files} if any(json_files) else {}),
            **({"continued": True} if self.form == "wikitext" and tables > 1 else {}),
        }

    def digests(self, workers: int) -> list[InputDigest]:
        """Return the digest of each input, with the hash of all its bytes.

        Raises:
            DataError: an input is missing.
        """
        return [self._digest(name, workers) for name in self.inputs]

    def _digest(self, name: str, workers: int) -> InputDigest:
        if self.form == "fables":
            return documents.digest_of_texts(f"fables {name}", documents.write_fables(*documents.parse_fables(name)))
        if self.form not in FORMS:
            return documents.digest_of_texts(f"{self.form} {name}", own_documents(self.form, name))
        if documents.is_hub(name):  # the hub's version names do not prove the content
            texts = documents.rows_of_hub(name, self.columns)
            return documents.digest_of_texts(name.removeprefix(documents.PREFIX), texts)
        return digest(Path(name), workers)

    def _pieces_of_file(self, file: Path) -> Iterator[Piece]:
        if is_table(file):
            yield from self._pieces_of_rows(rows(file, self.columns))
        else:
            yield from documents_of(text_chunks(file), strip=form_of(self.form).strip)

    def _pieces_of_rows(self, texts: Iterator[str]) -> Iterator[Piece]:
        for text in texts:
            yield from documents_of([text], strip=form_of(self.form).strip)

    def _articles(self) -> Iterator[Piece]:
        """Yield WikiText's articles. Tables are published in parts that end anywhere, text files are whole."""
        for in_rows, files in groupby(self._files_of_lines(), key=itemgetter(0)):
            if in_rows:
                yield from documents.articles(*(lines for _, lines in files))
            else:
                for _, lines in files:
                    yield from documents.articles(lines)

    def _files_of_lines(self) -> Iterator[tuple[bool, Iterator[str]]]:
        """Yield for each file whether it is a table, and its lines."""
        for name in self.inputs:
            if documents.is_hub(name):
                yield True, documents.lines_of_rows(documents.rows_of_hub(name, self.columns))
                continue
            for file in files_below(Path(name)):
                if is_table(file):
                    yield True, documents.lines_of_rows(rows(file, self.columns))
                else:
                    yield False, documents.lines_of(text_chunks(file))


def open_source(form: str, inputs: Sequence[str], field: str | None = None, filters: Filters = NO_FILTERS) -> Source:
    """Return the source of ``inputs`` (files, folders, or ``hf://owner/name``), read as ``form``.

    Raises:
        DataError: an unknown form, no input, or a missing input.
    """
    if form not in FORMS and "." not in form:
        known = ", ".join(FORMS)
        raise DataError(f"{form!r} is no known form of text{nearest(form, FORMS)}: expected one of {known}")
    if not inputs:
        raise DataError(f"{form}: --input FILE... is needed")
    for name in inputs:
        if form in FORMS and form != "fables" and not documents.is_hub(name):
            files_below(Path(name))
    return Source(form, tuple(inputs), field, filters)
