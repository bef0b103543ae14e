"""Makes Triton's interpreter strict about memory, so that it detects invalid reads.

On a device, the elements outside the mask of a load without a default value are undefined, and so is a buffer before
its first write. The interpreter uses zeros for both, which hides invalid reads. Here both are NaN, or an index that no
buffer has. Every access inside a mask must lie inside a tensor of the kernel's arguments. Call
``pretence.pretend(interpreter=True)`` first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

NO_INDEX: Final = 2**62
"""An index outside every buffer."""


class OutOfBounds(Exception):
    """A kernel reads or writes outside its argument tensors."""


def unwritten(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new buffer filled with values that make reads of it visible."""
    buffer = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)
    return buffer.fill_(poison_of(dtype))


def poison_of(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return float("nan")
    return min(NO_INDEX, torch.iinfo(dtype).max) if dtype != torch.bool else 1


@contextmanager
def guarded() -> Iterator[None]:
    """Apply the rules above to the interpreter, and switch off NumPy's floating-point warnings."""
    from triton.runtime import interpreter

    builder, executor, reduce = interpreter.InterpreterBuilder, interpreter.GridExecutor, interpreter.ReduceOps
    held = builder.create_masked_load, builder.create_masked_store, executor._init_args_hst, reduce.generic_reduce
    bounds = np.zeros((2, 0), dtype=np.uint64)

    def launch(self: Any, arguments: Any, named: Any) -> Any:
        nonlocal bounds
        on_host = held[2](self, arguments, named)
        tensors = [x for x in (*on_host[0], *on_host[1].values()) if isinstance(x, Tensor)]
        bounds = bounds_of(sorted({extent(x) for x in tensors}))
        return on_host

    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        kind = pointers.get_element_ty()
        dtype = interpreter._get_np_dtype(kind)
        refuse_outside(pointers.data, mask.data, np.dtype(dtype).itemsize, bounds)
        if other is None:
            floating = np.issubdtype(dtype, np.floating)
            value = np.nan if floating else min(NO_INDEX, np.iinfo(dtype).max) if dtype != np.bool_ else True
            other = interpreter.TensorHandle(np.full(pointers.data.shape, value, dtype=dtype), kind)
        return held[0](self, pointers, mask, other, *rest)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        refuse_outside(pointers.data, mask.data, value.data.dtype.itemsize, bounds)
        return held[1](self, pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = load, store
    executor._init_args_hst, reduce.generic_reduce = launch, folded
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        builder.create_masked_load, builder.create_masked_store, executor._init_args_hst, reduce.generic_reduce = held


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's memory and the one after the last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def bounds_of(extents: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the first and end addresses (2, n)."""
    return np.array(extents, dtype=np.uint64).reshape(-1, 2).T


def refuse_outside(pointers: np.ndarray, mask: np.ndarray, size: int, bounds: np.ndarray) -> None:
    """Raise ``OutOfBounds`` if an element inside the mask lies in none of the bounds."""
    inside = np.broadcast_to(mask, pointers.shape)
    addresses = pointers[inside].astype(np.uint64)
    if not addresses.size:
        return
    place = np.searchsorted(bounds[0], addresses, side="right").astype(np.int64) - 1
    outside = (place < 0) | (addresses + np.uint64(size) > bounds[1][place])
    if outside.any():
        raise OutOfBounds(f"{int(outside.sum())} of {addresses.size} accesses of {size} bytes")


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
