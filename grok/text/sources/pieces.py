"""Text as documents: cut at ``<|endoftext|>``, long ones handed on in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from grok.text.tokenizers import END_OF_TEXT

PIECE_CHARACTERS: Final = 2**20
"""A document longer than this is handed on in pieces."""

_SAFE_CUT: Final = re.compile(r"\S\n(?=[^\s<])")
# A single line end between two non-blank characters: GPT-2's word pattern ends a word on either
# side of it, so the pieces have the ids of the whole. Not before "<", where a marker could begin.


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or the next part of one: ``ends_document`` says which."""

    text: str
    ends_document: bool


def documents_of(chunks: Iterable[str], *, strip: bool = False) -> Iterator[Piece]:
    """Yield the documents of one text (a file, or a row of a table) that comes in ``chunks``.

    ``<|endoftext|>`` ends a document, and so does the end of the text. One line end on either side
    of the marker belongs to the marker; with ``strip`` all white space around a document goes. Blank
    documents come as one piece whose text is blank: whoever counts may say how many there were.
    """
    buffer, first, begun = "", True, False

    def clean(text: str, ends: bool, at_marker: bool) -> str:
        if not begun:
            text = text.lstrip() if strip else text if first else _without_first_line_end(text)
        if ends:
            text = text.rstrip() if strip else _without_last_line_end(text) if at_marker else text
        return text

    for chunk in chunks:
        *ended, buffer = (buffer + chunk).split(END_OF_TEXT)
        for text in ended:
            yield Piece(clean(text, True, True), True)
            first, begun = False, False
        if len(buffer) > PIECE_CHARACTERS:
            cut = _last_safe_cut(buffer)
            if cut:
                yield Piece(clean(buffer[:cut], False, False), False)
                buffer, begun = buffer[cut:], True
    last = clean(buffer, True, False)
    # After a final marker there is nothing but perhaps a line end; that is no blank document.
    if begun or last.strip() or first:
        yield Piece(last, True)


def is_blank(piece: Piece, begins_document: bool) -> bool:
    """Return whether the piece is a document of nothing but white space; such documents are counted and left out."""
    return begins_document and piece.ends_document and not piece.text.strip()


def without_blank_documents(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces of all documents that hold more than white space."""
    begins = True
    for piece in pieces:
        if not is_blank(piece, begins):
            yield piece
        begins = piece.ends_document


def whole_documents(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield every document in one piece, for a tokeniser whose ids depend on where a text is cut."""
    parts: list[str] = []
    for piece in pieces:
        parts.append(piece.text)
        if piece.ends_document:
            yield Piece("".join(parts), True)
            parts = []


def _last_safe_cut(text: str) -> int:
    """Return the last place where ``text`` may be cut, or 0; looks at ever larger ends of it."""
    span = 4096
    while True:
        start = max(0, len(text) - span)
        cuts = [match.end() for match in _SAFE_CUT.finditer(text, start)]
        if cuts or start == 0:
            return cuts[-1] if cuts else 0
        span *= 8


def _without_first_line_end(text: str) -> str:
    return text[2:] if text.startswith("\r\n") else text.removeprefix("\n")


def _without_last_line_end(text: str) -> str:
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
