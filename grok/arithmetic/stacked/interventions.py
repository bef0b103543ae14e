"""The changes to the training rule of ``grok.arithmetic.interventions``, for stacked lanes.

L lanes; a number of one lane is a tensor [L] here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grok.config.arithmetic import OptimConfig


def variant(optim: OptimConfig) -> tuple[str, bool, bool]:
    """Return the changes that a run uses; all lanes of a stack must have the same."""
    return (optim.grokfast, optim.orthogonal_gradient, optim.norm_clamp is not None)


def along(values: Tensor, like: Tensor) -> Tensor:
    """Return ``values`` [L] reshaped to broadcast with ``like`` [L, ...], in its type."""
    return values.to(like.dtype).reshape(-1, *([1] * (like.ndim - 1)))


def amplified(
    gradients: Sequence[Tensor], slow: Sequence[Tensor], *, step: Tensor, alive: Tensor, alpha: Tensor, lamb: Tensor
) -> list[Tensor]:
    """Return gradients with ``lamb`` times their running mean added; ``slow`` is updated in place (Grokfast-EMA)."""
    result = []
    for g, mean in zip(gradients, slow, strict=True):
        running = torch.where(along(step, g) == 0, g, mean * along(alpha, g) + g * along(1 - alpha, g))
        mean.copy_(torch.where(along(alive, g) > 0, running, mean))
        result.append(g + running * along(lamb, g))
    return result


def orthogonal(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return each tensor's gradient without its component along the weights, scaled to the gradient's norm."""

    def total(x: Tensor) -> Tensor:
        return x.flatten(1).sum(1)

    result = []
    for w, g in zip(parameters, gradients, strict=True):
        across = g - along(total(w * g) / (total(w * w) + 1e-30), g) * w
        result.append(across * along(total(g * g).sqrt() / (total(across * across).sqrt() + 1e-30), g))
    return result


def clamp_norm(parameters: Sequence[Tensor], *, target: Tensor, alive: Tensor) -> None:
    """Scale all parameters of each lane that is alive, in place, to the norm ``target`` [L]."""
    squares = torch.stack([p.double().square().flatten(1).sum(1) for p in parameters]).sum(0)
    factor = target / squares.sqrt().clamp(min=1e-30)
    for p in parameters:
        p.copy_(torch.where(along(alive, p) > 0, p * along(factor, p), p))
