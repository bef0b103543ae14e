"""Kernels with deliberate faults that ``guarded`` must detect. Triton's interpreter reads a kernel from its file."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from benchmarks.generated.guarded import guarded, unwritten

SIZE = 5


@triton.jit  # type: ignore[untyped-decorator]
def copied(source, target, n, ahead, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    inside = place < n
    tl.store(target + place, tl.load(source + place + ahead, inside), inside)


@triton.jit  # type: ignore[untyped-decorator]
def padded(source, target, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    tl.store(target + place, tl.load(source + place, place < n))


def caught() -> dict[str, bool]:
    """Return which faults are detected: reads beyond a buffer, of unwritten memory, outside the mask."""
    whole, fresh = torch.ones(SIZE), unwritten([SIZE], [1], torch.float32)
    result = {}
    with guarded():
        right = torch.zeros(SIZE)
        copied[(1,)](whole, right, SIZE, 0, BLOCK=8)
        result["nothing wrong"] = bool((right == 1).all())
        try:
            copied[(1,)](whole, torch.zeros(SIZE), SIZE, 1, BLOCK=8)
            result["beyond a buffer"] = False
        except Exception as error:  # the interpreter wraps what is raised inside a kernel
            result["beyond a buffer"] = "OutOfBounds" in repr(error)
        target = torch.zeros(SIZE)
        copied[(1,)](fresh, target, SIZE, 0, BLOCK=8)
        result["never written"] = bool(target.isnan().all())
        target = torch.zeros(8)
        padded[(1,)](whole, target, SIZE, BLOCK=8)
        result["outside the mask"] = bool(target[SIZE:].isnan().all())
    return result
