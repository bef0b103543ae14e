"""Continuations of a prompt with temperature, top-k and top-p, drawn from the sample stream.

Sample ``j`` of prompt ``i`` draws from the stream ``sample`` at (i, j). So more samples, other prompts or another batch
size do not change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grok.errors import DataError
from grok.gpt.model import GPT, longest_context
from grok.streams import Stream


@dataclass(frozen=True, slots=True)
class Sampler:
    """How the next token is drawn."""

    temperature: float = 1.0
    """Divides the logits; 0: always the most likely token."""
    top_k: int | None = None
    """Draw from this many most likely tokens; of equally likely ones the lower id comes first."""
    top_p: float | None = None
    """Draw from the fewest most likely tokens that have this much probability together (Holtzman et al. 2020)."""

    def choose(self, logits: NDArray[np.floating], chance: float) -> int:
        """Return the token at quantile ``chance`` in (0, 1) of the distribution of ``logits`` ``[V]``.

        Raises:
            DataError: a logit is not a number, or the largest is infinite.
        """
        scores = logits.astype(np.float64)
        if not np.isfinite(scores.max()):
            raise DataError("the model's logits are not finite, so no token can be drawn: use weights of another step")
        if self.temperature == 0:
            return int(scores.argmax())
        scores = (scores - scores.max()) / self.temperature
        weights = np.exp(scores)
        if self.top_k is not None:
            weights[~_largest(scores, self.top_k)] = 0.0
        if self.top_p is not None:
            order = np.argsort(-weights, kind="stable")
            before = np.concatenate([[0.0], weights[order].cumsum()[:-1]])
            weights[order[before >= self.top_p * weights.sum()]] = 0.0
        cumulative = weights.cumsum()
        # a token of weight 0 has the cumulative weight of the token before it, so it is never drawn
        return int(np.searchsorted(cumulative, chance * cumulative[-1], side="right"))


def _largest(scores: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """Return a mask of the ``k`` largest; of equal ones the first."""
    if k >= len(scores):
        return np.ones(len(scores), dtype=np.bool_)
    edge = np.partition(scores, len(scores) - k)[len(scores) - k]
    kept: NDArray[np.bool_] = scores > edge
    kept[np.flatnonzero(scores == edge)[: k - int(kept.sum())]] = True
    return kept


@dataclass(frozen=True, slots=True)
class Generation:
    """One sample of one prompt."""

    prompt: int
    sample: int
    ids: list[int]
    """The new tokens, without the prompt and without the end-of-text token."""
    ended: bool
    """Whether the model ended the text itself."""


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampler: Sampler,
    seed: int,
    samples: int = 1,
    eot_id: int | None = None,
    vocab_size: int | None = None,
    batch_size: int = 16,
) -> list[Generation]:
    """Return ``samples`` continuations of up to ``tokens`` tokens of each prompt, in order of prompt and sample.

    A text longer than the model's context is continued from its last ``context`` tokens. Prompts of equal
    length are one batch, with a cache of keys and values while the text fits. Only ids below ``vocab_size`` are drawn
    (default: the model's vocabulary, which may be larger than its tokeniser's).

    Raises:
        DataError: a prompt is empty or has an id that the model lacks, or the logits are not finite.
    """
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise DataError(f"prompt {i} is empty: the model needs at least one token")
        if max(prompt) >= model.vocab_size:
            raise DataError(f"prompt {i} has id {max(prompt)}, the model's vocabulary has {model.vocab_size} ids")
    rows = [(i, j) for i in range(len(prompts)) for j in range(samples)]
    by_length: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        by_length.setdefault(len(prompts[row[0]]), []).append(row)
    done: dict[tuple[int, int], Generation] = {}
    was_training = model.training
    model.eval()
    for group in by_length.values():
        for start in range(0, len(group), batch_size):
            batch = group[start : start + batch_size]
            text = torch.tensor([list(prompts[i]) for i, _ in batch], device=model.device)
            chances = np.stack([Stream("sample", seed).at(i, j).uniform(tokens) for i, j in batch])
            drawn = _continue(model, text, chances, sampler, eot_id, vocab_size)
            for (i, j), (ids, ended) in zip(batch, drawn, strict=True):
                done[i, j] = Generation(prompt=i, sample=j, ids=ids, ended=ended)
    model.train(was_training)
    return [done[row] for row in rows]


@torch.no_grad()
def _continue(
    model: GPT, text: Tensor, chances: NDArray[np.float64], sampler: Sampler, eot_id: int | None, vocab_size: int | None
) -> list[tuple[list[int], bool]]:
    """Return the new tokens of each row of ``text`` [B, T], drawn at ``chances`` [B, tokens], and whether it ended."""
    rows, tokens = chances.shape
    new: list[list[int]] = [[] for _ in range(rows)]
    ended = [False] * rows
    ahead = Ahead(model, rows, text.shape[1] + tokens)
    for t in range(tokens):
        logits = ahead.logits(text)[:, :vocab_size]
        # a text that has ended is continued in its row and ignored, until all have ended
        chosen = [sampler.choose(row, float(chances[r][t])) for r, row in enumerate(logits)]
        for r, token in enumerate(chosen):
            ended[r] = ended[r] or token == eot_id
            if not ended[r]:
                new[r].append(token)
        if all(ended):
            break
        text = torch.cat([text, torch.tensor(chosen, device=text.device)[:, None]], dim=1)
    return list(zip(new, ended, strict=True))


class Ahead:
    """Logits of the next token, from cached keys and values while the text fits the model's context."""

    def __init__(self, model: GPT, batch: int, length: int) -> None:
        self.model = model
        self.longest = longest_context(model)
        self.cache = model.new_cache(batch, int(min(length, self.longest)))

    def logits(self, text: Tensor) -> NDArray[np.float32]:
        """Return logits ``[B, V]`` after ``text`` ``[B, T]``, which is one token longer in each call."""
        if self.cache is not None and text.shape[1] <= self.longest:
            logits = self.model(text[:, self.cache.length :], cache=self.cache)
        else:  # learned positions are absolute: each shift of the window changes all of them
            logits = self.model(text[:, -int(self.longest) :])
        last: NDArray[np.float32] = logits[:, -1].float().cpu().numpy()
        return last
