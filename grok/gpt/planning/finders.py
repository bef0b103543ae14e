"""Finds the learning rate by a range test, and the largest useful micro-batch size, by short trials.

Afterwards weights, moments and counters are restored, bit by bit. There is no other state,
because batches and dropout are functions of the step.

Source: Smith 2017, "Cyclical learning rates for training neural networks", section 3.3.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import get_total_norm

from grok.errors import TrainingError
from grok.gpt.costs import layout, moment_bytes
from grok.gpt.training.batches import validation_starts
from grok.gpt.training.checkpoint import History, capture, put_back
from grok.gpt.training.trainer import Trainer
from grok.processes import memory_limit, peak_of_process, usable_memory
from grok.text.windows import gather

SMOOTHING = 0.9
BLOWN_UP = 2.0
"""The test ends when the smoothed loss is this many nats above its lowest."""


@dataclass(frozen=True, slots=True)
class RangeTest:
    """The learning rates of the test, the loss at each, and the rate of the fastest fall."""

    rates: NDArray[np.float64]
    losses: NDArray[np.float64]
    """Mean loss of the step's batch before its update, in nats."""
    smooth: NDArray[np.float64]
    suggestion: float
    """The rate at which the smoothed loss falls fastest on a logarithmic axis."""
    configured: float

    @property
    def ratio(self) -> float:
        """The configured rate divided by the suggested one."""
        return self.configured / self.suggestion


def range_test(trainer: Trainer, *, first: float = 1e-6, last: float = 1.0, steps: int = 100) -> RangeTest:
    """Return the range test of ``trainer`` from its present state, at most ``steps`` updates; the state is restored.

    Raises:
        TrainingError: the loss is not finite before a rate could be suggested.
    """
    before = capture(trainer, History())
    rates, losses, smooth = [], [], []
    lowest, average = math.inf, 0.0
    try:
        for i in range(steps):
            rate = first * (last / first) ** (i / (steps - 1))
            k = trainer.counters.step + 1
            x, y = trainer.batch(k)
            loss = float(trainer.gradients(k, x, y))
            if not math.isfinite(loss):
                break
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            rates.append(rate)
            losses.append(loss)
            smooth.append(average / (1 - SMOOTHING ** (i + 1)))
            lowest = min(lowest, smooth[-1])
            if smooth[-1] > lowest + BLOWN_UP:
                break
            norm = get_total_norm(trainer.unscale())
            overflow = trainer.counters.overflowed(trainer.config, float(norm))
            if not overflow:
                trainer.apply(norm, rate)
            trainer.counters.rescale(trainer.config, overflow)
            trainer.counters.step = k
    finally:
        put_back(trainer, before)
    if len(rates) < 10:
        raise TrainingError(
            f"the loss is not finite, or blew up, after {len(rates)} steps from rate {first}: start lower than that"
        )
    return RangeTest(
        rates=np.array(rates),
        losses=np.array(losses),
        smooth=np.array(smooth),
        suggestion=rates[int(np.gradient(smooth, np.log(rates)).argmin())],
        configured=trainer.config.optim.lr,
    )


# Finds the micro-batch size: the number of sequences that fit into memory and still increase the speed.
#
# Sizes double. On a GPU they grow until its memory is full. On a CPU a full memory would kill the process, so
# the peak so far decides whether the next size fits. The state of the run does not change.

PAYS = 1.03
"""Least speed-up for which a larger size is chosen."""
FULL = 0.9
"""Share of the memory that may be used."""


@dataclass(frozen=True, slots=True)
class Size:
    """One micro-batch size, measured."""

    sequences: int
    tokens_per_second: float
    """Of the fastest repeat."""
    memory: int
    """Peak bytes of a step of several such micro-batches: weights, moments, gradients, activations, masks, logits.
    Measured on a GPU; on a CPU, whose allocator keeps no peak, the planner's."""
    process: int = 0
    """Peak bytes of the whole process so far; only on a CPU."""


def measure(trainer: Trainer, *, largest: int, repeats: int = 5) -> Iterator[Size]:
    """Yield sizes 1, 2, 4 ... up to ``largest``, each timed ``repeats`` times, while they fit."""
    context, sequences = trainer.config.model.context, 1
    while sequences <= largest:
        size = _measured(trainer, sequences, context, repeats)
        if size is None:
            return
        yield size
        # on a GPU the attempt decides; elsewhere twice the process must fit into the machine and its container or job
        limit, room = memory_limit(), usable_memory() + size.process
        if trainer.numerics.device.type != "cuda" and 2 * size.process >= FULL * min(limit or math.inf, room):
            return
        sequences *= 2


def best(sizes: list[Size]) -> Size:
    """Return the smallest size whose double is not faster by the factor ``PAYS``."""
    chosen = sizes[0]
    for size in sizes[1:]:
        if size.tokens_per_second > PAYS * chosen.tokens_per_second:
            chosen = size
    return chosen


def _measured(trainer: Trainer, sequences: int, context: int, repeats: int) -> Size | None:
    device = trainer.numerics.device
    # blocks of the whole context: the first batch of a context ramp has shorter ones
    tokens = trainer.batches.tokens[0]
    starts = np.resize(validation_starts(len(tokens), context, sequences), sequences)
    x, y = (torch.from_numpy(ids).to(device) for ids in gather(tokens, starts, context))
    seconds = []
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(repeats + 1):  # the first one also allocates
            began = time.perf_counter()
            trainer.micro_gradients(x, y)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)
        memory = _peak(trainer, sequences)
    except torch.OutOfMemoryError:
        return None
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return Size(sequences, x.numel() / min(seconds[1:]), memory, peak_of_process())


def _peak(trainer: Trainer, sequences: int) -> int:
    """Return the peak bytes of a step of several micro-batches; the moments count also before a run has made them."""
    config, elements, device = trainer.config, trainer.elements, trainer.numerics.device
    if device.type != "cuda":
        return int(layout(config, trainer.usage.parameters, 1, sequences, on_cpu=True).bytes)
    moments = moment_bytes(config.optim.kind, config.precision) * elements
    return int(torch.cuda.max_memory_allocated(device)) + int(moments if not trainer.optimizer.state else 0)
