"""The forms in which corpora are published, and the function that opens a source of any form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

from grok.text.sources import documents


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
        words=documents.word_count,
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
    filters: documents.Filters = documents.NO_FILTERS

    def __post_init__(self) -> None:
        if self.form != "fables":
            self._files()  # missing ones are refused before others are read

    def _files(self) -> list[list[Path]]:
        """Return the files of each input, in order."""
        return [documents.files_below(Path(name)) for name in self.inputs]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a table that may have the text: ``field``, or those of the form."""
        return (self.field,) if self.field else FORMS[self.form].columns

    def pieces(self, counts: Counter[str] | None = None) -> Iterator[documents.Piece]:
        """Yield every document that the filters leave, long ones in pieces; ``counts``: of :meth:`Filters.of`."""
        return self.filters.of(self._pieces(), counts)

    def _pieces(self) -> Iterator[documents.Piece]:
        if self.form == "fables":
            for name in self.inputs:
                for text in documents.write_fables(*documents.parse_fables(name)):
                    yield documents.Piece(text, True)
        elif self.form == "wikitext":
            yield from self._articles()
        else:
            for file in chain(*self._files()):
                yield from self._pieces_of_file(file)

    def reading(self) -> dict[str, Any]:
        """Return what decides the documents besides the bytes of the files: empty for most sources."""
        if self.form == "fables":
            return {}
        inputs = self._files()
        json_files = [[number for number, file in enumerate(files) if documents.is_json(file)] for files in inputs]
        tables = sum(documents.is_table(file) for files in inputs for file in files)
        return {
            **({"json": json_files} if any(json_files) else {}),
            **({"continued": True} if self.form == "wikitext" and tables > 1 else {}),
        }

    def digests(self, workers: int) -> list[documents.InputDigest]:
        """Return the digest of each input, with the hash of all its bytes."""
        if self.form == "fables":
            return [documents.digest_of_fables(name) for name in self.inputs]
        return [documents.digest(Path(name), workers) for name in self.inputs]

    def _pieces_of_file(self, file: Path) -> Iterator[documents.Piece]:
        if documents.is_table(file):
            for text in documents.rows(file, self.columns):
                yield from documents.documents_of([text], strip=FORMS[self.form].strip)
        else:
            yield from documents.documents_of(documents.text_chunks(file), strip=FORMS[self.form].strip)

    def _articles(self) -> Iterator[documents.Piece]:
        """Yield WikiText's articles. Tables are published in parts that end anywhere, text files are whole."""
        for in_rows, files in groupby(chain(*self._files()), key=documents.is_table):
            if in_rows:
                yield from documents.articles(
                    *(documents.lines_of_rows(documents.rows(file, self.columns)) for file in files)
                )
            else:
                for file in files:
                    yield from documents.articles(documents.lines_of(documents.text_chunks(file)))
