"""Divides the text into splits, and each split into chunks for the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from grok.errors import DataError
from grok.text.inspection import TextScan, shared_documents
from grok.text.sources import Piece, Source
from grok.text.sources.pieces import whole_documents, without_blank_documents

CHUNK_CHARACTERS: Final = 2**21
CHUNK_PIECES: Final = 8192


@dataclass(frozen=True, slots=True)
class Job:
    """A chunk: some pieces of one split, for one worker."""

    split: str
    texts: list[str]
    ends: list[bool]
    """For each text whether it ends a document."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The place in the input where the train split ends and the validation split begins."""

    train_documents: int
    """Number of the input's documents in the train split."""
    train_characters: int | None
    """Of an input with a single document: number of its characters in the train split. Otherwise None."""

    @classmethod
    def of(cls, scans: Mapping[str, TextScan], val_fraction: float) -> Cut:
        """Return the cut that leaves ``val_fraction`` of the documents, or of a single document's characters, for val.

        Raises:
            DataError: a source has no text, or the text is too short.
        """
        scan = scans["input"]
        for name, part in scans.items():
            if part.documents == 0:
                raise DataError(f"{name}: it has no text")
        if "val" in scans:
            return cls(scan.documents, None)
        if scan.documents == 1:
            characters = int(scan.characters * (1 - val_fraction))
            if not 0 < characters < scan.characters:
                raise DataError(
                    f"a text of {scan.characters} characters cannot be split at --val-fraction {val_fraction}: use"
                    " more text"
                )
            return cls(1, characters)
        held_out = min(max(1, round(scan.documents * val_fraction)), scan.documents - 1)
        return cls(scan.documents - held_out, None)

    def leaks(self, scans: Mapping[str, TextScan]) -> dict[str, int]:
        """Return for each split the number of its documents that are also in train."""
        digests = scans["input"].digests()
        train = digests[: self.train_documents]
        held_out = {name: scan.digests() for name, scan in scans.items() if name != "input"}
        if self.train_characters is None and "val" not in held_out:
            held_out["val"] = digests[self.train_documents :]
        return {name: shared_documents(train, part) for name, part in held_out.items()}


def chunks_of(split: str, pieces: Iterable[Piece]) -> Iterator[Job]:
    """Yield the pieces in chunks of about ``CHUNK_CHARACTERS`` characters or ``CHUNK_PIECES`` pieces."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for piece in pieces:
        texts.append(piece.text)
        ends.append(piece.ends_document)
        size += len(piece.text)
        if size >= CHUNK_CHARACTERS or len(texts) >= CHUNK_PIECES:
            yield Job(split, texts, ends)
            texts, ends, size = [], [], 0
    if texts:
        yield Job(split, texts, ends)


def jobs_of(sources: Mapping[str, Source], cut: Cut, *, whole: bool = False) -> Iterator[Job]:
    """Yield all text as jobs: train first, each split in order.

    Args:
        sources: ``input``, and the splits that have files of their own.
        cut: the begin of the validation split in ``input``.
        whole: join the pieces of each document.
    """

    def pieces(name: str) -> Iterator[Piece]:
        kept = without_blank_documents(sources[name].pieces())
        return whole_documents(kept) if whole else kept

    stream = pieces("input")
    if cut.train_characters is None:
        yield from chunks_of("train", _take_documents(stream, cut.train_documents))
        if "val" not in sources:
            yield from chunks_of("val", stream)
    else:
        yield from chunks_of("train", _continuous(pieces("input"), 0, cut.train_characters))
        yield from chunks_of("val", _continuous(pieces("input"), cut.train_characters, None))
    for name in sources:
        if name != "input":
            yield from chunks_of(name, pieces(name))


def _take_documents(pieces: Iterator[Piece], count: int) -> Iterator[Piece]:
    """Yield the pieces of the next ``count`` documents; the iterator ``pieces`` keeps the others."""
    while count > 0:
        piece = next(pieces)
        count -= piece.ends_document
        yield piece


def _continuous(pieces: Iterable[Piece], start: int, stop: int | None) -> Iterator[Piece]:
    """Yield characters ``start`` to ``stop`` of one text, in pieces that end no document."""
    position = 0
    for piece in pieces:
        end = position + len(piece.text)
        text = piece.text[max(0, start - position) : None if stop is None else max(0, stop - position)]
        if text:
            yield Piece(text, False)
        position = end
