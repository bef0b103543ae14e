"""The stacked lanes' mathematics: operations over a leading lane axis L, and the form that compiles best."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.gpu.block import block, head
from grok.arithmetic.lanes import KeepingModel, Noise, OneLane, no_noise
from grok.arithmetic.rows import Batch, Group, RowPlan
from grok.arithmetic.weights import Parameters
from grok.config.arithmetic import ModelConfig


class StackedLanes(OneLane):
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
        return _TakeRows.apply(x, index, *group_rows(index, x.shape[1]))  # type: ignore[no-any-return, no-untyped-call]

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
    borders = torch.arange(rows + 1, device=index.device, dtype=index.dtype).expand(index.shape[0], -1).contiguous()
    return order, torch.searchsorted(grouped, borders).diff(dim=1)


@group_rows.register_fake
def _(index: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(index, dtype=torch.int64), index.new_empty(index.shape[0], rows, dtype=torch.int64)


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
    """Rows ``index`` [L, B] of ``x`` [L, R, D]: a gather that fuses.

    Its gradient is summed row by row, in order, by the results of ``group_rows``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, order: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(order, lengths)
        return _rows(x, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        order, lengths = ctx.saved_tensors
        return sum_grouped_rows(_rows(grads[0], order), lengths), None, None, None


# The stacked lanes' mathematics in the form that compiles to the least memory traffic, for the compiled step.
#
# Equal to ``LaneModel`` over ``StackedLanes`` up to rounding; tests/arithmetic checks 1e-12 in float64. As on a CPU
# (``grok.arithmetic.lanes``) loss and gradients are one graph, and values that a gradient needs are *kept*: they are
# outputs of the graph, so that the compiler stores them in the forward pass.
#
# L lanes, R rows, D width, F width of a product's result.

ALIGNED: Final = 8
"""A product's columns are padded to a multiple of this: rows of 16 bytes, which the libraries' fast kernels need."""


class FusedLanes(StackedLanes):
    """Batched products with aligned rows; weight gradients have the memory layout of the weights."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # cast here, so that the gradients' products have its type, too
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
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


PARTS: Final = ("attention.qkv", "attention.out", "norm1", "mlp.up", "mlp.down", "norm2")
"""Names of the parameters of ``grok.arithmetic.gpu.block``, in its order."""


class StackedModel(KeepingModel):
    """The stacked lanes' model, whose norms keep what their gradients need.

    Args:
        config: the architecture.
        plan: the rows.
        products: precision of the products of ``grok.arithmetic.gpu.block``; None: the operations are separate.
    """

    def __init__(self, config: ModelConfig, plan: RowPlan, products: str | None = None) -> None:
        super().__init__(config, plan, FusedLanes())
        self.products = products

    def block(
        self, p: Parameters, name: str, x: Tensor, groups: tuple[Group, ...], batch: Batch, last: bool, noise: Noise
    ) -> Tensor:
        if self.products is None:
            return super().block(p, name, x, groups, batch, last, noise)
        parts = [p.get(f"{name}{part}.{kind}") for part in PARTS for kind in ("weight", "bias")]
        skipped = x.shape[1] - self.plan.size(groups[-1], batch.a.shape[1]) if last else 0
        table = self.table(groups, batch, last)
        lists = group_rows(table[..., :-1].flatten(1), x.shape[1])
        how = not last or groups != self.plan.prefix, self.config.heads, self.config.activation == "gelu", self.products
        return block(x, *parts[:2], skipped, table, *lists, *parts[2:], *how)

    def scores(self, p: Parameters, batch: Batch, kind: str, noise: Noise = no_noise) -> tuple[Tensor, Tensor]:
        if self.products is None or kind != "softmax" or self.plan.prefix[-1] != "pair":
            return super().scores(p, batch, kind, noise)
        norm = p.get("final_norm.weight"), p.get("final_norm.bias")
        weight = p["token_embedding.weight"] if self.config.tied else p["head.weight"]
        return head(self.answers(p, batch, noise), *norm, weight, p.get("head.bias"), batch.answer, self.products)

    def table(self, groups: tuple[Group, ...], batch: Batch, last: bool) -> Tensor:
        """Return for every row after a block the rows before it that its attention sees, and its own: see ``block``."""
        lanes, examples = batch.a.shape
        sizes = [self.plan.size(group, examples) for group in groups]
        found = []
        for t, target in [*enumerate(self.plan.prefix)][-1 if last else 0 :]:
            rows = torch.arange(self.plan.size(target, examples), device=batch.a.device)
            seen = [torch.full_like(rows, sum(sizes))] * len(groups)
            for j, group in enumerate(groups[: t + 1]):
                row = rows if group == target else rows * 0 if group == "one" else self.plan.index(group, batch)
                seen[j] = row + sum(sizes[:j])
            found.append(torch.stack([row.expand(lanes, -1) for row in (*seen, seen[t])], -1))
        return torch.cat(found, 1).int()


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
