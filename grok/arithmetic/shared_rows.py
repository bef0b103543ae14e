"""Gathers rows that several examples share; the gradient sums them without atomics."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_LIBRARY: Final = torch.library.Library("grok", "FRAGMENT")
"""Registers operations without ``custom_op``: its checks of arguments cost ten microseconds a call.

The first call of a ``custom_op`` also imports torch's compiler, which takes longer than importing torch.
"""
_LIBRARY.define("take_rows(Tensor x, Tensor index) -> Tensor")


def _take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` [B] of ``x`` [R, D]."""
    return x.index_select(0, index)


_LIBRARY.impl("take_rows", _take_rows, "CompositeExplicitAutograd")


@torch.library.register_fake("grok::take_rows", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _(x: Tensor, index: Tensor) -> Tensor:
    return x.new_empty(index.shape[0], x.shape[1])


_LIBRARY.define("sum_rows(Tensor grad, Tensor index, int rows) -> Tensor")


def _sum_rows(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return [rows, D]; row r is the sum of the ``grad`` rows whose index is r, in their order.

    Sums are in float32 or float64: a bfloat16 sum of ones stops at 256.
    """
    whole = grad if grad.dtype == torch.float64 else grad.float()
    return whole.new_zeros(rows, grad.shape[1]).index_add_(0, index, whole).to(grad.dtype)


_LIBRARY.impl("sum_rows", _sum_rows, "CPU")


@torch.library.register_fake("grok::sum_rows", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    return grad.new_empty(rows, grad.shape[1])


def _save_index(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, index = inputs
    ctx.save_for_backward(index)
    ctx.rows = x.shape[0]


def _sum_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return sum_rows(grad.contiguous(), ctx.saved_tensors[0], ctx.rows), None


torch.library.register_autograd("grok::take_rows", _sum_back, setup_context=_save_index, lib=_LIBRARY)


def sum_rows(grad: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return [rows, D]; row r is the sum of the rows of ``grad`` [B, D] whose index is r, in their order."""
    return torch.ops.grok.sum_rows.default(grad, index, rows)  # type: ignore[no-any-return]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` [B] of ``x`` [R, D]; differentiable.

    This is a custom operation because a compiler would make the gradient's sum from atomic
    additions, which take longer than the rest of the attention's backward pass.
    """
    return torch.ops.grok.take_rows.default(x, index)  # type: ignore[no-any-return]
