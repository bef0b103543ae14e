"""The few operations that differ between one lane and many stacked lanes.

The mathematics in ``lanes`` is written once over these. :class:`OneLane` has no lane
axis and keeps lanes independent by construction; :class:`StackedLanes` carries a leading
axis L and turns every matrix product into a batched one, for devices on which one lane
is too small.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.products import linear_onednn, take_rows


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
        # added apart, so that a compiled step fuses it with what follows; addmm would copy the bias out first
        return product if bias is None else product + bias

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias)

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        return take_rows(x, index)

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        return F.cross_entropy(logits, answer, reduction="none")


class StackedLanes:
    """A leading lane axis L on everything."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias[:, None, :], x, weight.mT)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape[-1:]) * weight[:, None, :] + bias[:, None, :]

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        return _TakeStacked.apply(x, index)  # type: ignore[no-any-return, no-untyped-call]

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        lanes, examples, words = logits.shape
        flat = F.cross_entropy(logits.reshape(-1, words), answer.reshape(-1), reduction="none")
        return flat.view(lanes, examples)


class _TakeStacked(torch.autograd.Function):
    """Rows by index, with the gradient as a product with the one-hot matrix: a fixed order of summation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[1]
        return torch.gather(x, 1, index[..., None].expand(-1, -1, x.shape[-1]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        (grad,) = grads
        rows = torch.arange(ctx.rows, device=grad.device)
        one_hot = (rows[None, :, None] == index[:, None, :]).to(grad.dtype)  # [L, R, B]
        return torch.bmm(one_hot, grad), None
