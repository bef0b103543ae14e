"""The batch of every step, a pure function of (order seed, step). A checkpoint needs no state of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grok.config.gpt import GptConfig
from grok.gpt.training.optimizer import batch_ramp
from grok.gpt.training.schedules import Ramp
from grok.gpt.training.stability import Branch
from grok.gpt.training.texts import Source
from grok.streams import Stream
from grok.text.corpus import Corpus
from grok.text.mixture import HASH_DIGITS, MixtureOrder
from grok.text.windows import BlockOrder, Sampling, check_length, gather


class Batches:
    """The training batches of one run, from one or more corpora.

    Raises:
        DataError: a training text is shorter than one block.
    """

    def __init__(self, config: GptConfig, corpus: Corpus, sources: Sequence[Source] = ()) -> None:
        self.config, self.sources = config, tuple(sources) or (Source(corpus, 1.0),)
        self.tokens = [source.corpus.tokens("train") for source in self.sources]
        self.context = config.model.context
        for tokens in self.tokens:
            check_length(len(tokens), self.context)
        self.batch, self.length = batch_ramp(config), Ramp.of(config.train.context_ramp, self.context)
        self.orders: dict[int, MixtureOrder] = {}

    def starts(self, k: int, branch: Branch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each sequence of update ``k`` the number of its corpus and its start in the tokens."""
        first = self.batch.consumed(k - 1) + branch.skipped_samples
        size = self.batch.size_at(self.batch.consumed(k - 1))
        return self._order(branch).samples(first, size)

    def step(self, k: int, branch: Branch) -> tuple[Tensor, Tensor]:
        """Return tokens and targets [B, T] of update ``k`` (from 1) on ``branch``, on the CPU."""
        corpora, starts = self.starts(k, branch)
        length = self.length.size_at(self.batch.consumed(k - 1))
        x, y = np.empty((2, len(starts), length), dtype=np.int64)
        for number, tokens in enumerate(self.tokens):
            rows = corpora == number
            x[rows], y[rows] = gather(tokens, starts[rows], length)
        return torch.from_numpy(x), torch.from_numpy(y)

    def epochs(self, sequences: int) -> list[float]:
        """Return the expected number of epochs of each corpus in ``sequences`` of the training set."""
        blocks = [(len(tokens) - 1) // self.context for tokens in self.tokens]
        return [sequences * source.share / n for source, n in zip(self.sources, blocks, strict=True)]

    def per_epoch(self) -> float:
        """Return the number of batches in an epoch of the corpus that is repeated first."""
        return 1 / (self.batch.full * max(self.epochs(1)))

    def _order(self, branch: Branch) -> MixtureOrder:
        if branch.order not in self.orders:
            seed = self.config.stream_seeds().order
            if branch.order:
                seed = Stream("order", seed).at("rollback", branch.order).seed64()
            self.orders[branch.order] = MixtureOrder(
                [self._blocks(source, tokens, seed) for source, tokens in zip(self.sources, self.tokens, strict=True)],
                [source.share for source in self.sources],
                seed,
            )
        return self.orders[branch.order]

    def _blocks(self, source: Source, tokens: NDArray[Any], seed: int) -> BlockOrder:
        """Return the order of one corpus's blocks, which does not depend on the other corpora."""
        if len(self.sources) > 1:
            seed = Stream("order", seed).at("corpus", source.corpus.hash[:HASH_DIGITS]).seed64()
        sampling: Sampling = "blocks" if self.config.data.sampling == "blocks" else "random"
        return BlockOrder(len(tokens), self.context, self.batch.full, seed, sampling)


def validation_starts(n_tokens: int, context: int, windows: int | None) -> NDArray[np.int64]:
    """Return the starts of the validation windows: non-overlapping blocks, ``windows`` of them evenly spaced.

    Raises:
        DataError: the validation text is shorter than one block.
    """
    check_length(n_tokens, context)
    blocks = (n_tokens - 1) // context
    chosen = np.arange(blocks) if windows is None or windows >= blocks else np.arange(windows) * blocks // windows
    return chosen.astype(np.int64) * context
