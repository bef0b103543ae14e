"""The operations of ``grok.arithmetic.backends`` on tensors with a leading lane axis L."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class StackedLanes:
    """Batched products; sums over shared rows have a fixed order and use no atomics."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product = torch.bmm(x, weight.mT)
        # separate addition, which a compiled step fuses with the next operation; baddbmm would copy the bias first
        return product if bias is None else product + bias[:, None, :]

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape[-1:]) * weight[:, None, :] + bias[:, None, :]

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return _rows(x, index)
        return take_lane_rows(x, index, *group_rows(index, x.shape[1]))

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        lanes, examples, words = logits.shape
        flat = F.cross_entropy(logits.reshape(-1, words), answer.reshape(-1), reduction="none")
        return flat.view(lanes, examples)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, 1, index[..., None].expand(-1, -1, x.shape[-1]))


# Custom operations, so that a compiler cannot make atomic additions of the sums, and merges equal groupings.
@torch.library.custom_op("grok::group_rows", mutates_args=())
def group_rows(index: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return (order [L, B], lengths [L, R]): the positions of ``index`` [L, B] sorted by row, and the count per row.

    The sort is stable: positions of one row keep their order.
    """
    grouped, order = index.sort(dim=1, stable=True)
    borders = torch.arange(rows + 1, device=index.device).expand(index.shape[0], -1).contiguous()
    return order, torch.searchsorted(grouped, borders).diff(dim=1)


@group_rows.register_fake
def _(index: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(index), index.new_empty(index.shape[0], rows)


@torch.library.custom_op("grok::sum_grouped_rows", mutates_args=())
def sum_grouped_rows(grad: Tensor, lengths: Tensor) -> Tensor:
    """Return [L, R, D]: the sums of consecutive rows of ``grad`` [L, B, D], with ``lengths`` [L, R] rows each.

    On CUDA one thread sums one element of a row, in order.
    """
    whole = grad.double() if grad.dtype == torch.float64 else grad.float()
    # "unsafe" omits a check of the lengths that would synchronise with the device
    return torch.segment_reduce(whole, "sum", lengths=lengths, axis=1, unsafe=True).to(grad.dtype)


@sum_grouped_rows.register_fake
def _(grad: Tensor, lengths: Tensor) -> Tensor:
    return grad.new_empty(*lengths.shape, grad.shape[-1])


class _TakeRows(torch.autograd.Function):
    """Rows of ``x``: a gather that fuses. Its gradient is summed row by row, in order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, order: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(order, lengths)
        return _rows(x, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        order, lengths = ctx.saved_tensors
        return sum_grouped_rows(_rows(grads[0], order), lengths), None, None, None


def take_lane_rows(x: Tensor, index: Tensor, order: Tensor, lengths: Tensor) -> Tensor:
    """Return rows ``index`` [L, B] of ``x`` [L, R, D]; the gradient uses the results of ``group_rows``."""
    taken: Tensor = _TakeRows.apply(x, index, order, lengths)  # type: ignore[no-untyped-call]
    return taken
