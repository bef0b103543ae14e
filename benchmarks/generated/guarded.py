"""Makes Triton's interpreter strict about memory, so that it detects invalid reads.

On a device, the elements outside the mask of a load without a default value are undefined, and so is a buffer before
its first write. The interpreter uses zeros for both, which hides invalid reads. Here both are NaN, or an index that no
buffer has. Call ``pretence.pretend(interpreter=True)`` first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

NO_INDEX: Final = 2**62
"""An index outside every buffer."""


def unwritten(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new buffer filled with values that make reads of it visible."""
    index = 1 if dtype == torch.bool or dtype.is_floating_point else min(NO_INDEX, torch.iinfo(dtype).max)
    buffer = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)
    return buffer.fill_(float("nan") if dtype.is_floating_point else index)


@contextmanager
def guarded() -> Iterator[None]:
    """Apply the rules above to the interpreter, and switch off NumPy's floating-point warnings."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    plain_load = builder.create_masked_load

    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None:
            kind = pointers.get_element_ty()
            dtype = interpreter._get_np_dtype(kind)
            floating = np.issubdtype(dtype, np.floating)
            value = np.nan if floating else min(NO_INDEX, np.iinfo(dtype).max) if dtype != np.bool_ else True
            other = interpreter.TensorHandle(np.full(pointers.data.shape, value, dtype=dtype), kind)
        return plain_load(self, pointers, mask, other, *rest)

    with (
        patch.object(builder, "create_masked_load", load),
        patch.object(interpreter.ReduceOps, "generic_reduce", folded),
        np.errstate(all="ignore"),
    ):
        yield


def folded(self: Any, tensors: Any) -> list[Any]:
    """Reduce with the kernel's function slice by slice; the interpreter's version works element by element."""
    tensors, axis = self.unravel(tensors, self.axis)
    slices = [np.moveaxis(t.handle.data, axis, 0) for t in tensors]
    kinds = [t.dtype for t in tensors]

    def at(i: int) -> list[Any]:
        return [self.to_tensor(s[i], kind) for s, kind in zip(slices, kinds, strict=True)]

    total = at(0)
    for i in range(1, len(slices[0])):
        result = self.combine_fn.fn(*total, *at(i))
        total = list(result) if isinstance(result, tuple) else [result]
    values = [t.handle.data for t in total]
    if self.keep_dims:
        shape = [1] * tensors[0].handle.data.ndim if self.axis is None else None
        values = [v.reshape(shape) if shape else np.expand_dims(v, axis) for v in values]
    elif self.axis is None:
        values = [v.item() for v in values]
    return [self.to_tensor(v, kind) for v, kind in zip(values, kinds, strict=True)]
