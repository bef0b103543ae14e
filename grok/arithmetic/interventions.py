"""Changes to the training rule that studies of grokking need; off by default.

The Grokfast filter is in ``optimizer``. ``stacked.interventions`` has the same changes for
stacked lanes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grok.arithmetic.initial import Parameters
from grok.arithmetic.measure import squared_norm


def stable_logits(logits: Tensor) -> Tensor:
    """Return the logits whose softmax is the stablemax of ``logits``: log s(x).

    s(x) = x + 1 for x >= 0 and 1 / (1 - x) below. Source: Prieto et al. 2025,
    "Grokking at the edge of numerical stability".
    """
    return torch.where(logits >= 0, torch.log1p(logits.clamp(min=0)), -torch.log1p((-logits).clamp(min=0)))


@torch.no_grad()
def orthogonal_gradients(parameters: Parameters, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor's gradient without its component along the weights, scaled to the gradient's norm.

    Source: Prieto et al. 2025.
    """
    projected = {}
    for name, g in gradients.items():
        w = parameters[name]
        along = (w * g).sum() / ((w * w).sum() + 1e-30)
        across = g - along * w
        projected[name] = across * (g.norm() / (across.norm() + 1e-30))
    return projected


class NormClamp:
    """Keeps the L2 norm of all parameters at a multiple of its initial value.

    Source: Liu et al. 2023, "Omnigrok".
    """

    def __init__(self, initial: Parameters, multiple: float) -> None:
        self.target = multiple * math.sqrt(sum(squared_norm(p) for p in initial.values()))

    @torch.no_grad()
    def apply(self, parameters: Parameters) -> None:
        """Scale all parameters in place."""
        norm = math.sqrt(sum(squared_norm(p) for p in parameters.values()))
        for p in parameters.values():
            p.mul_(self.target / max(norm, 1e-30))
