"""Learning rates, batch sizes and pieces of a batch as pure functions of the step. No torch, no state.

Update ``k`` counts from 1. Every learning-rate function returns a *share* of the peak
rate, in [0, 1]; the caller multiplies it by the peak. A schedule is one function
of the step for the whole run. Warm-up ends at the peak, where the decay begins, so the
rate never jumps.

Sources: Loshchilov & Hutter 2017 (cosine); Hu et al. 2024, "MiniCPM" (warm-up, stable,
decay); Smith & Topin 2018 (one cycle); Narayanan et al. 2021 (batch-size ramp).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from grok.config.gpt import GptConfig, OptimConfig
from grok.errors import ConfigError


def warmup(progress: float, length: float) -> float:
    """Return the linear rise ``progress / length``, ending at 1; with length 0 there is no warm-up."""
    return 1.0 if progress >= length else progress / length


def linear(k: int, start: int, end: int, floor: float) -> float:
    """Return the linear fall from 1 at ``start`` to ``floor`` at ``end``, and ``floor`` after it."""
    return floor + (1 - floor) * (1 - _passed(k, start, end))


def cosine(k: int, start: int, end: int, floor: float) -> float:
    """Return the half cosine from 1 at ``start`` to ``floor`` at ``end``, and ``floor`` after it."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * _passed(k, start, end)))


def wsd(k: int, start: int, end: int, decay: float, floor: float) -> float:
    """Return 1 until the last share ``decay`` of the steps, then the linear fall to ``floor`` at ``end``.

    The fall never begins before ``start``, where the warm-up ends, and takes one step at least.
    """
    return linear(k, max(start, end - max(1, round(decay * end))), end, floor)


def one_cycle(k: int, end: int, rise: float, first: float, last: float) -> float:
    """Return one cycle of half cosines: ``first`` at update 1, 1 at share ``rise``, ``last`` at ``end``."""
    peak = max(1.0, rise * end)
    if k < peak:
        return first + (1 - first) * 0.5 * (1 - math.cos(math.pi * (k - 1) / max(peak - 1, 1e-12)))
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (min(k, end) - peak) / max(end - peak, 1e-12)))


def _passed(k: int, start: int, end: int) -> float:
    """Return the share of ``start .. end`` that update ``k`` has completed, clamped to [0, 1]."""
    if k >= end:
        return 1.0
    return max(0.0, (k - start) / (end - start))


@dataclass(frozen=True, slots=True)
class Ramp:
    """A whole-number quantity that grows by ``increment`` from ``first`` to ``full`` over ``samples`` sequences.

    Growth is by equal shares of the samples, as Megatron's ``rampup_batch_size``: with
    ``n = (full - first) / increment`` increments, the i-th comes when ``i * samples / n``
    sequences are consumed.
    """

    first: int
    increment: int
    samples: int
    full: int

    @classmethod
    def of(cls, triple: list[int], full: int) -> Ramp:
        """Return the ramp of ``[first, increment, samples]``, or for an empty list one that never grows."""
        first, increment, samples = triple or (full, 1, 0)
        return cls(first, increment, samples, full)

    def size_at(self, consumed: int) -> int:
        """Return the size after ``consumed`` sequences."""
        if consumed >= self.samples or self.first == self.full:
            return self.full
        increments = (self.full - self.first) // self.increment
        return min(self.full, self.first + self.increment * (consumed * increments // self.samples))

    def consumed(self, steps: int) -> int:
        """Return how many sequences the first ``steps`` updates consume if this is their batch ramp.

        It counts by sizes, not by steps, so it is fast for any number of steps.
        """
        seen, left = 0, steps
        while left > 0:
            size = self.size_at(seen)
            if size == self.full:
                return seen + left * size
            grown = (size - self.first) // self.increment + 1
            above = -(-grown * self.samples // ((self.full - self.first) // self.increment))  # where the size grows
            n = min(left, -(-(above - seen) // size))
            seen += n * size
            left -= n
        return seen

    def steps(self, sequences: int) -> int:
        """Return the first step after which at least ``sequences`` are consumed."""
        return bisect_left(range(sequences + 1), sequences, key=self.consumed)


# The batch size and the learning rate of a run.


def batch_ramp(config: GptConfig) -> Ramp:
    """Return the batch size as a function of the sequences consumed."""
    return Ramp.of(config.train.batch_ramp, config.train.batch_size)


def learning_rate(config: GptConfig, k: int) -> float:
    """Return the learning rate of update ``k``, counted from 1."""
    o = config.optim
    end = o.decay_steps or config.train.steps
    if o.schedule == "one_cycle":
        return o.lr * one_cycle(k, end, o.cycle_rise, o.cycle_start, o.cycle_end)
    if o.warmup_samples is None:
        start, share = o.warmup_steps, warmup(k, o.warmup_steps)
    else:
        ramp = batch_ramp(config)
        start = _step_of_sample(ramp, o.warmup_samples)
        share = warmup(ramp.consumed(k), o.warmup_samples)
    if start < end:  # else the warm-up fills the whole run
        share *= _after_warmup(o, k, start, end)
    return o.lr * share


def _after_warmup(o: OptimConfig, k: int, start: int, end: int) -> float:
    if o.schedule == "linear":
        return linear(k, start, end, o.min_lr)
    if o.schedule == "cosine":
        return cosine(k, start, end, o.min_lr)
    if o.schedule == "wsd":
        return wsd(k, start, end, o.wsd_decay, o.min_lr)
    return 1.0


@lru_cache(maxsize=64)
def _step_of_sample(ramp: Ramp, samples: int) -> int:
    return ramp.steps(samples)


# How a batch is cut into pieces that are computed at once. No torch: the plan asks whether all have one shape.


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start .. stop`` of a batch, computed at once: a micro-batch, or the part of it for one process."""

    number: int
    """Number of the micro-batch, which selects its dropout masks."""
    micro: slice
    """All rows of that micro-batch."""
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def pieces(rows: int, micro: int, ranks: int = 1) -> list[Piece]:
    """Return the pieces of a batch of ``rows``.

    Each piece is a micro-batch. If there are fewer micro-batches than processes (``ranks``), each micro-batch is
    divided into the least number of equal parts that gives every process a piece.
    """
    parts = 1
    while True:
        cut = []
        for number, start in enumerate(range(0, rows, micro)):
            stop = min(start + micro, rows)
            bounds = [start + (stop - start) * part // parts for part in range(parts + 1)]
            cut += [Piece(number, slice(start, stop), a, b) for a, b in pairwise(bounds) if a < b]
        if len(cut) >= min(ranks, rows):
            return cut
        parts += 1


def refuse_changing_shapes(config: GptConfig, ranks: int) -> None:
    """Refuse compilation of batches whose shape changes, with ``ranks`` processes.

    Raises:
        ConfigError: ``numerics.compile`` with pieces of several sizes, or with a ramp of the context.
    """
    train = config.train
    micro, sizes = train.micro_batch or train.batch_size, [train.batch_size, *train.batch_ramp[:2]]
    if ranks == 1:  # counted: a sweep asks for each of its runs
        changes = any(size % micro for size in sizes)
    else:
        changes = len({piece.rows for size in sizes for piece in pieces(size, micro, ranks)}) > 1
    if config.numerics.compile and (changes or train.context_ramp):
        raise ConfigError(
            f"numerics.compile=true needs batches of one shape, and train.micro_batch={micro} does not divide "
            f"{sizes}{f' among {ranks} processes' if ranks > 1 else ''}, or train.context_ramp changes the length: "
            "give a train.micro_batch that divides them, or numerics.compile=false"
        )
