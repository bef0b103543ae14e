"""How many sequences to compute at once: as many as fit and still pay.

Sizes double. A GPU is tried until its memory is full; on a CPU, where a full memory kills the process,
the peak so far says whether the next size would fit. The run is left as it was.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import torch

from grok.gpt.training.trainer import Trainer

PAYS = 1.03
"""A larger size is worth its memory when it is this much faster."""
FULL = 0.9
"""Share of the memory that may be used."""


@dataclass(frozen=True, slots=True)
class Size:
    """One micro-batch size, measured."""

    sequences: int
    tokens_per_second: float
    memory: int
    """Peak bytes on the device while computing it (the whole process on a CPU)."""


def measure(trainer: Trainer, *, largest: int, repeats: int = 3) -> Iterator[Size]:
    """Yield sizes 1, 2, 4 ... up to ``largest``, each timed ``repeats`` times (the best counts), while they fit."""
    context, sequences = trainer.config.model.context, 1
    while sequences <= largest:
        size = _measured(trainer, sequences, context, repeats)
        if size is None:
            return
        yield size
        if not _next_fits(trainer.numerics.device, size):
            return
        sequences *= 2


def best(sizes: list[Size]) -> Size:
    """Return the smallest size after which doubling no longer pays."""
    chosen = sizes[0]
    for size in sizes[1:]:
        if size.tokens_per_second > PAYS * chosen.tokens_per_second:
            chosen = size
    return chosen


def _measured(trainer: Trainer, sequences: int, context: int, repeats: int) -> Size | None:
    device = trainer.numerics.device
    x, y = trainer.batch(1)
    rows = torch.arange(sequences, device=x.device) % len(x)
    x, y = x[rows, :context], y[rows, :context]
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
    except torch.OutOfMemoryError:
        return None
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return Size(sequences, x.numel() / min(seconds[1:]), _peak(device))


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _next_fits(device: torch.device, size: Size) -> bool:
    """Return whether twice the memory is free; on a GPU trying is the better answer."""
    if device.type == "cuda":
        return True
    return 2 * size.memory < FULL * (psutil.virtual_memory().available + size.memory)
