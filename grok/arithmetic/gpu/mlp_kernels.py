"""The Triton kernels of ``grok.arithmetic.gpu.mlp``, which imports them when it launches one: they need triton.

A program owns one lane, and a block of its rows or of its hidden layer. It adds up in a fixed order that no other lane
changes, and nothing is added atomically. The hidden layer stays in registers; the gradients compute it again.

Arguments are addresses of contiguous tensors. ``r`` are rows, ``f`` indices of the hidden layer, ``d`` of the model's
width: one block each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from grok.arithmetic.lanes import EPS

BLOCKS: Final = {
    "ieee": {"forward_kernel": (64, 32, 8), "rows_kernel": (64, 64, 8), "weights_kernel": (32, 32, 8)},
    "tf32": {"forward_kernel": (128, 64, 8), "rows_kernel": (64, 32, 8), "weights_kernel": (32, 64, 8)},
    "float64": {"forward_kernel": (32, 32, 8), "rows_kernel": (32, 32, 8), "weights_kernel": (16, 32, 8)},
}
"""Rows, indices of the hidden layer, and warps of a program, by kernel: the largest that spill no register in
float32 and TF32 at width 128. Wider models have half of both."""
STEPS: Final = {"ieee": 16, "tf32": 32, "float64": 16}
STAGES: Final = 3
"""Blocks of a product's sum that are on their way from memory at a time."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the tensors and of the blocks, known when a kernel is compiled."""

    R: int
    """Rows of a lane."""
    D: int
    F: int
    rows: int
    width: int
    """The smallest power of two that is at least D."""
    chunk: int
    """Indices of the hidden layer that are in registers at a time."""
    step: int
    """Terms of a product's sum that are in shared memory at a time."""
    warps: int
    gelu: bool
    products: str
    """Precision of products, as triton names it."""
    eps: float = EPS


def mlp(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operation ``grok::mlp`` returns."""
    *tensors, gelu, products = arguments
    x, up, *_ = tensors
    results = (torch.empty_like(x), torch.empty_like(x), x.new_empty(*x.shape[:2], 1))
    launch(forward_kernel, [*tensors, *results], sizes_of(forward_kernel, x, up, gelu, products))
    return results


def mlp_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operation ``grok::mlp_gradients`` returns."""
    *tensors, gelu, products = arguments
    _, x, up, _, down = tensors
    of_x, *of_weights = torch.empty_like(x), torch.empty_like(up), up.new_empty(up.shape[:2]), torch.empty_like(down)
    launch(rows_kernel, [*tensors, of_x], sizes_of(rows_kernel, x, up, gelu, products))
    launch(weights_kernel, [*tensors, *of_weights], sizes_of(weights_kernel, x, up, gelu, products))
    return of_x, *of_weights


def sizes_of(kernel: Any, x: Tensor, up: Tensor, gelu: bool, products: str) -> Sizes:
    """Return the sizes for x [L, R, D] and up [L, F, D]."""
    kind = "float64" if x.dtype == torch.float64 else products
    rows, chunk, warps = BLOCKS[kind][kernel.__name__]
    _, r, d = x.shape
    width = max(16, triton.next_power_of_2(d))
    if width > 128:
        rows, chunk = max(16, rows // 2), max(16, chunk // 2)  # tl.dot takes no less
    return Sizes(r, d, up.shape[1], rows, width, chunk, STEPS[kind], warps, gelu, products)


def launch(kernel: Any, tensors: Sequence[Tensor], sizes: Sizes) -> None:
    """Queue a kernel; the first of ``tensors`` has one row for each lane."""
    assert all(tensor is None or tensor.is_contiguous() for tensor in tensors)
    blocks = (sizes.F, sizes.chunk) if kernel is weights_kernel else (sizes.R, sizes.rows)
    kernel[triton.cdiv(*blocks), len(tensors[0])](*tensors, S=sizes, num_warps=sizes.warps, num_stages=STAGES)


@triton.jit
def _load(x, lane, i, j, M: tl.constexpr, N: tl.constexpr):
    """Return elements i, j of a lane's matrix [M, N]; 0 outside it."""
    inside = (i[:, None] < M) & (j[None, :] < N)
    return tl.load(x + lane * M * N + i[:, None] * N + j[None, :], mask=inside, other=0.0)


@triton.jit
def _store(x, value, lane, i, j, M: tl.constexpr, N: tl.constexpr):
    inside = (i[:, None] < M) & (j[None, :] < N)
    tl.store(x + lane * M * N + i[:, None] * N + j[None, :], value, mask=inside)


@triton.jit
def _dot(x, y, total, S: tl.constexpr):
    return tl.dot(x, y, total, input_precision=S.products, out_dtype=x.dtype)


@triton.jit
def _product(x, y, lane, r, f, turned: tl.constexpr, S: tl.constexpr):
    """Return a block of x [R, D] times y [D, F], or times y [F, D] ``turned``."""
    total = tl.zeros([r.shape[0], f.shape[0]], dtype=x.dtype.element_ty)
    for first in range(0, S.D, S.step):
        d = first + tl.arange(0, S.step)
        block = tl.trans(_load(y, lane, f, d, S.F, S.D)) if turned else _load(y, lane, d, f, S.D, S.F)
        total = _dot(_load(x, lane, r, d, S.R, S.D), block, total, S)
    return total


@triton.jit
def _hidden(x, up, up_bias, lane, r, f, S: tl.constexpr):
    """Return a block of the hidden layer, and the activation's slopes."""
    h = _product(x, up, lane, r, f, True, S)
    if up_bias is not None:
        h += _load(up_bias, lane, tl.arange(0, 1), f, 1, S.F)
    if S.gelu:
        below = 0.5 * (1 + tl.erf(h * 0.7071067811865476))  # the normal distribution function
        return h * below, below + h * tl.exp(-0.5 * h * h) * 0.3989422804014327
    else:
        return tl.where(h < 0, 0.0, h), tl.where(h > 0, 1.0, 0.0)


@triton.jit
def forward_kernel(x, up, up_bias, down, down_bias, weight, bias, y, normal, rate, S: tl.constexpr):
    """Write rows of y, and of what ``standardise`` returns."""
    lane, one = tl.program_id(1).to(tl.int64), tl.arange(0, 1)
    r, d = tl.program_id(0) * S.rows + tl.arange(0, S.rows), tl.arange(0, S.width)
    total = _load(x, lane, r, d, S.R, S.D)
    for first in range(0, S.F, S.chunk):
        f = first + tl.arange(0, S.chunk)
        h, _ = _hidden(x, up, up_bias, lane, r, f, S)
        total = _dot(h, tl.trans(_load(down, lane, d, f, S.D, S.F)), total, S)
    if down_bias is not None:
        total += _load(down_bias, lane, one, d, 1, S.D)
    total = tl.where(d[None, :] < S.D, total - tl.sum(total, 1, keep_dims=True) / S.D, 0.0)
    by = tl.rsqrt(tl.sum(total * total, 1, keep_dims=True) / S.D + S.eps)
    total *= by
    _store(rate, by, lane, r, one, S.R, 1)
    _store(normal, total, lane, r, d, S.R, S.D)
    total = total * _load(weight, lane, one, d, 1, S.D) + _load(bias, lane, one, d, 1, S.D)
    _store(y, total, lane, r, d, S.R, S.D)


@triton.jit
def rows_kernel(of_sum, x, up, up_bias, down, of_x, S: tl.constexpr):
    """Write rows of the gradient of x."""
    lane = tl.program_id(1).to(tl.int64)
    r, d = tl.program_id(0) * S.rows + tl.arange(0, S.rows), tl.arange(0, S.width)
    total = _load(of_sum, lane, r, d, S.R, S.D)
    for first in range(0, S.F, S.chunk):
        f = first + tl.arange(0, S.chunk)
        of_h = _product(of_sum, down, lane, r, f, False, S)
        of_h *= _hidden(x, up, up_bias, lane, r, f, S)[1]
        total = _dot(of_h, _load(up, lane, f, d, S.F, S.D), total, S)
    _store(of_x, total, lane, r, d, S.R, S.D)


@triton.jit
def weights_kernel(of_sum, x, up, up_bias, down, of_up, of_bias, of_down, S: tl.constexpr):
    """Write a chunk of the gradients of both weights and of the first bias."""
    lane = tl.program_id(1).to(tl.int64)
    f, d = tl.program_id(0) * S.chunk + tl.arange(0, S.chunk), tl.arange(0, S.width)
    ups = tl.zeros([f.shape[0], d.shape[0]], dtype=x.dtype.element_ty)
    downs, total = ups, tl.zeros([1, f.shape[0]], dtype=x.dtype.element_ty)
    for first in range(0, S.R, S.rows):
        r = first + tl.arange(0, S.rows)
        of_h = _product(of_sum, down, lane, r, f, False, S)
        h, slope = _hidden(x, up, up_bias, lane, r, f, S)
        of_h *= slope
        total += tl.sum(of_h, 0, keep_dims=True)
        ups = _dot(tl.trans(of_h), _load(x, lane, r, d, S.R, S.D), ups, S)
        downs = _dot(tl.trans(h), _load(of_sum, lane, r, d, S.R, S.D), downs, S)
    _store(of_up, ups, lane, f, d, S.F, S.D)
    _store(of_bias, total, lane, tl.arange(0, 1), f, 1, S.F)
    _store(of_down, tl.trans(downs), lane, d, f, S.D, S.F)
