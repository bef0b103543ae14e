"""The workers of a sweep: how many, with how many lanes, on what. No torch."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grok.config import GptConfig, RunConfig
from grok.execute.estimate import bytes_per_worker
from grok.execute.planned import PlannedRun
from grok.numerics.machine import usable_cores, usable_memory
from grok.processes import Rank


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """The workers of a sweep: how many, with how many lanes, on what."""

    executor: str
    workers: int
    lanes: int | None
    gpu: bool
    short_of_memory: bool = False
    """Whether memory, not cores, limits the number of workers."""

    @classmethod
    def of(cls, shared: RunConfig, runs: Sequence[PlannedRun]) -> WorkerPool:
        """Return the workers for ``runs`` under a command's settings: by default one per core, as memory allows."""
        gpus = 0 if shared.device == "cpu" else visible_gpus()
        local = shared.executor in ("inline", "loky")
        gpu = shared.device == "cuda" or gpus > 0
        # one run needs no second process, and the processes of torchrun train in themselves
        inline = Rank.of_this_process().size > 1 or (shared.executor == "loky" and len(runs) == 1)
        executor = "inline" if inline else shared.executor
        if executor == "inline":
            return cls(executor, 1, shared.lanes, gpu)
        on_cores = not gpu and not isinstance(shared, GptConfig)
        workers = max(1, min(shared.workers or (usable_cores() if on_cores else gpus or 1), len(runs)))
        fitting = workers
        if local and on_cores and shared.workers is None:
            fitting = max(1, min(workers, int(usable_memory() // bytes_per_worker(runs, shared.lanes or 1))))
        return cls(executor, fitting, shared.lanes, gpu, short_of_memory=fitting < workers)

    def __str__(self) -> str:
        lanes = "" if self.lanes is None else f" x {self.lanes} lane{'s' if self.lanes > 1 else ''}"
        short = ", for more there is not enough memory" if self.short_of_memory else ""
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}{lanes} ({self.executor}{short})"


def visible_gpus() -> int:
    """Return how many CUDA devices torch will find, without importing it."""
    try:
        cpu_only = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return 0
    if cpu_only:
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    return sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in Path("/dev").iterdir())
