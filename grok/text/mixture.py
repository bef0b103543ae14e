"""Several corpora as one training set: the corpus and the block of each sequence. No torch.

The corpus of a sequence is drawn from the order stream, with the corpora's shares as probabilities. The k-th sequence
of a corpus is the k-th of that corpus's own order. Both are functions of (order seed, number of the sequence) alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.streams import Stream
from grok.text.windows import BlockOrder

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


@dataclass(slots=True)
class MixtureOrder:
    """The order of a mixture: the corpus and the block of every sequence."""

    orders: Sequence[BlockOrder]
    """The order of each corpus's own blocks."""
    shares: Sequence[float]
    seed: int
    """The order seed of the run."""
    _before: list[NDArray[np.int64]] = field(default_factory=list, repr=False, compare=False)
    """For each draw the number of sequences of each corpus before it."""
    _drawn: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    def samples(self, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return corpus numbers and block offsets, ``[count]`` each, of the sequences from number ``first`` on."""
        if len(self.orders) == 1:
            return np.zeros(count, dtype=np.int64), self.orders[0].samples(first, count)
        corpora = self._corpora(first, count)
        starts = np.empty(count, dtype=np.int64)
        before = self._count_before(first)
        for number, order in enumerate(self.orders):
            rows = np.flatnonzero(corpora == number)
            starts[rows] = order.samples(int(before[number]), len(rows))
        return corpora, starts

    def _corpora(self, first: int, count: int) -> NDArray[np.int64]:
        parts = [np.zeros(0, dtype=np.int64)]
        while count > 0:
            number, position = divmod(first, _DRAWN_AT_ONCE)
            taken = min(count, _DRAWN_AT_ONCE - position)
            parts.append(self._draw(number)[position : position + taken])
            first, count = first + taken, count - taken
        return np.concatenate(parts)

    def _count_before(self, first: int) -> NDArray[np.int64]:
        """Return the number of sequences of each corpus before the sequence ``first``, ``[corpora]``."""
        number, position = divmod(first, _DRAWN_AT_ONCE)
        if not self._before:
            self._before.append(np.zeros(len(self.orders), dtype=np.int64))
        while len(self._before) <= number:
            self._before.append(self._before[-1] + self._counted(self._draw(len(self._before) - 1)))
        return self._before[number] + self._counted(self._draw(number)[:position])

    def _counted(self, corpora: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(corpora, minlength=len(self.orders)).astype(np.int64)

    def _draw(self, number: int) -> NDArray[np.int64]:
        if number not in self._drawn:
            while len(self._drawn) > 1:
                self._drawn.pop(next(iter(self._drawn)))
            words = Stream("order", self.seed).at("mixture", number).uniform(_DRAWN_AT_ONCE)
            bounds = np.cumsum(self.shares)[:-1]
            self._drawn[number] = np.searchsorted(bounds, words, side="right").astype(np.int64)
        return self._drawn[number]
