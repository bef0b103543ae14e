"""The data order: the training examples of mini-batch k, a pure function of (order seed, epoch)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grok.arithmetic.operations import Integers
from grok.streams import Stream


class BatchOrder:
    """The mini-batches of ``n`` examples in a new random order each epoch; the last one may be smaller.

    A call changes no state, so evaluation, sampling, a resume or a repeated call cannot
    change the order.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        seed: int,
        moved: Callable[[int], int] | None = None,
        switch: tuple[int, int] | None = None,
    ) -> None:
        """Make the order of ``n`` examples.

        Args:
            n: number of training examples.
            batch_size: examples of a mini-batch.
            seed: the order seed.
            moved: reproduces the diary's bug, in which evaluations changed the data order. It returns for a step
                how often the validation loader has drawn from the shared generator until then.
            switch: (step, seed): each update after this step takes the batch that this seed gives at the update's
                step. Inside an epoch some examples come twice, then, and some not at all.
        """
        self.n = n
        self.batch_size = batch_size
        self.batches_per_epoch = -(-n // batch_size)
        self._seed = seed
        self._moved = moved
        self._switch = switch
        self._cached: tuple[tuple[int, int], Integers] | None = None

    def place(self, step: int) -> tuple[int, int]:
        """Return (order seed, epoch) of update ``step`` (counted from 1): they decide the order of the examples."""
        seed = self._seed if self._switch is None or step <= self._switch[0] else self._switch[1]
        return seed, (step - 1) // self.batches_per_epoch

    def stream(self, seed: int, epoch: int) -> Stream:
        """Return the stream whose permutation is the order of ``epoch`` (counted from 0)."""
        stream = Stream("order", seed).at(epoch)
        moved = 0 if self._moved is None else self._moved(epoch * self.batches_per_epoch)
        return stream.at("moved", moved) if moved else stream

    def epoch(self, seed: int, epoch: int) -> Integers:
        """Return the permutation of the examples in ``epoch``."""
        if self._cached is None or self._cached[0] != (seed, epoch):
            self._cached = ((seed, epoch), self.stream(seed, epoch).permutation(self.n))
        return self._cached[1]

    def batch(self, step: int) -> Integers:
        """Return the example indices of update ``step`` (counted from 1)."""
        i = (step - 1) % self.batches_per_epoch
        return self.epoch(*self.place(step))[i * self.batch_size : (i + 1) * self.batch_size]

    def padded_batch(self, step: int) -> tuple[Integers, int]:
        """Return ``batch(step)``, padded to ``batch_size`` with its first example, and its size without padding."""
        index = self.batch(step)
        size = len(index)
        if size < self.batch_size:
            index = np.concatenate([index, np.full(self.batch_size - size, index[0])])
        return index, size
