"""The matrix products of one step of stacked lanes, counted on tensors without data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import TrainingStep
from grok.config import ArithmeticConfig

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a product's operand."""
Products = Counter[tuple[Layout, Layout]]
"""Number of batched products by their operands."""


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: Products = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            x, y = args
            self.products[(tuple(x.shape), x.stride()), (tuple(y.shape), y.stride())] += 1
        return func(*args, **(kwargs or {}))


def products_of(config: ArithmeticConfig, width: int) -> Products:
    """Return the products of an uncompiled step."""
    step = TrainingStep(LaneState(config, width, torch.device("meta")), compile=False)
    counting = _Counting()
    with counting:
        step()
    return counting.products


def distinct_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements; expanded dimensions count once."""
    n = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        n *= size if stride else 1
    return n * tensor.element_size()
