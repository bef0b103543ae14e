"""What an evaluation measures of the parameters: norms and the weights' hash."""

from __future__ import annotations

import hashlib
import math

from torch import Tensor

from grok.arithmetic.initial import Parameters

EMBEDDINGS = ("token_embedding.weight", "position_embedding.weight")
"""Left out of ``weight_norm`` (REQUIREMENTS N: 426,986 parameters without them)."""


def component(name: str) -> str:
    """Return the component that a parameter belongs to: ``blocks.0``, ``head``, ``token_embedding`` ..."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else parts[0]


def squared_norm(tensor: Tensor) -> float:
    """Return the sum of squares, in float64 whatever the tensor's type."""
    return float(tensor.detach().double().square().sum())


def norms(parameters: Parameters) -> tuple[float, float, dict[str, float]]:
    """Return (weight_norm, weight_norm_all, norm per component)."""
    return norms_of({name: squared_norm(p) for name, p in parameters.items()})


def norms_of(squares: dict[str, float]) -> tuple[float, float, dict[str, float]]:
    """Return the same from each parameter's sum of squares."""
    blocks: dict[str, float] = {}
    for name, square in squares.items():
        blocks[component(name)] = blocks.get(component(name), 0.0) + square
    without = sum(square for name, square in squares.items() if name not in EMBEDDINGS)
    return (
        math.sqrt(without),
        math.sqrt(sum(squares.values())),
        {name: math.sqrt(square) for name, square in blocks.items()},
    )


def weights_hash(parameters: Parameters) -> str:
    """Return the SHA-256 of all parameters' names and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(name.encode())
        digest.update(parameters[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
