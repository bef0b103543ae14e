"""Matrix products and row sums by the fastest path for the processor, behind one function.

On some AMD processors torch's default library reaches half of what oneDNN does on the
same cores; on Intel's the two are level. The choice follows from the processor's model
by a table and from ``numerics.path``, never from a timing (DESIGN decision 2).
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

ONEDNN_PROCESSORS: Final = (r"AMD EPYC .*", r"AMD Ryzen .*")
"""Processor models, as /proc/cpuinfo names them, on which oneDNN was measured to be faster."""


@functools.cache
def processor_model() -> str:
    """Return the processor's name with family, model and stepping, or ``"unknown"``."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        import platform

        return platform.processor() or "unknown"
    found = dict(re.findall(r"^(vendor_id|model name|cpu family|model|stepping)\s*:\s*(.*)$", text, re.MULTILINE))
    numbers = "-".join(found.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{found.get('model name', 'unknown')} {numbers}"


def choose_path(requested: str, precision: str) -> str:
    """Return ``plain`` or ``onednn`` for ``numerics.path``.

    oneDNN's operation has no float64, and autocast would pass it by in bf16.
    """
    if precision != "float32":
        return "plain"
    if requested != "auto":
        return requested
    fast = any(re.match(pattern, processor_model()) for pattern in ONEDNN_PROCESSORS)
    return "onednn" if fast and torch.backends.mkldnn.is_available() else "plain"


@torch.library.custom_op("grok::onednn_linear", mutates_args=())
def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight.T + bias`` through oneDNN, which takes transposed views as they are."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


@_onednn_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def _save_operands(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    x, weight = ctx.saved_tensors
    grad = grad.contiguous()
    grad_x = _onednn_linear(grad, weight.t(), None)
    grad_weight = _onednn_linear(grad.t(), x.t(), None)
    return grad_x, grad_weight, grad.sum(0) if ctx.has_bias else None


_onednn_linear.register_autograd(_gradients, setup_context=_save_operands)


def linear_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight.T + bias`` for x [R, D], weight [F, D]; differentiable."""
    return _onednn_linear(x, weight, bias)  # type: ignore[no-any-return]


@torch.library.custom_op("grok::take_rows", mutates_args=())
def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` [B] of ``x`` [R, D]."""
    return x.index_select(0, index)


@_take_rows.register_fake
def _(x: Tensor, index: Tensor) -> Tensor:
    return x.new_empty(index.shape[0], x.shape[1])


@torch.library.custom_op("grok::sum_rows", mutates_args=())
def _sum_rows(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return [rows, D] in which row r is the sum of the ``grad`` rows whose index is r, in their order.

    Summed in float32 at least: a bfloat16 sum of ones ends at 256.
    """
    whole = grad if grad.dtype == torch.float64 else grad.float()
    return whole.new_zeros(rows, grad.shape[1]).index_add_(0, index, whole).to(grad.dtype)


@_sum_rows.register_fake
def _(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    return grad.new_empty(rows, grad.shape[1])


def _save_index(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, index = inputs
    ctx.save_for_backward(index)
    ctx.rows = x.shape[0]


def _sum_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _sum_rows(grad.contiguous(), ctx.saved_tensors[0], ctx.rows), None


_take_rows.register_autograd(_sum_back, setup_context=_save_index)


def sum_rows(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return [rows, D] in which row r is the sum of the ``grad`` [B, D] rows whose index is r, in their order."""
    return _sum_rows(grad, index, rows)  # type: ignore[no-any-return]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` [B] of ``x`` [R, D]; differentiable.

    A custom operation because a compiler would turn the gradient's sum into atomic
    additions, which cost more than the rest of the attention's backward pass.
    """
    return _take_rows(x, index)  # type: ignore[no-any-return]
