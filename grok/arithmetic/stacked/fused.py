"""The stacked lanes' mathematics in the form that compiles to the least memory traffic, for the compiled step.

Equal to ``LaneModel`` over ``StackedLanes`` up to rounding; tests/arithmetic checks 1e-12 in float64. As on a CPU
(``grok.arithmetic.fused``) loss and gradients are one graph, and values that a gradient needs are *kept*: they are
outputs of the graph, so that the compiler stores them in the forward pass.

L lanes, R rows, D width, F width of a product's result.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.initial import Parameters
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.layer_norm import standardise, standardise_gradient
from grok.arithmetic.rows import RowPlan
from grok.arithmetic.stacked.backend import StackedLanes
from grok.config.arithmetic import ModelConfig

ALIGNED: Final = 8
"""A product's columns are padded to a multiple of this: rows of 16 bytes, which the libraries' fast kernels need."""


class FusedLanes(StackedLanes):
    """Batched products with aligned rows; weight gradients have the memory layout of the weights."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):  # cast here, so that the gradients' products have its type, too
            low = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(low), weight.to(low)
        outputs = weight.shape[1]
        filled = F.pad(weight, (0, 0, 0, -outputs % ALIGNED)) if outputs % ALIGNED else weight
        product: Tensor = _Product.apply(x, filled)[..., :outputs]  # type: ignore[no-untyped-call]
        return product if bias is None else product + bias[:, None, :]

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        """Return each example's cross-entropy; the answer's logit is selected by comparison.

        The gradient of an indexed selection would be written into zeros and read again.
        """
        words = torch.arange(logits.shape[-1], device=logits.device)
        own = torch.where(words == answer[..., None], logits, 0.0).sum(-1)
        return logits.logsumexp(-1) - own


class FusedModel(LaneModel):
    """``LaneModel`` whose norms keep what their gradients need."""

    def __init__(self, config: ModelConfig, plan: RowPlan) -> None:
        super().__init__(config, plan, FusedLanes())
        self.kept: list[Tensor] = []
        """Values that the gradients need, in the order of their computation."""

    def take_kept(self) -> list[Tensor]:
        """Return the kept values and clear the list."""
        kept, self.kept = self.kept, []
        return kept

    def norm(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        y, normal, rate = _LayerNorm.apply(x, p[name + ".weight"], p[name + ".bias"])  # type: ignore[no-untyped-call]
        self.kept += [normal, rate]
        return y  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    """``x @ weight.T`` [L, R, F] for x [L, R, D] and weight [L, F, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.bmm(grads[0], weight), torch.bmm(grads[0].mT, x)


class _LayerNorm(torch.autograd.Function):
    """LayerNorm of rows [L, R, D]; also returns the rows before weight and bias, and their 1 / standard deviation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal, rate = standardise(x)
        ctx.save_for_backward(normal, rate, weight)
        ctx.mark_non_differentiable(normal, rate)
        return normal * weight[:, None, :] + bias[:, None, :], normal, rate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal, rate, weight = ctx.saved_tensors
        grad = grads[0]
        of_x = standardise_gradient(grad * weight[:, None, :], normal, rate)
        return of_x, (grad * normal).sum(1), grad.sum(1)
