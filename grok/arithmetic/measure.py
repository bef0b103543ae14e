"""Norms of the parameters, for the curve."""

from __future__ import annotations

from torch import Tensor

from grok.arithmetic.initial import Parameters
from grok.runs import norms_of


def squared_norm(tensor: Tensor) -> float:
    """Return the sum of squares, computed in float64."""
    return float(tensor.detach().double().square().sum())


def norms(parameters: Parameters) -> tuple[float, float, dict[str, float]]:
    """Return (weight_norm, weight_norm_all, norm per component)."""
    return norms_of({name: squared_norm(p) for name, p in parameters.items()})
