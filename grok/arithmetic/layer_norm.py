"""LayerNorm before weight and bias, with its gradient, for the compiled steps' own autograd functions."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

EPS: Final = 1e-5
"""Torch's default, which the reference model uses."""


def standardise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [..., D] with mean 0 and variance 1, and each row's 1 / standard deviation [..., 1]."""
    centred = x - x.mean(-1, keepdim=True)
    rate = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
    return centred * rate, rate


def standardise_gradient(grad: Tensor, normal: Tensor, rate: Tensor) -> Tensor:
    """Return the gradient with respect to the input of ``standardise``, [..., D].

    Args:
        grad: gradient with respect to its result.
        normal: its first result.
        rate: its second result.
    """
    along = (grad * normal).mean(-1, keepdim=True)
    return rate * (grad - grad.mean(-1, keepdim=True) - normal * along)
