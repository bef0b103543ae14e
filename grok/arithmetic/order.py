"""Which training examples make mini-batch k: a pure function of (order seed, epoch)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grok.arithmetic.operations import Integers
from grok.streams import Stream


class BatchOrder:
    """The mini-batches of ``n`` examples in a new random order each epoch; the last one may be smaller.

    Nothing is advanced by asking, so evaluating, sampling, resuming or asking twice
    cannot move it.
    """

    def __init__(self, n: int, batch_size: int, *, seed: int, moved: Callable[[int], int] | None = None) -> None:
        """Make the order of ``n`` examples; ``moved(step)`` is for the coupling that shows the diary's bug.

        It returns how often something else has drawn from the order stream up to a step,
        as a validation loader on a shared generator does.
        """
        self.n = n
        self.batch_size = batch_size
        self.batches_per_epoch = -(-n // batch_size)
        self._stream = Stream("order", seed)
        self._moved = moved
        self._cached: tuple[int, Integers] | None = None

    def stream(self, epoch: int) -> Stream:
        """Return the stream whose permutation is the order of ``epoch`` (counted from 0)."""
        stream = self._stream.at(epoch)
        moved = 0 if self._moved is None else self._moved(epoch * self.batches_per_epoch)
        return stream.at("moved", moved) if moved else stream

    def epoch(self, epoch: int) -> Integers:
        """Return the permutation of the examples in ``epoch``."""
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self.stream(epoch).permutation(self.n))
        return self._cached[1]

    def batch(self, step: int) -> Integers:
        """Return the example indices of update ``step`` (counted from 1)."""
        epoch, i = divmod(step - 1, self.batches_per_epoch)
        return self.epoch(epoch)[i * self.batch_size : (i + 1) * self.batch_size]

    def padded_batch(self, step: int) -> tuple[Integers, int]:
        """Return ``batch(step)`` filled up to ``batch_size`` with its first example, and its true size."""
        index = self.batch(step)
        size = len(index)
        if size < self.batch_size:
            index = np.concatenate([index, np.full(self.batch_size - size, index[0])])
        return index, size
