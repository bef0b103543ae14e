"""The tokens on which a step trains, of one corpus or several, and the windows that an evaluation scores. No torch.

Training: the split is cut into blocks of ``context`` inputs; the targets are the inputs shifted by one
token. Each epoch has its own random order of the blocks, and batches take them in that order. The order
is a function of (order seed, number of the sample) alone, so evaluations, restarts and workers do not
change it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError
from grok.streams import Stream

Draw = Callable[[int], NDArray[np.int64]]
"""Returns random numbers by the number of the draw, always as many. A batch needs at most two draws, unless it is
larger than one: so many are kept."""

_OFFSETS_AT_ONCE: Final = 4096


class BlockOrder:
    """The offsets in tokens of blocks. Every token of a split but the first is a target.

    An epoch has ``blocks_per_epoch = (n_tokens - 1) // context`` blocks that do not
    overlap, so every target is used at most once in an epoch. The remaining ``(n_tokens - 1) % context`` targets
    are before the first and after the last block. Each epoch draws the offset of the first block, so that no
    token is left out of every epoch. A batch may extend across the end of an epoch: no block is dropped.

    ``random``: every offset is drawn from the uniform distribution over all offsets with room for a block.
    """

    def __init__(self, n_tokens: int, context: int, seed: int, random: bool = False) -> None:
        check_length(n_tokens, context)
        self.n_tokens, self.context, self.seed, self.random = n_tokens, context, seed, random
        self._draw: Draw = lru_cache(maxsize=2)(self._offsets if random else self._epoch)

    @property
    def blocks_per_epoch(self) -> int:
        """Blocks in an epoch: each has ``context`` targets, and the first token is not a target."""
        return (self.n_tokens - 1) // self.context

    def samples(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the block offsets ``[count]`` of the samples from number ``first`` on."""
        return _stretch(self._draw, _OFFSETS_AT_ONCE if self.random else self.blocks_per_epoch, first, count)

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        stream = Stream("order", self.seed).at("epoch", epoch)
        left_over = (self.n_tokens - 1) % self.context
        first = int(stream.at("first").integers(1, left_over + 1)[0])
        return first + self.context * stream.permutation(self.blocks_per_epoch)

    def _offsets(self, number: int) -> NDArray[np.int64]:
        return Stream("order", self.seed).at("random", number).integers(_OFFSETS_AT_ONCE, self.n_tokens - self.context)


def _stretch(draw: Draw, length: int, first: int, count: int) -> NDArray[np.int64]:
    """Return ``count`` numbers from number ``first`` on; ``draw`` returns ``length`` of them."""
    parts = [np.zeros(0, dtype=np.int64)]
    while count > 0:
        number, position = divmod(first, length)
        parts.append(draw(number)[position : position + count])
        first, count = first + len(parts[-1]), count - len(parts[-1])
    return np.concatenate(parts)


def check_length(n_tokens: int, context: int, split: str = "") -> None:
    """Refuse a text (or its ``split``) that is shorter than one block.

    Raises:
        DataError: fewer than ``context + 1`` tokens.
    """
    if n_tokens < context + 1:
        text = f"the {split} split" if split else "the text"
        raise DataError(
            f"{text} has {n_tokens:,} tokens, a block needs {context + 1:,} (context {context:,} and one target more):"
            " use more text or a shorter model.context"
        )


def gather(
    tokens: NDArray[np.unsignedinteger[Any]], starts: NDArray[np.int64], context: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets ``[B, T]`` of the blocks at ``starts``: targets are the inputs shifted by one token."""
    blocks = np.asarray(tokens)[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return blocks[:, :-1], blocks[:, 1:]


def sliding_windows(n_tokens: int, context: int, stride: int) -> np.recarray[tuple[Any, ...], np.dtype[Any]]:
    """Return windows ``stride`` apart; with ``stride=context`` they do not overlap, and the last may be shorter.

    Window ``i`` has ``lengths[i]`` inputs from offset ``starts[i]``; its first ``skipped[i]`` targets are not
    scored, so that every target is scored exactly once. Each target outside the first window is predicted from at
    least ``context - stride`` tokens.

    Raises:
        DataError: fewer than two tokens, or a stride outside 1 to ``context``.
    """
    if not 1 <= stride <= context:
        raise DataError(f"--stride {stride}: expected a whole number from 1 to the context, {context}")
    check_length(n_tokens, 1)
    targets = n_tokens - 1
    count = 1 + max(0, -((context - targets) // stride))
    ends = np.minimum(context + stride * np.arange(count, dtype=np.int64), targets)
    begins = np.append(np.int64(0), ends[:-1])  # first scored target of each window
    # The last sliding window also has a whole context. Fixed windows do not overlap, so the last may be shorter.
    starts = begins if stride == context else np.maximum(ends - context, 0)
    columns = [(name, np.int64) for name in ("starts", "lengths", "skipped")]
    return np.rec.fromarrays([starts, ends - starts, begins - starts], dtype=columns)


# Several corpora as one training set: the corpus and the block of each sequence. No torch.
#
# The corpus of a sequence is drawn from the order stream, with the corpora's shares as probabilities. Stratified, one
# draw decides the numbers of a whole batch (systematic sampling), and another one their order. The k-th sequence of a
# corpus is the k-th of that corpus's own order. Both are functions of (order seed, number of the sequence) alone.

HASH_DIGITS: Final = 20
"""Digits of a corpus's hash in the settings of a run, as in the corpus report."""

_DRAWN_AT_ONCE: Final = 4096


def shares_by_hash(weights: Mapping[str, float], hashes: Mapping[str, str]) -> dict[str, float]:
    """Return each corpus's share of the training sequences by its short hash, in the order of the hashes.

    Weights are divided by their sum. Corpora of equal content are one corpus, with the sum of their weights. A weight
    of 0 leaves a corpus out. Shares are rounded to 12 digits: {1, 3} and {0.25, 0.75} are the same mixture.

    >>> shares_by_hash({"a": 1, "b": 3, "c": 0}, {"a": "f0", "b": "e1", "c": "d2"})
    {'e1': 0.75, 'f0': 0.25}
    """
    total = math.fsum(weights.values())
    by_hash: dict[str, list[float]] = {}
    for name in sorted(weights, key=lambda name: hashes[name]):
        if weights[name] > 0:
            by_hash.setdefault(hashes[name][:HASH_DIGITS], []).append(weights[name])
    return {short: round(math.fsum(parts) / total, 12) for short, parts in by_hash.items()}


def set_hash(manifest: Mapping[str, Any], split: str) -> str:
    """Return the short hash of a corpus as a validation set: another set, another hash.

    The hash of a corpus covers ``train`` and ``val``. That of the set ``test`` covers its own tokens, too.
    """
    whole = str(manifest["hash"])
    if split == "test" and split in manifest["splits"]:
        entry = manifest["splits"][split]
        whole = hashlib.sha256("\n".join([whole, entry["sha256"], entry["documents_sha256"]]).encode()).hexdigest()
    return whole[:HASH_DIGITS]


class MixtureOrder:
    """The order of a mixture: the corpus and the block of every sequence."""

    def __init__(
        self, orders: Sequence[BlockOrder], shares: Sequence[float], seed: int, stratum: int | None = None
    ) -> None:
        """``orders``: the order of each corpus's own blocks. ``seed``: the order seed of the run.

        ``stratum``: sequences of a batch in which each corpus has its share, rounded up or down; None: each one is
        drawn alone.
        """
        self.orders, self.shares, self.seed, self.stratum = orders, shares, seed, stratum
        self._before = [np.zeros(len(orders), dtype=np.int64)]
        """For each draw the number of sequences of each corpus before it."""
        self._draw: Draw = lru_cache(maxsize=2)(self._corpora)

    def samples(self, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return corpus numbers and block offsets, ``[count]`` each, of the sequences from number ``first`` on."""
        if len(self.orders) == 1:
            return np.zeros(count, dtype=np.int64), self.orders[0].samples(first, count)
        corpora = _stretch(self._draw, self._drawn_at_once, first, count)
        starts = np.empty(count, dtype=np.int64)
        before = self._count_before(first)
        for number, order in enumerate(self.orders):
            rows = np.flatnonzero(corpora == number)
            starts[rows] = order.samples(int(before[number]), len(rows))
        return corpora, starts

    @property
    def _drawn_at_once(self) -> int:
        """The number of sequences of a draw: whole batches, where they are stratified."""
        size = self.stratum or 1
        return size * max(1, _DRAWN_AT_ONCE // size)

    def _count_before(self, first: int) -> NDArray[np.int64]:
        """Return the number of sequences of each corpus before the sequence ``first``, ``[corpora]``."""
        number, position = divmod(first, self._drawn_at_once)
        while len(self._before) <= number:
            self._before.append(self._before[-1] + self._counted(self._draw(len(self._before) - 1)))
        return self._before[number] + self._counted(self._draw(number)[:position])

    def _counted(self, corpora: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(corpora, minlength=len(self.orders)).astype(np.int64)

    def _corpora(self, number: int) -> NDArray[np.int64]:
        stream = Stream("order", self.seed).at("mixture", number)
        words = stream.uniform(self._drawn_at_once)
        if self.stratum is not None:
            batches = words.reshape(-1, self.stratum)
            starts = stream.at("starts").uniform(len(batches))
            words = ((batches.argsort(1).argsort(1) + starts[:, None]) / self.stratum).flatten()
        return np.searchsorted(np.cumsum(self.shares)[:-1], words, side="right").astype(np.int64)
