"""The report on a text before training: counts, damage, duplicates, samples, and measures of its quality.

The measures are taken of windows of 8,192 characters, one in every 131,072, so that they cost a few per cent of the
preparation of a large corpus. Sources: Raffel et al. 2020 and Rae et al. 2021 (filters of web text). *Disorder* is the
compressed size of a window over the compressed size of its characters in random order.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.text.corpus import Corpus

WINDOW: Final = 8192
EVERY: Final = 2**17
"""Characters from the start of one window to the start of the next."""
SHORTEST: Final = 1024
"""Characters below which the last window is not measured."""
LIMITS: Final = {"disorder": 0.95, "compression": -0.15, "repeated_words": 0.55, "repeated_lines": 0.3, "markup": 0.05}
"""A window has a fault when its measure is above the limit."""
WORDS: Final = {
    "disorder": "looks like random letters (the order of its characters saves a compressor nothing)",
    "compression": "has little content (it compresses to a seventh)",
    "repeated_words": "repeats sequences of five words",
    "repeated_lines": "repeats lines",
    "markup": "is markup (HTML tags)",
}
ALARMING: Final = 0.02
"""Share of windows with a fault from which the report warns."""

_TAG: Final = re.compile(r"<(?!unk>|\|)[a-zA-Z/!][^<>]{0,300}>")


class Quality:
    """The measures of one source, summed while its text is read."""

    def __init__(self) -> None:
        self.characters = self.windows = 0
        self.faults: Counter[str] = Counter()
        self.worst: dict[str, list[tuple[float, str]]] = {}
        self._open = ""
        """The part of the present window that was read so far."""

    def read(self, text: str) -> None:
        """Measure the next piece of text."""
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
        measures, self._open = measure(text), ""
        self.windows += 1
        for name, limit in LIMITS.items():
            if measures[name] > limit:
                self.faults[name] += 1
                kept = [*self.worst.get(name, []), (measures[name], text[:240])]
                self.worst[name] = sorted(kept, reverse=True)[:3]

    def describe(self) -> dict[str, Any]:
        """Return the shares for the report, and the worst samples of each fault, as JSON values by name."""
        return {
            "windows": self.windows,
            **{f"share_{name}": self.faults[name] / max(1, self.windows) for name in LIMITS},
            "worst": {name: [text for _, text in kept] for name, kept in self.worst.items()},
        }


def measure(text: str) -> dict[str, float]:
    """Return the measures of one window of text by the names in ``LIMITS``: the larger, the worse."""
    words, lines = text.split(), [line for line in text.split("\n") if len(line) >= 20]
    packed = len(zlib.compress(text.encode()))
    characters = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    shuffled = np.random.default_rng(0).permutation(characters).tobytes().decode("utf-32-le")
    return {
        "disorder": packed / len(zlib.compress(shuffled.encode())),
        "compression": -packed / len(text.encode()),
        "repeated_words": _repeated([tuple(words[i : i + 5]) for i in range(len(words) - 4)]),
        "repeated_lines": _repeated(lines),
        "markup": sum(map(len, _TAG.findall(text))) / len(text),
    }


def _repeated(items: Sequence[Any]) -> float:
    return 1 - len(set(items)) / len(items) if items else 0.0


# The report on a text before training: counts, longest and shortest documents, damage, duplicates, samples.

SHORT_BYTES: Final = 20
"""A document of fewer bytes counts as short."""

_REPLACEMENT: Final = 0xFFFD
_CONTROL: Final = [code for code in range(32) if chr(code) not in "\t\n\r"]


@dataclass(frozen=True, slots=True)
class ChunkScan:
    """Counts and hashes of a chunk's ``pieces`` pieces of text, made by one worker."""

    sizes: list[int]
    """UTF-8 bytes of each piece."""
    ends: Sequence[bool]
    """Whether each piece ends a document."""
    digests: list[bytes]
    """For each piece 8 bytes of BLAKE2b."""
    counts: dict[int, int]
    """How often each character occurs, by its code point."""


def scan_chunk(texts: Sequence[str], ends: Sequence[bool]) -> ChunkScan:
    """Return counts and hashes of pieces of text."""
    encoded = [text.encode() for text in texts]
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    counts = np.bincount(codes.astype(np.int64))
    present = np.flatnonzero(counts)
    return ChunkScan(
        sizes=[len(data) for data in encoded],
        ends=ends,
        digests=[hashlib.blake2b(data, digest_size=8).digest() for data in encoded],
        counts=dict(zip(present.tolist(), counts[present].tolist(), strict=True)),
    )


@dataclass(slots=True)
class TextScan:
    """Counts and hashes of one source, summed over its chunks; needs about 24 bytes of memory a document."""

    blank_documents: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    """Number of documents by what the filters did; empty: none was asked for."""
    document_bytes: array[int] = field(default_factory=lambda: array("q"))
    document_digests: array[int] = field(default_factory=lambda: array("Q"))
    character_counts: Counter[int] = field(default_factory=Counter)
    """How often each character occurs, by its code point."""
    quality: Quality = field(default_factory=Quality)
    _open_bytes: int = 0
    _open_digest: bytes = b""

    def add(self, chunk: ChunkScan) -> None:
        """Add the next chunk; chunks come in the order of the text."""
        self.character_counts.update(chunk.counts)
        for size, digest, ends in zip(chunk.sizes, chunk.digests, chunk.ends, strict=True):
            self._open_bytes += size
            # the hash of a document in several pieces is the chained hash of the pieces
            self._open_digest = (
                hashlib.blake2b(self._open_digest + digest, digest_size=8).digest() if self._open_digest else digest
            )
            if ends:
                self.document_bytes.append(self._open_bytes)
                self.document_digests.append(int.from_bytes(self._open_digest, "little"))
                self._open_bytes, self._open_digest = 0, b""

    @property
    def characters(self) -> int:
        """Number of characters of all documents."""
        return self.character_counts.total()

    @property
    def documents(self) -> int:
        """Number of documents that are not blank."""
        return len(self.document_bytes)

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return sum(self.document_bytes)

    def digests(self) -> NDArray[np.uint64]:
        """Return a 64-bit hash of each document, ``[documents]``."""
        return np.array(self.document_digests)

    def describe(self) -> dict[str, Any]:
        """Return the numbers of the report, as JSON values by name."""
        sizes, digests = np.array(self.document_bytes), self.digests()
        count = self.character_counts
        common = sorted(count.items(), key=lambda item: (-item[1], item[0]))
        return {
            "documents": self.documents,
            "blank_documents": self.blank_documents,
            "filtered": dict(sorted(self.filtered.items())),
            "bytes": self.bytes,
            "characters": self.characters,
            "longest_document": {"number": int(sizes.argmax()), "bytes": int(sizes.max())} if len(sizes) else None,
            "shortest_document": {"number": int(sizes.argmin()), "bytes": int(sizes.min())} if len(sizes) else None,
            "short_documents": int((sizes < SHORT_BYTES).sum()),
            "duplicate_share": 1 - len(np.unique(digests)) / len(digests) if len(digests) else 0.0,
            "replacement_characters": count[_REPLACEMENT],
            "control_characters": sum(count[code] for code in _CONTROL),
            "distinct_characters": len(count),
            "share_ascii": sum(n for code, n in count.items() if code < 128) / max(1, self.characters),
            "top_characters": [[chr(code), n] for code, n in common[:20]],
            "quality": self.quality.describe(),
        }


def report(corpus: Corpus, scans: Mapping[str, TextScan], leaks: Mapping[str, int]) -> dict[str, Any]:
    """Return the corpus report as JSON values: the sources' text, the splits' tokens, samples, and warnings.

    Args:
        corpus: the prepared corpus.
        scans: the scan of each source by its name (``input``, ``val``, ``test``).
        leaks: for each split the number of its documents that are also in ``train``.
    """
    texts = {name: scan.describe() for name, scan in scans.items()}
    splits = {name: _describe_split(corpus, name) for name in corpus.splits}
    return {
        "hash": corpus.hash,
        "tokenizer": {key: corpus.manifest["tokenizer"][key] for key in ("kind", "vocab_size", "eot_id", "hash")},
        "text": texts,
        "splits": splits,
        "documents_also_in_train": dict(leaks),
        "samples": {name: _samples(corpus, name) for name in corpus.splits},
        "warnings": _warnings(texts, splits, leaks),
    }


def _describe_split(corpus: Corpus, name: str) -> dict[str, Any]:
    entry = corpus.split(name)
    used = np.zeros(corpus.vocab_size, dtype=np.int64)
    with (corpus.path / entry["file"]).open("rb") as file:  # not memory-mapped: mapped pages count as memory in use
        while len(ids := np.fromfile(file, dtype=np.dtype(corpus.manifest["dtype"]), count=2**22)):
            used += np.bincount(ids, minlength=corpus.vocab_size)
    return {
        **{key: entry[key] for key in ("documents", "tokens", "bytes", "words")},
        "bytes_per_token": entry["bytes"] / max(1, entry["tokens"]),
        "ids_used": int((used > 0).sum()),
        "ids": corpus.vocab_size,
        "top_tokens": [[corpus.tokenizer.decode([int(i)]), int(used[i])] for i in np.argsort(-used)[:10] if used[i]],
    }


def _samples(corpus: Corpus, name: str) -> dict[str, str]:
    """Return the decoded first 240 bytes or so of the first, middle, last, longest and shortest document, by label."""
    entry = corpus.split(name)
    tokens = round(240 * entry["tokens"] / max(1, entry["bytes"]))
    ids, offsets = corpus.tokens(name), corpus.documents(name)
    lengths = np.diff(offsets)
    chosen = {"first": 0, "middle": len(lengths) // 2, "last": len(lengths) - 1}
    chosen |= {"longest": int(lengths.argmax()), "shortest": int(lengths.argmin())}
    labels: dict[int, str] = {}
    for label, i in chosen.items():
        labels.setdefault(i, label)
    return {
        f"{label} (document {i})": corpus.tokenizer.decode(
            ids[offsets[i] : min(offsets[i + 1], offsets[i] + tokens)].tolist()
        )
        for i, label in labels.items()
    }


def _warnings(
    texts: Mapping[str, Mapping[str, Any]], splits: Mapping[str, Mapping[str, Any]], leaks: Mapping[str, int]
) -> list[str]:
    warnings: list[str] = []

    def warn(found: object, words: str) -> None:
        if found:
            warnings.append(words)

    for name, text in texts.items():
        replaced, control, short = text["replacement_characters"], text["control_characters"], text["short_documents"]
        warn(replaced, f"{name}: {replaced:,} characters were not UTF-8 (now U+FFFD)")
        strange = control > max(1, text["characters"]) / 10_000
        warn(strange, f"{name}: {control:,} control characters: the input may not be text")
        repeated = text["duplicate_share"]
        warn(repeated > 0.01, f"{name}: {repeated:.1%} of the documents repeat an earlier one, word for word")
        if text["documents"] > 1:
            longest, share = text["longest_document"], text["longest_document"]["bytes"] / text["bytes"]
            warn(share > 0.2, f"{name}: document {longest['number']} alone is {share:.0%} of the text")
        warn(short > 0.01 * text["documents"], f"{name}: {short:,} documents have fewer than {SHORT_BYTES} bytes")
        warn(text["blank_documents"], f"{name}: {text['blank_documents']:,} blank documents were left out")
        for fault, words in WORDS.items():
            share = text["quality"][f"share_{fault}"]
            warn(share >= ALARMING, f"{name}: {share:.0%} of the text {words}; the worst samples are below")
    for name, count in leaks.items():
        warn(count, f"{name}: {count:,} of {splits[name]['documents']:,} documents are also in train")
    for name, split in splits.items():
        few = split["bytes_per_token"]
        unfit = few < 1.5 and split["ids"] > 1000
        warn(unfit, f"{name}: only {few:.2f} bytes a token: the tokeniser may not fit this text")
    return warnings


def to_markdown(content: Mapping[str, Any], title: str) -> str:
    """Return the report as a Markdown page; ``title`` is the corpus's name."""
    tokenizer = content["tokenizer"]
    end = "none" if tokenizer["eot_id"] is None else tokenizer["eot_id"]
    lines = [
        f"# Corpus {title}",
        "",
        f"Data hash `{content['hash'][:20]}`; tokeniser {tokenizer['kind']}, {tokenizer['vocab_size']:,} ids,"
        f" end of text {end}.",
        "",
        *("## Warnings", "", *([f"- {warning}" for warning in content["warnings"]] or ["None."]), ""),
        *("## Splits", "", *_split_table(content["splits"]), ""),
        *("## Text", "", *_text_table(content["text"]), ""),
    ]
    for name, text in content["text"].items():
        for fault, worst in text["quality"]["worst"].items():
            lines += [f"## Worst samples of {name}: {fault.replace('_', ' ')}", ""]
            for beginning in worst:
                lines += ["````text", beginning.strip("\n"), "````", ""]
    for name, samples in content["samples"].items():
        lines += [f"## Samples of {name}", ""]
        for label, text in samples.items():
            lines += [f"**{label}**", "", "```text", text.strip("\n"), "```", ""]
    return "\n".join(lines)


def _split_table(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = ["| split | documents | tokens | bytes | words | bytes/token | ids used |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, s in splits.items():
        rows.append(
            f"| {name} | {s['documents']:,} | {s['tokens']:,} | {s['bytes']:,} | {s['words']:,}"
            f" | {s['bytes_per_token']:.3f} | {s['ids_used']:,} of {s['ids']:,} |"
        )
    return rows


def _text_table(texts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    def size(document: Mapping[str, Any] | None) -> str:
        return "none" if document is None else f"{document['bytes']:,} bytes (document {document['number']:,})"

    measures: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "documents": lambda t: f"{t['documents']:,}",
        "filters": lambda t: ", ".join(f"{n:,} {what}" for what, n in t["filtered"].items()) or "none",
        "bytes": lambda t: f"{t['bytes']:,}",
        "characters": lambda t: f"{t['characters']:,}, {t['distinct_characters']:,} distinct",
        "longest document": lambda t: size(t["longest_document"]),
        "shortest document": lambda t: size(t["shortest_document"]),
        "word-for-word duplicates": lambda t: f"{t['duplicate_share']:.2%}",
        "not UTF-8 (U+FFFD)": lambda t: f"{t['replacement_characters']:,}",
        "ASCII": lambda t: f"{t['share_ascii']:.2%}",
        "commonest characters": lambda t: " ".join(_shown(c) for c, _ in t["top_characters"]),
    }
    rows = [f"| {name} | {' | '.join(map(show, texts.values()))} |" for name, show in measures.items()]
    return [f"| | {' | '.join(texts)} |", "|---|" + "---|" * len(texts), *rows]


def _shown(character: str) -> str:
    if character == "|":
        return "`\\|`"
    return f"`{character}`" if character.isprintable() and character not in " `" else f"U+{ord(character):04X}"
