"""Averages the weights of a run's checkpoints into a new checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from grok.checkpoint import load_checkpoint
from grok.gpt.training.checkpoint import from_checkpoint
from grok.gpt.training.history import History
from grok.records import Checkpoint


def average(folder: str | Path, run_id: str, steps: Sequence[int]) -> Checkpoint:
    """Return the checkpoint ``run_id`` whose weights are the mean of those in ``folder`` at ``steps``.

    It has the settings and counters of the last of these, but no moments and no history. Sums are float64.

    Raises:
        CheckpointError: a checkpoint is missing or damaged.
    """
    sums: dict[str, torch.Tensor] = {}
    for step in steps:
        checkpoint = load_checkpoint(folder, step)
        now, _ = from_checkpoint(checkpoint)
        weights = {n: t for n, t in now.tensors.items() if n.startswith("model.")}
        sums = {n: sums.get(n, torch.zeros((), dtype=torch.float64)) + t.double() for n, t in weights.items()}
    means = {n: (t / len(steps)).to(weights[n].dtype) for n, t in sums.items()}
    empty = History()
    moment = {"step": now.step, "state": now.state, "history": empty.state()}
    state = {n: v for n, v in checkpoint.state.items() if n != "shares"}
    state |= {"moments": [moment], "same": {}, "averaged": {"run_id": checkpoint.run_id, "steps": list(steps)}}
    return Checkpoint(run_id=run_id, step=now.step, tensors=means | empty.tensors(), state=state)
