"""AdamW over stacked lanes, each with its own settings and step.

Source: Loshchilov & Hutter 2019 (AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grok.arithmetic.stacked.interventions import along
from grok.arithmetic.stacked.state import LaneState


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The coefficients of each lane's update, in the parameters' type: [L], and [P, L] for the decay."""

    lr: Tensor
    keep1: Tensor
    keep2: Tensor
    correction1: Tensor
    correction2: Tensor
    eps: Tensor
    decay: Tensor

    @classmethod
    def of(cls, state: LaneState) -> Coefficients:
        """Return the coefficients of each lane's next update; computed in float64, as on a CPU."""
        step = state.step + 1
        lr, warmup = state.scalar("lr"), state.scalar("warmup_steps")
        rate = torch.where(step >= warmup, lr, lr * step / warmup.clamp(min=1))
        beta1, beta2 = state.scalar("beta1"), state.scalar("beta2")
        coefficients = (
            rate,
            1 - beta1,
            1 - beta2,
            1 - beta1**step,
            (1 - beta2**step).sqrt(),
            state.scalar("eps"),
            state.decay(),
        )
        return cls(*[x.to(state.dtype) for x in coefficients])

    def all(self) -> tuple[Tensor, ...]:
        """Return the coefficients in the order in which ``adamw`` takes them."""
        return (self.lr, self.keep1, self.keep2, self.correction1, self.correction2, self.eps, self.decay)


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
