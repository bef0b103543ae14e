"""AdamW and the changes to the training rule over stacked lanes, each with its own settings and step.

Source: Loshchilov & Hutter 2019 (AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grok.arithmetic.gpu.state import LaneState
from grok.config.arithmetic import OptimConfig

# The changes to the training rule of ``grok.arithmetic.optimizer``, for stacked lanes.
#
# L lanes; a number of one lane is a tensor [L] here.


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


# AdamW over stacked lanes, each with its own settings and step.


def coefficients_of(state: LaneState) -> tuple[Tensor, ...]:
    """Return what ``adamw`` takes for each lane's next update, in the parameters' type: [L], and [P, L] for the decay.

    The rate, 1 - beta of both moments, their bias corrections, epsilon and decay; computed in float64, as on a CPU.
    """
    step = state.step + 1
    lr, warmup = state.scalar("lr"), state.scalar("warmup_steps")
    rate = torch.where(step >= warmup, lr, lr * step / warmup.clamp(min=1))
    beta1, beta2 = state.scalar("beta1"), state.scalar("beta2")
    corrections = (1 - beta1**step, (1 - beta2**step).sqrt())
    exact = (rate, 1 - beta1, 1 - beta2, *corrections, state.scalar("eps"), state.decay())
    return tuple(x.to(state.dtype) for x in exact)


def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    coefficients: tuple[Tensor, ...],
    alive: Tensor,
) -> None:
    """Update stacked parameters [L, ...] and their moments in place; lanes not ``alive`` [L] keep theirs."""
    lr, keep1, keep2, correction1, correction2, eps, decay = coefficients

    for p, g, m, v, wd in zip(parameters, gradients, first, second, decay.unbind(), strict=True):
        m_new = m + along(keep1, p) * (g - m)
        v_new = v + along(keep2, p) * (g * g - v)
        denominator = v_new.sqrt() / along(correction2, p) + along(eps, p)
        change = along(lr, p) * (along(wd, p) * p + m_new / along(correction1, p) / denominator)
        # selected, not multiplied by 0: the gradients of an idle lane may be infinite
        on = alive.reshape(along(lr, p).shape)
        m.copy_(torch.where(on, m_new, m))
        v.copy_(torch.where(on, v_new, v))
        p.copy_(torch.where(on, p - change, p))
