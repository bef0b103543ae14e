"""How well a model predicts a split: loss, perplexity per token and per word, bits per byte.

All figures come from the sum of the losses in nats, divided by the number of tokens, words or UTF-8 bytes. Figures per
token depend on the tokeniser. Figures per word (counted in the source text by the corpus's rule) and per byte do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grok.errors import DataError
from grok.gpt.model import GPT, longest_context
from grok.text.corpus import Corpus, check_vocabulary
from grok.text.documents import FORMS
from grok.text.windows import sliding_windows


@dataclass(frozen=True, slots=True)
class Score:
    """The losses of a model on a text, summed."""

    nats: float
    """Sum of the cross-entropies of all scored tokens."""
    scored: int
    """Tokens scored: all, except the first of a corpus without ``<|endoftext|>``, which has no token before it."""
    correct: int
    """Scored tokens that were the most likely ones."""
    bytes: int
    """UTF-8 bytes of the source text."""
    words: int | None
    """Words of the source text by the corpus's rule; None if only a part of a detokenised text was scored."""

    @property
    def loss(self) -> float:
        """Mean cross-entropy of a token in nats."""
        return self.nats / self.scored

    @property
    def accuracy(self) -> float:
        """Share of tokens that were the most likely ones."""
        return self.correct / self.scored

    @property
    def perplexity(self) -> float:
        """Perplexity per token."""
        return exp(self.loss)

    @property
    def word_perplexity(self) -> float | None:
        """Perplexity per word: the exponential of all nats over the number of words."""
        return None if not self.words else exp(self.nats / self.words)

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the source text."""
        return self.nats / math.log(2) / self.bytes

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        figures = ("loss", "perplexity", "word_perplexity", "bits_per_byte", "accuracy")
        counts = {"tokens_scored": self.scored, "words": self.words, "bytes": self.bytes}
        return {name: getattr(self, name) for name in figures} | counts


def exp(x: float) -> float:
    """Return the exponential of ``x``, or infinity if it overflows."""
    return math.exp(x) if x < 709 else math.inf


@torch.no_grad()
def score_split(
    model: GPT,
    corpus: Corpus,
    split: str,
    *,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    limit: int | None = None,
    autocast: torch.dtype | None = None,
) -> Score:
    """Return the score of ``model`` on a split, in windows of ``context`` tokens (default: the model's).

    Windows do not overlap, or are ``stride`` apart, so that each token is predicted from at least
    ``context - stride`` tokens before it. If the corpus's documents end with ``<|endoftext|>``, one is put before the
    text. ``limit``: score only the first tokens, this many.

    Raises:
        DataError: the split is empty, the model lacks ids, ``context`` is longer than its positions, or ``limit`` is
            given and the command does not name the code of the tokeniser.
    """
    check_vocabulary(corpus, model.vocab_size)
    context = context or model.config.context
    if context > longest_context(model):
        raise DataError(
            f"--context {context}: the model has learned positions for {model.config.context} tokens;"
            " only rotary and ALiBi models can look further"
        )
    tokens: NDArray[np.unsignedinteger[Any]] = corpus.tokens(split)
    if limit is not None and limit < len(tokens):
        tokens, words, n_bytes = tokens[:limit], *_measure(corpus, tokens[:limit])
    else:
        words, n_bytes = corpus.split(split)["words"], corpus.split(split)["bytes"]
    first = corpus.document_end
    length = len(tokens) + (first is not None)
    windows = sliding_windows(length, context, context if stride is None else stride)  # of fixed ones none overlap
    nats, correct, scored = 0.0, 0, 0
    was_training = model.training
    model.eval()
    equally_long: list[Any] = np.split(windows, np.flatnonzero(np.diff(windows.lengths)) + 1)
    for group in equally_long:
        for chosen in (group[i : i + batch_size] for i in range(0, len(group), batch_size)):
            inputs, targets = _gather(tokens, first, chosen.starts, int(chosen.lengths[0]))
            x, y = torch.from_numpy(inputs).to(model.device), torch.from_numpy(targets).to(model.device)
            with torch.autocast(model.device.type, dtype=autocast, enabled=autocast is not None):
                losses, hits, _ = model.score(x, y)
            rows = zip(losses.view_as(y).double().cpu().numpy(), hits.view_as(y).cpu().numpy(), strict=True)
            for skipped, (row, hit) in zip(chosen.skipped, rows, strict=True):
                nats, correct = nats + float(row[skipped:].sum()), correct + int(hit[skipped:].sum())
                scored += len(row) - int(skipped)
    model.train(was_training)
    return Score(nats=nats, scored=scored, correct=correct, bytes=n_bytes, words=words)


def _measure(corpus: Corpus, tokens: NDArray[np.unsignedinteger[Any]]) -> tuple[int | None, int]:
    """Return words and bytes of the source text behind some tokens, counted in each document as `grok prepare` does."""
    parts = [tokens] if corpus.eot_id is None else np.split(tokens, np.flatnonzero(tokens == corpus.eot_id))
    texts = [corpus.tokenizer.decode(int(i) for i in part if i != corpus.eot_id) for part in parts]
    n_bytes = sum(len(text.encode()) for text in texts)
    if corpus.manifest["detokenizer"] is not None:
        return None, n_bytes
    return sum(map(FORMS[corpus.manifest["form"]].words, texts)), n_bytes


def _gather(
    tokens: NDArray[np.unsignedinteger[Any]], first: int | None, starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return inputs and targets ``[B, length]`` of the tokens, with ``first`` before them (None: nothing)."""
    places = starts[:, None] + np.arange(length + 1) - (first is not None)
    block = np.asarray(tokens)[np.maximum(places, 0)].astype(np.int64)
    if first is not None:
        block[places < 0] = first
    return block[:, :-1].copy(), block[:, 1:].copy()
