"""The engines' common code for a run in training: its schedule, clock, numerics tags, norms, hash, device errors.

Each engine's own class of a run (:class:`grok.arithmetic.run.ArithmeticRun`,
:class:`grok.gpt.training.engine.GptRun`) extends :class:`TrainingRun`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from grok.errors import CheckpointError
from grok.records import Job

EMBEDDINGS: Final = ("token_embedding", "position_embedding")
"""Components that are not in ``weight_norm``; ``weight_norm_all`` has them."""


def never() -> bool:
    """Return False: the default of an engine's ``stop``."""
    return False


def evaluation_steps(steps: int, *, every: int, log_points: int | None = None) -> frozenset[int]:
    """Return the steps at which a run of ``steps`` updates is evaluated: every ``every``-th and the last.

    With ``log_points`` there are about that many evaluations, evenly spaced in the logarithm of the step.
    """
    if log_points is None:
        points = list(range(every, steps + 1, every))
    else:
        points = np.unique(np.rint(np.geomspace(1, steps, log_points)).astype(int)).tolist()
    return frozenset([*points, steps])


def component(parameter: str) -> str:
    """Return the component of a parameter, the key of its norm in ``block_norms``.

    >>> [component(name) for name in ("blocks.0.mlp.up.weight", "head.weight", "token_embedding.weight")]
    ['blocks.0', 'head', 'token_embedding']
    """
    parts = parameter.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]


def norms_of(squares: Mapping[str, float]) -> tuple[float, float, dict[str, float]]:
    """Return (weight_norm, weight_norm_all, norm per component) from each parameter's sum of squares."""
    parts: dict[str, float] = {}
    for name, square in squares.items():
        parts[component(name)] = parts.get(component(name), 0.0) + square
    without = sum(square for name, square in squares.items() if component(name) not in EMBEDDINGS)
    return (
        math.sqrt(without),
        math.sqrt(sum(squares.values())),
        {name: math.sqrt(square) for name, square in parts.items()},
    )


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all parameters' names and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class TrainingRun:
    """The state of one run from its job to its result, without its tensors.

    :meth:`go` starts the run's clock, :meth:`pause` stops it.
    """

    def __init__(self, job: Job, due: frozenset[int]) -> None:
        """``due``: the steps at which the run is evaluated."""
        self.job = job
        self.due = due
        self.tags: list[str] = []
        """Numerics tags of earlier processes that trained this run."""
        self.started_at = time.time()
        self._seconds = 0.0
        self._running_since: float | None = None
        self._checkpointed = time.monotonic()

    def refuse_other_numerics(self, tag: str, step: int) -> None:
        """With ``numerics.strict``, refuse to continue at ``step`` from a checkpoint of another numerics tag.

        Raises:
            CheckpointError: the tags differ.
        """
        if self.job.config.numerics.strict and self.tags and self.tags != [tag]:
            raise CheckpointError(
                f"numerics.strict=true: the checkpoint at step {step} was computed by '{' | '.join(self.tags)}', "
                f"this is '{tag}'; numerics.strict=false continues the run and records both"
            )

    def all_tags(self, tag: str) -> list[str]:
        """Return the tags of all processes that trained this run, in order; ``tag`` is the present one."""
        return list(dict.fromkeys([*self.tags, tag]))

    def checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint is due at ``step``, by steps or by minutes; if so, restart the minutes."""
        settings = self.job.config.checkpoint
        by_steps = any(every > 0 and step % every == 0 for every in (settings.every, settings.keep_every))
        by_steps |= step in settings.keep_steps
        by_time = settings.minutes > 0 and time.monotonic() - self._checkpointed > 60 * settings.minutes
        if by_steps or by_time:
            self._checkpointed = time.monotonic()
        return by_steps or by_time

    def go(self) -> None:
        """Start this run's clock."""
        self._running_since = time.monotonic()

    def pause(self) -> None:
        """Stop this run's clock."""
        self._seconds, self._running_since = self.seconds(), None

    def spend(self, seconds: float) -> None:
        """Add seconds: a share of the time of stacked lanes, or the time of earlier processes."""
        self._seconds += seconds

    def seconds(self) -> float:
        """Return the seconds spent on this run alone, without pauses and the turns of other lanes."""
        return self._seconds + (0.0 if self._running_since is None else time.monotonic() - self._running_since)


# Errors of a CUDA device. Needs torch.


def is_device_error(error: BaseException) -> bool:
    """Return whether ``error`` is a CUDA error after which this process may be unable to use the device.

    CUDA keeps such an error in the process: every later call fails, too. Out of memory is not such an error.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
