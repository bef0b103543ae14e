"""The lane's mathematics in the form that compiles to the fastest step of one lane on a CPU.

Equal to ``lanes`` over ``OneLane`` up to rounding; tests/arithmetic checks 1e-12 in
float64. Values that a gradient needs are computed in the forward pass and *kept*: they are
outputs of the graph, so that the compiler stores them instead of computing them again.

R rows, D width, M rows of a target, H heads, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from grok.arithmetic.backends import OneLane
from grok.arithmetic.initial import Parameters
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.layer_norm import standardise, standardise_gradient
from grok.arithmetic.rows import RowPlan
from grok.arithmetic.shared_rows import sum_rows
from grok.config.arithmetic import ModelConfig

ERFC_SLOPE: Final = 0.39
ERFC: Final = (
    -0.22745735101576625,
    0.8863349270998976,
    -0.6348589753915743,
    0.6491171444982282,
    0.09156804964776466,
    0.23529620516145022,
)
"""Coefficients of erfc(z) exp(z^2), z >= 0, as a polynomial in t = 1 / (1 + ERFC_SLOPE z); highest power first, no
constant term.

Source: Abramowitz & Stegun 7.1.26, with one power more. Fitted by linear programming for the smallest maximal error
of erfc: 9e-9, a sixth of float32's rounding at 1; exact at z = 0. Torch's float32 erf has five powers (1.5e-7).
"""


class FusedLane(OneLane):
    """One lane whose gathers and bias gradients fuse with other operations, or call the fastest library function."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.path == "onednn" or bias is None:
            return super().linear(x, weight, bias)
        product: Tensor = _AddBias.apply(x @ weight.t(), bias)  # type: ignore[no-untyped-call]
        return product

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        return _TakeRows.apply(x, index)  # type: ignore[no-any-return, no-untyped-call]


class FusedModel(LaneModel):
    """``LaneModel`` whose activation and attention weights keep what their gradients need."""

    def __init__(self, config: ModelConfig, plan: RowPlan, path: str) -> None:
        super().__init__(config, plan, FusedLane(path))
        self.kept: list[Tensor] = []
        """Values that the gradients need, in the order of their computation; empty without gradients."""

    def norm(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        y, normal, rate = _LayerNorm.apply(x, p[name + ".weight"], p[name + ".bias"])  # type: ignore[no-untyped-call]
        self.keep(normal, rate)
        return y  # type: ignore[no-any-return]

    def gelu(self, h: Tensor) -> Tensor:
        if h.dtype != torch.float32:
            return super().gelu(h)
        value, slope = _Gelu.apply(h)  # type: ignore[no-untyped-call]
        self.keep(slope)
        return value  # type: ignore[no-any-return]

    def weights(self, scores: list[Tensor], scale: float) -> Sequence[Tensor]:
        # one tensor per position: with the few positions as the last axis, three quarters of a vector register are idle
        weights: tuple[Tensor, ...] = _Softmax.apply(*torch.broadcast_tensors(*[s / scale for s in scores]))  # type: ignore[no-untyped-call]
        self.keep(*weights)
        return weights

    def keep(self, *tensors: Tensor) -> None:
        if torch.is_grad_enabled():
            self.kept.extend(tensors)


class _AddBias(torch.autograd.Function):
    """Rows [R, D] plus a bias [D]; the bias's gradient is a matrix product with ones, which is one library call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        return grad, (grad.new_ones(1, grad.shape[0]) @ grad)[0]


class _TakeRows(torch.autograd.Function):
    """Rows ``index`` [B] of [R, D]: a gather that fuses. Its gradient is summed row by row, without atomics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return sum_rows(grads[0].contiguous(), index, ctx.rows), None


class _LayerNorm(torch.autograd.Function):
    """LayerNorm of rows [R, D]; also returns the rows before weight and bias, and each row's 1 / standard deviation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal, rate = standardise(x)
        ctx.save_for_backward(normal, rate, weight)
        ctx.mark_non_differentiable(normal, rate)
        return normal * weight + bias, normal, rate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal, rate, weight = ctx.saved_tensors
        grad = grads[0]
        return standardise_gradient(grad * weight, normal, rate), (grad * normal).sum(0), grad.sum(0)


class _Gelu(torch.autograd.Function):
    """GELU in float32; also returns its derivative. Both use one exponential."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        z = h * math.sqrt(0.5)
        density = torch.exp(-z * z)
        t = 1 / (1 + ERFC_SLOPE * z.abs())
        tail = ERFC[0] * t
        for coefficient in ERFC[1:]:
            tail = (tail + coefficient) * t
        tail = 0.5 * tail * density  # the normal distribution function at -|h|
        below = torch.where(h < 0, tail, 1 - tail)
        slope = below + h * density * (1 / math.sqrt(2 * math.pi))
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(slope)
        return h * below, slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope  # type: ignore[no-any-return]


class _Softmax(torch.autograd.Function):
    """The softmax over a list of scores of one shape [M, H], as a tuple of weights."""

    @staticmethod
    def forward(ctx: Any, *scores: Tensor) -> tuple[Tensor, ...]:
        top = scores[0]
        for score in scores[1:]:
            top = torch.maximum(top, score)
        shares = [torch.exp(score - top) for score in scores]
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        weights = tuple(share / total for share in shares)
        ctx.save_for_backward(*weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        weights = ctx.saved_tensors
        mean = weights[0] * grads[0]
        for weight, grad in zip(weights[1:], grads[1:], strict=True):
            mean = mean + weight * grad
        return tuple(weight * (grad - mean) for weight, grad in zip(weights, grads, strict=True))
