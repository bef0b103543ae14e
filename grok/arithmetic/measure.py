"""What an evaluation measures of the parameters: norms."""

from __future__ import annotations

from torch import Tensor

from grok.arithmetic.initial import Parameters
from grok.runs import norms_of


def squared_norm(tensor: Tensor) -> float:
    """Return the sum of squares, in float64 whatever the tensor's type."""
    return float(tensor.detach().double().square().sum())


def norms(parameters: Parameters) -> tuple[float, float, dict[str, float]]:
    """Return (weight_norm, weight_norm_all, norm per component)."""
    return norms_of({name: squared_norm(p) for name, p in parameters.items()})
