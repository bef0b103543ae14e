"""The MLP of all lanes with its residual connection and norm, as one operation: ``numerics.kernels=fused``.

On a CUDA device the operations launch the kernels of ``grok.arithmetic.gpu.mlp_kernels``; on a CPU they are the same
mathematics in torch. A compiler sees opaque calls.

L lanes, R rows, D width, F width of the hidden layer.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.lanes import standardise, standardise_gradient

Bias = Tensor | None


def mlp(x: Tensor, *rest: Any) -> Tensor:
    """Return LayerNorm(x + down(act(up(x)))) of rows ``x`` [L, R, D]; differentiable.

    Args:
        x: the rows.
        rest: weight [L, F, D] and bias [L, F] of ``up``; weight [L, D, F] and bias [L, D] of ``down``, both biases or
            neither; weight and bias [L, D] of the norm; whether the activation is GELU, else ReLU; the precision of
            the kernels' products, as triton names it (``ieee`` or ``tf32``).
    """
    return _Mlp.apply(x.contiguous(), *rest)  # type: ignore[no-any-return, no-untyped-call]


class _Mlp(torch.autograd.Function):
    """Keeps x and what the norm's gradient needs; the other gradients compute the hidden layer again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, up, up_bias, down, _, weight, _, *ctx.how = arguments
        y, normal, rate = torch.ops.grok.mlp.default(*arguments)
        ctx.save_for_backward(normal, rate, weight, x, up, up_bias, down)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (normal, rate, weight, *tensors) = grads, ctx.saved_tensors
        of_sum = standardise_gradient(grad * weight[:, None, :], normal, rate).contiguous()
        of_mlp = torch.ops.grok.mlp_gradients.default(of_sum, *tensors, *ctx.how)
        found = (*of_mlp, of_sum.sum(1), (grad * normal).sum(1), grad.sum(1), None, None)
        return tuple(grad if needed else None for grad, needed in zip(found, ctx.needs_input_grad, strict=True))


# The operations on a CPU.


def _mlp(
    x: Tensor,
    up: Tensor,
    up_bias: Bias,
    down: Tensor,
    down_bias: Bias,
    weight: Tensor,
    bias: Tensor,
    gelu: bool,
    _: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y [L, R, D], and what ``standardise`` returns."""
    h = torch.bmm(x, up.mT) + (0 if up_bias is None else up_bias[:, None, :])
    out = x + torch.bmm(F.gelu(h) if gelu else F.relu(h), down.mT)
    normal, rate = standardise(out if down_bias is None else out + down_bias[:, None, :])
    return normal * weight[:, None, :] + bias[:, None, :], normal, rate


def _mlp_gradients(
    of_sum: Tensor, x: Tensor, up: Tensor, up_bias: Bias, down: Tensor, gelu: bool, _: str
) -> tuple[Tensor, ...]:
    """Return the gradients of x, ``up``, its bias and ``down``, from that of the norm's input [L, R, D]."""
    h = torch.bmm(x, up.mT) + (0 if up_bias is None else up_bias[:, None, :])
    of_active = torch.bmm(of_sum, down)
    of_h = torch.ops.aten.gelu_backward(of_active, h) if gelu else of_active * (h > 0)
    of_down = torch.bmm(of_sum.mT, F.gelu(h) if gelu else F.relu(h))
    return of_sum + torch.bmm(of_h, up), torch.bmm(of_h.mT, x), of_h.sum(1), of_down


# Their registration.

_LIBRARY: Final = torch.library.Library("grok", "FRAGMENT")
_LIBRARY.define(
    "mlp(Tensor x, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, Tensor weight, Tensor bias, bool gelu, "
    "str products) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "mlp_gradients(Tensor of_sum, Tensor x, Tensor up, Tensor? up_bias, Tensor down, bool gelu, str products) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
_KERNELS: Final = "grok.arithmetic.gpu.mlp_kernels"
"""Imported by the first launch: it needs triton."""
_LIBRARY.impl("mlp", _mlp, "CPU")
_LIBRARY.impl("mlp", lambda *arguments: import_module(_KERNELS).mlp(*arguments), "CUDA")
_LIBRARY.impl("mlp_gradients", _mlp_gradients, "CPU")
_LIBRARY.impl("mlp_gradients", lambda *arguments: import_module(_KERNELS).mlp_gradients(*arguments), "CUDA")


@torch.library.register_fake("grok::mlp", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(*x.shape[:2], 1)


@torch.library.register_fake("grok::mlp_gradients", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _(of_sum: Tensor, x: Tensor, up: Tensor, _: Bias, down: Tensor, *how: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(up), up.new_empty(up.shape[:2]), torch.empty_like(down)
