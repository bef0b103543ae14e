"""The texts of a run, and the batch of every step, a pure function of (order seed, step)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grok.config.gpt import GptConfig
from grok.errors import ConfigError, DataError
from grok.gpt.schedules import Ramp, batch_ramp
from grok.gpt.training.stability import Branch
from grok.streams import Stream
from grok.text.corpus import Corpus, open_corpus, refuse_other_tokenizer
from grok.text.windows import HASH_DIGITS, BlockOrder, MixtureOrder, check_length, gather, set_hash, shares_by_hash

# The texts of one run, opened and verified: its training texts and its validation texts.

TRAINED_ON: Final = ("train", "val")
"""The splits that a run reads of its main corpus."""
_VERIFIED: Final[set[tuple[Any, ...]]] = set()
"""Token files that this process has read and verified."""
_AGAIN: Final = "give the command again"


Source = tuple[Corpus, float]
"""One corpus of the training set, and its share of the training sequences."""


@dataclass(frozen=True, slots=True)
class Texts:
    """All corpora that a run reads."""

    corpus: Corpus
    """The corpus of ``data.path``, with the tokeniser and the main validation set."""
    sources: tuple[Source, ...]
    """The training corpora, ordered by their hashes."""
    validation: Mapping[str, tuple[Corpus, str]] = field(default_factory=dict)
    """Further validation sets by name: corpus and split."""

    @classmethod
    def of(cls, corpus: Corpus) -> Texts:
        """Return the texts of a run with ``corpus`` as training and validation set."""
        return cls(corpus, ((corpus, 1.0),))

    def refuse_changed(self) -> None:
        """Refuse to continue with tokens that were overwritten in place.

        Raises:
            DataError: the tokens of a split that the run reads are no longer those of the manifest.
        """
        for corpus, splits in self.read():
            corpus.refuse_changed(splits)

    def read(self) -> list[tuple[Corpus, tuple[str, ...]]]:
        """Return each corpus with the splits that the run reads."""
        others = [corpus for corpus, _ in self.sources if corpus is not self.corpus]
        further = [(corpus, (split,)) for corpus, split in self.validation.values()]
        return [(self.corpus, TRAINED_ON), *((corpus, ("train",)) for corpus in others), *further]


def open_data(config: GptConfig) -> Texts:
    """Return the texts that ``config`` names, after comparing all their tokens with the manifests.

    The manifests' hashes are part of the ``run_id``, so a run must not train on other tokens.

    Raises:
        ConfigError: no path is given.
        DataError: a corpus is missing or damaged, has another tokeniser, or does not have the hash in the ``run_id``.
    """
    data = config.data
    if data.path is None:
        raise ConfigError("data.path is not given: expected a folder made by `grok prepare`")
    main = open_corpus(data.path)
    corpora = {name: main if folder == data.path else open_corpus(folder) for name, folder in data.folders().items()}
    for corpus in corpora.values():
        refuse_other_tokenizer(corpus, main)
    sources: tuple[Source, ...] = ((main, 1.0),)
    if data.mixture:
        shares = shares_by_hash(data.mixture, {name: corpora[name].hash for name in data.mixture})
        by_hash = {corpora[name].hash[:HASH_DIGITS]: corpora[name] for name in data.mixture}
        by_hash[main.hash[:HASH_DIGITS]] = main
        if data.mixture_hashes not in ({}, shares):
            raise DataError("a corpus of data.mixture is not the one that this run was named after: " + _AGAIN)
        sources = tuple((by_hash[short], share) for short, share in shares.items())
    validation = {entry: (corpora[name], split) for entry, (name, split) in data.validation_sets().items()}
    for entry, (corpus, split) in validation.items():
        now = set_hash(corpus.manifest, split)
        if data.validation_hashes.get(entry, now) != now:
            raise DataError(f"data.validation: {entry} is not the corpus that this run was named after: " + _AGAIN)
    texts = Texts(main, sources, validation)
    for corpus, splits in texts.read():
        files = (corpus.hash, *splits, *corpus.stamps(splits))
        if files not in _VERIFIED:  # a process may train many runs on one corpus
            corpus.verify(splits)
            _VERIFIED.add(files)
    return texts


# The batch of every step, a pure function of (order seed, step). A checkpoint needs no state of it.


class Batches:
    """The training batches of one run, from one or more corpora.

    Raises:
        DataError: a training text is shorter than one block.
    """

    def __init__(self, config: GptConfig, sources: Sequence[Source]) -> None:
        self.config, self.sources = config, sources
        self.tokens = [corpus.tokens("train") for corpus, _ in self.sources]
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
        return [sequences * share / n for (_, share), n in zip(self.sources, blocks, strict=True)]

    def per_epoch(self) -> float:
        """Return the number of batches in an epoch of the corpus that is repeated first."""
        return 1 / (self.batch.full * max(self.epochs(1)))

    def _order(self, branch: Branch) -> MixtureOrder:
        if branch.order not in self.orders:
            seed = self.config.stream_seeds().order
            if branch.order:
                seed = Stream("order", seed).at("rollback", branch.order).seed64()
            self.orders[branch.order] = MixtureOrder(
                [
                    self._blocks(corpus, tokens, seed)
                    for (corpus, _), tokens in zip(self.sources, self.tokens, strict=True)
                ],
                [share for _, share in self.sources],
                seed,
                self.batch.full if self.config.data.sampling == "stratified" else None,
            )
        return self.orders[branch.order]

    def _blocks(self, corpus: Corpus, tokens: NDArray[Any], seed: int) -> BlockOrder:
        """Return the order of one corpus's blocks, which does not depend on the other corpora."""
        if len(self.sources) > 1:
            seed = Stream("order", seed).at("corpus", corpus.hash[:HASH_DIGITS]).seed64()
        return BlockOrder(len(tokens), self.context, seed, self.config.data.sampling == "random")


def validation_starts(n_tokens: int, context: int, windows: int | None) -> NDArray[np.int64]:
    """Return the starts of the validation windows: non-overlapping blocks, ``windows`` of them evenly spaced.

    Raises:
        DataError: the validation text is shorter than one block.
    """
    check_length(n_tokens, context)
    blocks = (n_tokens - 1) // context
    chosen = np.arange(blocks) if windows is None or windows >= blocks else np.arange(windows) * blocks // windows
    return chosen.astype(np.int64) * context
