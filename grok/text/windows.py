"""The tokens on which a step trains, and the windows that an evaluation scores. No torch.

Training: the split is cut into blocks of ``context`` inputs; the targets are the inputs shifted by one
token. Each epoch has its own random order of the blocks, and batches take them in that order. The order
is a function of (order seed, number of the sample) alone, so evaluations, restarts and workers do not
change it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError
from grok.streams import Stream

Sampling = Literal["blocks", "random"]

_OFFSETS_AT_ONCE: Final = 4096


@dataclass(slots=True)
class BlockOrder:
    """The offsets in tokens of a step's blocks. Every token of a split but the first is a target.

    ``sampling="blocks"``: an epoch has ``blocks_per_epoch = (n_tokens - 1) // context`` blocks that do not
    overlap, so every target is used at most once in an epoch. The remaining ``(n_tokens - 1) % context`` targets
    are before the first and after the last block. Each epoch draws the offset of the first block, so that no
    token is left out of every epoch. A batch may extend across the end of an epoch: all batches are of one
    size, and no block is dropped.

    ``sampling="random"``: every offset is drawn from the uniform distribution over all offsets with room for a block.
    """

    n_tokens: int
    context: int
    batch_size: int
    seed: int
    sampling: Sampling = "blocks"
    _drawn: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_length(self.n_tokens, self.context)

    @property
    def blocks_per_epoch(self) -> int:
        """Blocks in an epoch: each has ``context`` targets, and the first token is not a target."""
        return (self.n_tokens - 1) // self.context

    def batch(self, step: int) -> NDArray[np.int64]:
        """Return the block offsets ``[batch_size]`` of step ``step``, counted from 0."""
        return self.samples(step * self.batch_size, self.batch_size)

    def samples(self, first: int, count: int) -> NDArray[np.int64]:
        """Return the block offsets ``[count]`` of the samples from number ``first`` on, for batches that grow."""
        per_draw = self.blocks_per_epoch if self.sampling == "blocks" else _OFFSETS_AT_ONCE
        parts: list[NDArray[np.int64]] = []
        while count > 0:
            number, position = divmod(first, per_draw)
            taken = min(count, per_draw - position)
            parts.append(self._draw(number)[position : position + taken])
            first, count = first + taken, count - taken
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _draw(self, number: int) -> NDArray[np.int64]:
        if number not in self._drawn:
            while len(self._drawn) > 1:  # a batch needs at most two epochs, unless it is larger than an epoch
                self._drawn.pop(next(iter(self._drawn)))
            self._drawn[number] = self._epoch(number) if self.sampling == "blocks" else self._offsets(number)
        return self._drawn[number]

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        stream = Stream("order", self.seed).at("epoch", epoch)
        left_over = (self.n_tokens - 1) % self.context
        first = int(stream.at("first").integers(1, left_over + 1)[0])
        return first + self.context * stream.permutation(self.blocks_per_epoch)

    def _offsets(self, number: int) -> NDArray[np.int64]:
        return Stream("order", self.seed).at("random", number).integers(_OFFSETS_AT_ONCE, self.n_tokens - self.context)


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


@dataclass(frozen=True, slots=True)
class EvaluationWindows:
    """The windows of an evaluation; every target is scored exactly once.

    Window ``i`` has ``lengths[i]`` inputs from offset ``starts[i]``; its first ``skipped[i]`` targets are not
    scored. All three have shape ``[windows]``.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    skipped: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)


def fixed_windows(n_tokens: int, context: int) -> EvaluationWindows:
    """Return windows that do not overlap; the last may be shorter."""
    return sliding_windows(n_tokens, context, context)


def sliding_windows(n_tokens: int, context: int, stride: int) -> EvaluationWindows:
    """Return windows ``stride`` apart.

    Each target outside the first window is predicted from at least ``context - stride`` tokens.

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
    return EvaluationWindows(starts=starts, lengths=ends - starts, skipped=begins - starts)
