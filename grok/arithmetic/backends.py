"""The operations that differ between one lane and stacked lanes.

``lanes`` states the mathematics once, over these operations. :class:`OneLane` has no lane
axis, so lanes cannot depend on each other. ``stacked.backend`` has a leading axis L and
makes every matrix product a batched one, for devices that one lane cannot keep busy.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.shared_rows import take_rows
from grok.numerics.products import linear_onednn


class Backend(Protocol):
    """Operations on activations [..., R, D] with parameters [..., *shape]; ``...`` is () or (L,)."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return LayerNorm over the last axis."""
        ...

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """Return rows ``index`` [..., B] of ``x`` [..., R, D]; gradients of one row are summed without atomics."""
        ...

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        """Return each example's cross-entropy [..., B]."""
        ...


class OneLane:
    """No lane axis: plain two-dimensional products, through torch's default or oneDNN."""

    def __init__(self, path: str = "plain") -> None:
        self.path = path

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.path == "onednn":
            return linear_onednn(x, weight, bias)
        product = x @ weight.t()
        # separate addition, which a compiled step fuses with the next operation; addmm would copy the bias first
        return product if bias is None else product + bias

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias)

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        return take_rows(x, index)

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        return F.cross_entropy(logits, answer, reduction="none")
