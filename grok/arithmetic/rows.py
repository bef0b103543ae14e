"""The row plan: the distinct activations of a step, so that none is computed twice or without need.

Attention is causal, so the activation at a position depends only on the tokens up to
it. In ``eos a op b =`` position 0 has one distinct row, positions 1 and 2 have one for each
``a``, and only positions 3 and 4 need one for each example. Before the first attention a
position depends on its own token alone, so the first layer's queries, keys and values
need 2p + 3 rows in all. The last layer needs queries, MLP and head at ``=`` only.

Every position belongs to a *group* of rows: ``one`` (a single row), ``left`` (one for each
left operand), ``right`` (one for each right operand) or ``pair`` (one for each example of the
batch). A plan without sharing has every position in ``pair``: the plain path, for noise that
differs between examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal

import torch
from torch import Tensor

from grok.arithmetic.task import FIRST_NUMBER, Equations, Vocabulary
from grok.config.arithmetic import ArithmeticConfig, TaskConfig

Group = Literal["one", "left", "right", "pair"]
_OPERAND_GROUP: dict[str, Group] = {"a": "left", "b": "right"}


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples of a step: operands and answers as token numbers, and each example's weight in the loss (``share``).

    Shapes [B], or [L, B] for stacked lanes. The share is 1/size for an example and 0 for padding, so that all
    batches have one shape.
    """

    a: Tensor
    b: Tensor
    answer: Tensor
    share: Tensor


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The group of every position, before the first attention (``own``) and after it (``prefix``)."""

    layout: tuple[int | str, ...]
    own: tuple[Group, ...]
    prefix: tuple[Group, ...]
    left: range
    """Token numbers of the left operand."""
    right: range
    """Token numbers of the right operand."""

    @classmethod
    def of(cls, task: TaskConfig, *, shared: bool = True) -> RowPlan:
        """Return the plan of a task; ``shared=False`` gives the plain path."""
        layout = Vocabulary.of(task).layout
        right = task.right_operands()
        operands = range(FIRST_NUMBER, FIRST_NUMBER + task.modulus)
        numbers = range(FIRST_NUMBER + right.start, FIRST_NUMBER + right.stop)
        own: list[Group] = [_OPERAND_GROUP.get(str(word), "one") if shared else "pair" for word in layout]
        return cls(layout, tuple(own), tuple(accumulate(own, join)), operands, numbers)

    def size(self, group: Group, batch_size: int) -> int:
        """Return the number of rows of a group."""
        return {"one": 1, "left": len(self.left), "right": len(self.right), "pair": batch_size}[group]

    def sizes(self, level: int, batch_size: int) -> list[int]:
        """Return the number of rows of each position before the first attention (level 0) or after it (level 1)."""
        return [self.size(group, batch_size) for group in (self.prefix if level else self.own)]

    def index(self, source: Group, batch: Batch) -> Tensor:
        """Return for each example its row in the group of an operand, [..., B]."""
        return batch.a - self.left.start if source == "left" else batch.b - self.right.start


def join(x: Group, y: Group) -> Group:
    """Return the group of an activation that depends on the groups ``x`` and ``y``."""
    if y in (x, "one"):
        return x
    return y if x == "one" else "pair"


def step_flops(config: ArithmeticConfig) -> int:
    """Return the floating-point operations of the matrix products of one lane's step, forward and both gradients.

    A multiply-add counts as two operations; the products of the gradients need twice those of the forward pass.
    """
    model, batch_size = config.model, config.train.batch_size
    plan = RowPlan.of(config.task, shared=model.dropout == 0)
    d, d_ff = model.d_model, model.d_ff or model.usual_d_ff()
    sizes, later = plan.sizes(0, batch_size), plan.sizes(1, batch_size)
    products = later[-1] * d * Vocabulary.of(config.task).size
    for layer in range(model.layers):
        rows, last = sum(sizes), layer == model.layers - 1
        queries, out = (sizes[-1], later[-1]) if last else (rows, sum(later))
        products += queries * d * d + rows * d * 2 * d  # q, then k and v
        products += out * (d * d + 2 * d * d_ff)
        sizes = later
    return 3 * 2 * products


def shares(batch_size: int, size: int, dtype: torch.dtype) -> Tensor:
    """Return each example's weight in the mean, [batch_size]: 1/size for the first ``size``, 0 for the padding."""
    share = torch.zeros(batch_size, dtype=dtype)
    share[:size] = 1 / size
    return share


def words_of(equations: Equations) -> list[Tensor]:
    """Return the token numbers of the left operands, right operands and answers, one tensor [n] each."""
    return [torch.from_numpy(x) + FIRST_NUMBER for x in (equations.a, equations.b, equations.answer)]


# Gathers rows that several examples share; the gradient sums them without atomics.

_LIBRARY: Final = torch.library.Library("grok", "FRAGMENT")
"""Registers the sum without ``custom_op``: its checks of arguments cost ten microseconds a call.

The first call of a ``custom_op`` also imports torch's compiler, which takes longer than importing torch.
"""
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


class _TakeRows(torch.autograd.Function):
    """A gather that fuses, and a sum as one custom operation.

    A compiler would make the sum from atomic additions, which take longer than the rest of the attention's backward
    pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return torch.ops.grok.sum_rows.default(grads[0].contiguous(), index, ctx.rows), None


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows ``index`` [B] of ``x`` [R, D]; differentiable: gradients of one row are summed in their order."""
    return _TakeRows.apply(x, index)  # type: ignore[no-any-return, no-untyped-call]
