"""Cuts text into documents at ``<|endoftext|>``, and long documents into pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from grok.text.tokenizers import END_OF_TEXT

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
        if not begun:
            text = text.lstrip() if strip else text if first else _without_first_line_end(text)
        if ends:
            text = text.rstrip() if strip else _without_last_line_end(text) if at_marker else text
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


def whole_documents(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield every document in one piece, for a tokeniser that is not ``piecewise``."""
    parts: list[str] = []
    for piece in pieces:
        parts.append(piece.text)
        if piece.ends_document:
            yield Piece("".join(parts), True)
            parts = []


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


def _without_first_line_end(text: str) -> str:
    return text[2:] if text.startswith("\r\n") else text.removeprefix("\n")


def _without_last_line_end(text: str) -> str:
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
