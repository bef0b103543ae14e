"""Measures text quality in samples of a corpus: random letters, repetition, markup, near-duplicates.

The measures are taken of windows of 8,192 characters, one in every 131,072, so that they cost a few per cent of the
preparation of a large corpus. Sources: Broder 1997 (minhash); Raffel et al. 2020 and Rae et al. 2021 (filters of web
text). *Disorder* is the compressed size of a window over the compressed size of its characters in random order.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WINDOW: Final = 8192
EVERY: Final = 2**17
"""Characters from the start of one window to the start of the next."""
SHORTEST: Final = 1024
"""Characters below which the last window is not measured."""
DOCUMENTS: Final = 20_000
"""Number of a source's first documents that are searched for near-duplicates."""
BANDS, ROWS = 8, 10
"""Bands of minhashes, and hashes per band. Two documents share a band with probability 0.999 at a Jaccard similarity of
0.95, with 0.6 at 0.8, and with 0.008 at 0.5."""

LIMITS: Final = {"disorder": 0.95, "compression": 0.15, "repeated_words": 0.55, "repeated_lines": 0.3, "markup": 0.05}
"""A window has a fault when its measure is above the limit (compression: below it)."""
WORDS: Final = {
    "disorder": "looks like random letters (the order of its characters saves a compressor nothing)",
    "compression": "has little content (it compresses to a seventh)",
    "repeated_words": "repeats sequences of five words",
    "repeated_lines": "repeats lines",
    "markup": "is markup (HTML tags)",
}
ALARMING: Final = 0.02
"""Share of windows with a fault from which the report warns."""
ALIKE: Final = 0.1
"""Share of near-duplicates from which the report warns."""

_TAG: Final = re.compile(r"<(?!unk>|\|)[a-zA-Z/!][^<>]{0,300}>")
_STOPWORDS: Final = {
    "English": "the and of to in that is was for with his her on as not",
    "German": "der die und das ist nicht ein eine zu den von mit auf sich",
    "French": "le la les et des est un une que dans pour pas qui sur",
    "Spanish": "el la los que y en un una por con para las del es",
    "Italian": "il di che la e non per una sono con del della gli",
    "Portuguese": "o que e do da em um para com uma os no na por",
    "Dutch": "de het een en van is dat niet op te zijn voor met",
}
_LANGUAGES: Final = {language: frozenset(words.split()) for language, words in _STOPWORDS.items()}
_SCRIPTS: Final = (("Cyrillic", 0x400, 0x530), ("Arabic", 0x600, 0x700), ("Devanagari", 0x900, 0x980),
                   ("Japanese", 0x3040, 0x3100), ("Chinese", 0x4E00, 0xA000), ("Korean", 0xAC00, 0xD7B0))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """A window of text and its measures."""

    text: str
    """The first characters, for the report."""
    measures: dict[str, float]
    """By the names in ``LIMITS``."""
    language: str

    def faults(self) -> list[str]:
        """Return the names of the measures beyond their limits."""
        return [name for name, limit in LIMITS.items()
                if (self.measures[name] < limit if name == "compression" else self.measures[name] > limit)]  # fmt: skip


@dataclass(slots=True)
class Quality:
    """The measures of one source, summed while its text is read."""

    characters: int = 0
    windows: int = 0
    documents: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    worst: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    signatures: list[list[int]] = field(default_factory=list)
    _open: str = ""
    """The part of the present window that was read so far."""

    def read(self, text: str, *, begins: bool) -> None:
        """Measure the next piece of text; ``begins``: it begins a document."""
        if begins:
            self.documents += 1
            if self.documents <= DOCUMENTS:
                self.signatures.append(signature(text))
        position = 0
        while position < len(text):
            place = (self.characters + position) % EVERY
            if place >= WINDOW:
                position += EVERY - place
                continue
            part = text[position : position + WINDOW - place]
            self._open += part
            position += len(part)
            if place + len(part) == WINDOW:
                self._add(self._open)
        self.characters += len(text)

    def finish(self) -> None:
        """Measure the last window, if it is long enough."""
        if len(self._open) >= SHORTEST:
            self._add(self._open)

    def _add(self, text: str) -> None:
        window, self._open = measure(text), ""
        self.windows += 1
        self.languages[window.language] += 1
        for name in window.faults():
            self.faults[name] += 1
            badness = -window.measures[name] if name == "compression" else window.measures[name]
            kept = [*self.worst.get(name, []), (badness, window.text)]
            self.worst[name] = sorted(kept, reverse=True)[:3]

    def describe(self) -> dict[str, Any]:
        """Return the shares for the report, and the worst samples of each fault, as JSON values by name."""
        shares = {name: self.faults[name] / self.windows if self.windows else 0.0 for name in LIMITS}
        bands = np.array(self.signatures, np.uint64).reshape(-1, BANDS + 1)
        return {
            "windows": self.windows,
            **{f"share_{name}": share for name, share in shares.items()},
            "near_duplicate_share": near_duplicates(bands),
            "languages": {name: n / self.windows for name, n in self.languages.most_common(6)},
            "worst": {name: [text for _, text in kept] for name, kept in self.worst.items()},
        }


def measure(text: str) -> Window:
    """Return the measures of one window of text, each from 0 to about 1."""
    words, lines = text.split(), [line for line in text.split("\n") if len(line) >= 20]
    packed = len(zlib.compress(text.encode()))
    characters = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    shuffled = np.random.default_rng(0).permutation(characters).tobytes().decode("utf-32-le")
    return Window(
        text=text[:240],
        measures={
            "disorder": packed / len(zlib.compress(shuffled.encode())),
            "compression": packed / len(text.encode()),
            "repeated_words": _repeated([tuple(words[i : i + 5]) for i in range(len(words) - 4)]),
            "repeated_lines": _repeated(lines),
            "markup": sum(map(len, _TAG.findall(text))) / len(text),
        },
        language=language(text, words),
    )


def language(text: str, words: Sequence[str]) -> str:
    """Return the language whose commonest words make up 4% of the text, or else its script, or ``unknown``."""
    counts = Counter(word.lower() for word in words)
    hits = {name: sum(counts[word] for word in common) for name, common in _LANGUAGES.items()}
    best = max(hits, key=lambda name: hits[name])
    if hits[best] >= 0.04 * max(1, len(words)):
        return best
    for name, first, end in _SCRIPTS:
        if sum(first <= ord(c) < end for c in text) > 0.2 * len(text):
            return name
    return "unknown"


def signature(text: str) -> list[int]:
    """Return a document's ``BANDS`` band hashes (minhash over shingles of three words), and the hash of its text.

    A band hash joins ``ROWS`` minhashes of the document's first 2,000 characters.
    """
    words = np.array([zlib.crc32(word.encode()) for word in text[:2000].split()], dtype=np.uint64)
    if len(words) < 16:  # short documents may be similar without being copies
        return [hash_of(f"{i} {text}") for i in range(BANDS + 1)]
    shingles = words[:-2] * np.uint64(0x9E3779B97F4A7C15) + words[1:-1] * np.uint64(0xC2B2AE3D27D4EB4F) + words[2:]
    shingles ^= shingles >> np.uint64(29)
    least = (shingles[:, None] * _FACTORS >> np.uint64(20)).min(0).tolist()
    return [*(hash_of(f"{i} {least[i * ROWS : (i + 1) * ROWS]}") for i in range(BANDS)), hash_of(text)]


def hash_of(text: str) -> int:
    """Return a 64-bit hash of ``text``."""
    data = text.encode()
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def near_duplicates(bands: NDArray[np.uint64]) -> float:
    """Return the share of documents that share a band with an earlier document; exact copies are not counted.

    ``bands``: one row of :func:`signature` per document.
    """
    if not len(bands):
        return 0.0
    distinct = bands[np.unique(bands[:, -1], return_index=True)[1], :-1]
    alike = np.zeros(len(distinct), dtype=np.bool_)
    for column in distinct.T:
        _, first = np.unique(column, return_index=True)
        repeated = np.ones(len(distinct), dtype=np.bool_)
        repeated[first] = False
        alike |= repeated
    return float(alike.sum() / len(bands))


def warnings_of(name: str, quality: dict[str, Any]) -> list[str]:
    """Return a warning for each fault that is frequent in the text of source ``name``."""
    lines = [
        f"{name}: {quality[f'share_{fault}']:.0%} of the text {words}; the worst samples are below"
        for fault, words in WORDS.items()
        if quality[f"share_{fault}"] >= ALARMING
    ]
    if quality["near_duplicate_share"] >= ALIKE:
        lines.append(f"{name}: {quality['near_duplicate_share']:.1%} of the documents are near-duplicates of others")
    return lines


def _repeated(items: Sequence[Any]) -> float:
    return 1 - len(set(items)) / len(items) if items else 0.0


_FACTORS: Final = np.random.default_rng(1).integers(2**63, 2**64 - 1, BANDS * ROWS, np.uint64) | np.uint64(1)
