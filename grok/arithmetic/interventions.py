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
from grok.config.arithmetic import ArithmeticConfig
from grok.numerics.ulps import move_by_ulps
from grok.streams import Stream


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


@torch.no_grad()
def move_weights(parameters: Parameters, config: ArithmeticConfig) -> None:
    """Move every number of all tensors by up to ``switch.ulps`` units in the last place, in place.

    The draws have an address of their own with the step, so ``perturb.ulps`` draws others.
    """
    stream = Stream("perturb", config.stream_seeds().perturb).at("switch", config.switch.step or 0)
    for name, p in parameters.items():
        p.copy_(move_by_ulps(p.detach().contiguous(), config.switch.ulps, stream.at(name)))


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
