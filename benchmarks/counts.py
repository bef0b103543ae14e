"""Operations and bytes of one step of stacked lanes, counted on tensors without data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import EvaluationPass, TrainingStep
from grok.config import ArithmeticConfig

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a product's operand."""


@dataclass(slots=True)
class Counts:
    """Counts of one call of a step, or of one pass of an evaluation, over all lanes of a stack."""

    flops: int = 0
    """Operations of the matrix products; a multiply-add counts as two."""
    products: Counter[tuple[Layout, Layout]] = field(default_factory=Counter)
    """Number of batched products by their operands."""
    bytes: int = 0
    """Bytes of the operands and results of all operations: the traffic of an uncompiled step."""
    kernels: int = 0
    """Number of operations, without views."""


class Counter_(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        made = [t for t in tree_iter(result) if isinstance(t, Tensor)]
        aliases = [r.alias_info for r in func._schema.returns]
        if made and not any(info is not None and not info.is_write for info in aliases):
            self.counts.kernels += 1
            self.counts.bytes += sum(map(distinct_bytes, [*read, *made]))
            if func is torch.ops.aten.bmm.default:
                x, y = read
                lanes, rows, inner = x.shape
                self.counts.flops += 2 * lanes * rows * inner * y.shape[2]
                self.counts.products[(tuple(x.shape), x.stride()), (tuple(y.shape), y.stride())] += 1
        return result


def distinct_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements; expanded dimensions count once."""
    n = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        n *= size if stride else 1
    return n * tensor.element_size()


def counts_of(config: ArithmeticConfig, width: int) -> tuple[Counts, Counts, int]:
    """Return the counts of a step and of a pass of an evaluation, and the number of passes that evaluate all lanes."""
    state = LaneState(config, width, torch.device("meta"))
    step, evaluation = TrainingStep(state, compile=False), EvaluationPass(state, compile=False)
    counts = []
    for function in (step, evaluation):
        with Counter_() as counter:
            function()
        counts.append(counter.counts)
    return counts[0], counts[1], evaluation.passes * -(-width // evaluation.lanes)
