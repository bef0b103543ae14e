"""The Triton kernels of ``grok.arithmetic.gpu.block``, which imports them when it launches one: they need triton.

A program owns one lane, and a block of its rows, of its hidden layer or of its logits. It adds up in a fixed order that
no other lane changes, and nothing is added atomically. Hidden layer and logits stay in registers; the gradients compute
them again.

Arguments are addresses of contiguous tensors, but x is the last Q of X rows, and where Q is X, queries, keys and values
are columns of one tensor, as their gradients are. ``r`` are rows, ``f`` indices of the hidden layer, or of the
vocabulary (F is V then), ``d`` of the model's width, ``c`` columns of one or all heads: one block each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from grok.arithmetic.gpu.block import empty_gradients, empty_head_gradients, empty_results, empty_scores
from grok.arithmetic.lanes import EPS

BLOCKS: Final = {
    "ieee": {"forward_kernel": (32, 64, 8), "rows_kernel": (64, 32, 8), "weights_kernel": (16, 32, 8)},
    "tf32": {"forward_kernel": (64, 64, 8), "rows_kernel": (64, 32, 8), "weights_kernel": (16, 64, 8)},
    "tf32x3": {"forward_kernel": (64, 32, 8), "rows_kernel": (64, 32, 8), "weights_kernel": (16, 32, 8)},
    "float64": {"forward_kernel": (32, 32, 8), "rows_kernel": (32, 32, 8), "weights_kernel": (16, 32, 8)},
}
"""Rows, indices of the hidden layer, and warps of a program, by kernel: the largest that spill no register in
float32 and TF32 at width 128. Wider models have half of both."""
OTHERS: Final = dict.fromkeys(("mix_kernel", "shares_kernel", "sources_kernel"), (16, 16, 4))
STEPS: Final = {"ieee": 16, "tf32": 32, "tf32x3": 16, "float64": 16}
STAGES: Final = 3
"""Blocks of a product's sum that are on their way from memory at a time."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the tensors and of the blocks, known when a kernel is compiled."""

    X: int
    """Rows of a lane before the block."""
    Q: int
    R: int
    """Rows after it."""
    T: int
    H: int
    D: int
    F: int
    gelu: bool
    products: str
    """Precision of products, as triton names it."""
    rows: int
    chunk: int
    """Indices of the hidden layer that are in registers at a time."""
    warps: int
    width: int
    """The smallest power of two that is at least D."""
    step: int
    """Terms of a product's sum that are in shared memory at a time."""
    blocks: int
    """Blocks of a lane's rows in the kernel that begins the sums over them."""
    q_width: int
    """Numbers from one row of queries, or of their gradients, to the next; ``kv_width``: of keys and values."""
    kv_width: int
    sums: int
    """Sums over a lane's rows."""
    eps: float = EPS


def block(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operation ``grok::block`` returns."""
    x, q, kv, qkv_bias, table, *parameters, _, heads, gelu, products = arguments
    y, mixed, *kept = empty_results(*arguments)
    sizes = partial(sizes_of, q, kv, table, parameters[4], heads, gelu, products)
    launch(mix_kernel, [q, kv, qkv_bias, table, mixed], sizes(mix_kernel))
    launch(forward_kernel, [x, table, mixed, *parameters, y, *kept], sizes(forward_kernel))
    return y, mixed, *kept


def block_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operation ``grok::block_gradients`` returns."""
    grad, q, kv, qkv, qkv_bias, table, order, lengths, normal1, *rest, shared, heads, gelu, products = arguments
    rate1, normal2, rate2, out, _, weight1, bias1, up, up_bias, down, _, weight2, _ = rest
    found: tuple[Tensor, ...] = empty_gradients(*arguments)
    of_x, of_q, of_kv, of_first, *of_mlp, sums = found
    if q.shape == of_x.shape:
        of_q, of_kv = of_q.split([q.shape[2], kv.shape[2]], 2)
    assert (of_q.stride(), of_kv.stride()) == (q.stride(), kv.stride())
    sizes = partial(sizes_of, q, kv, table, up, heads, gelu, products)
    of_second, of_mixed = torch.empty_like(grad), torch.empty_like(grad)
    parts = grad.new_empty(len(grad), sizes(rows_kernel).blocks, len(sums), grad.shape[2])
    mlp = weight1, bias1, up, up_bias, down
    read = grad, normal1, rate1, normal2, rate2, out, *mlp, weight2
    launch(rows_kernel, [*read, of_second, of_first, of_mixed, parts], sizes(rows_kernel))
    launch(weights_kernel, [of_second, normal1, *mlp, parts, *of_mlp, sums], sizes(weights_kernel))
    shares = grad.new_empty(len(grad), table[0, :, 1:].numel(), 2 * heads)
    of_query, of_residual = (torch.empty_like(grad), grad.new_empty(q.shape)) if shared else (of_q, of_first)
    launch(shares_kernel, [of_mixed, q, kv, qkv_bias, table, shares, of_query], sizes(shares_kernel))
    summed = (of_first, of_query, of_residual, of_q) if shared else (None,) * 4
    launch(
        sources_kernel, [of_mixed, q, qkv_bias, table, shares, order, lengths, *summed, of_kv], sizes(sources_kernel)
    )
    launch(input_kernel, [of_residual, of_q, of_kv, qkv, of_x], sizes(rows_kernel))
    return found


def head(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operation ``grok::head`` returns."""
    x, _, _, weight, _, answer, products = arguments
    found: tuple[Tensor, ...] = empty_scores(*arguments)
    sizes = sizes_of(x, x, answer[..., None], weight, 0, False, products, forward_kernel)
    launch(head_forward_kernel, [*arguments[:-1], *found], sizes)
    return found


def head_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what the operation ``grok::head_gradients`` returns."""
    grad, rate, normal, *rest, answer, products = arguments
    found: tuple[Tensor, ...] = empty_head_gradients(*arguments)
    of_x, *of_head, sums = found
    sizes = partial(sizes_of, normal, normal, answer[..., None], of_head[0], 0, False, products)
    parts = normal.new_empty(len(grad), sizes(forward_kernel).blocks, len(sums), normal.shape[2])
    launch(head_rows_kernel, [grad, rate, normal, *rest, answer, of_x, parts], sizes(forward_kernel))
    launch(head_weights_kernel, [grad, normal, *rest, answer, parts, *of_head, sums], sizes(weights_kernel))
    return found


def sizes_of(q: Tensor, kv: Tensor, table: Tensor, up: Tensor, heads: int, gelu: bool, products: str, by: Any) -> Sizes:
    """Return sizes for q [L, Q, D], kv [L, X, 2 D], the table [L, R, T + 1] and up [L, F, D], and a kernel's blocks."""
    kind = "float64" if q.dtype == torch.float64 else products
    x, d, r, t = kv.shape[1], q.shape[2], table.shape[1], table.shape[2] - 1
    width, blocks = max(16, triton.next_power_of_2(d)), BLOCKS[kind] | OTHERS
    if width > 128:  # tl.dot takes no less than 16
        blocks = {name: (max(16, rows // 2), max(16, f // 2), warps) for name, (rows, f, warps) in blocks.items()}
    shape = x, q.shape[1], r, t, heads, d, up.shape[1], gelu, products
    summing, sums = ("rows_kernel", 7) if t else ("forward_kernel", 2)  # the head attends to no position
    how = width, STEPS[kind], triton.cdiv(r, blocks[summing][0]), q.stride(1), kv.stride(1), sums
    return Sizes(*shape, *blocks[by.__name__], *how)


def launch(kernel: Any, tensors: Sequence[Tensor], s: Sizes) -> None:
    """Queue a kernel; the first of ``tensors`` has one row for each lane."""
    assert all(tensor is None or tensor.stride(-1) == 1 for tensor in tensors)
    of_weights = dict.fromkeys((weights_kernel, head_weights_kernel), (s.F, s.chunk))
    blocks = {**of_weights, sources_kernel: (s.X, 1), input_kernel: (s.X, s.rows)}
    grid = triton.cdiv(*blocks.get(kernel, (s.R, s.rows))), len(tensors[0])
    heads = s.H if kernel in (mix_kernel, shares_kernel) else 1
    kernel[*grid, heads](*tensors, S=s, num_warps=s.warps, num_stages=STAGES)


@triton.jit
def _load(x, lane, i, j, M: tl.constexpr, N: tl.constexpr, outside=0.0):
    """Return elements i, j of a lane's matrix [M, N]; ``outside`` where there are none."""
    inside = (i[:, None] < M) & (j[None, :] < N)
    return tl.load(x + lane * M * N + i[:, None] * N + j[None, :], mask=inside, other=outside)


@triton.jit
def _place(size: tl.constexpr, S: tl.constexpr):
    """Return a program's lane, its block of ``size`` rows or indices, and the columns of a row."""
    return tl.program_id(1).to(tl.int64), tl.program_id(0) * size + tl.arange(0, size), tl.arange(0, S.width)


@triton.jit
def _plus(total, bias, lane, d, N: tl.constexpr):
    """Return a block plus part of a lane's bias [N], if there is one."""
    if bias is not None:
        total += _load(bias, lane, tl.arange(0, 1), d, 1, N)
    return total


@triton.jit
def _store(x, value, lane, i, j, M: tl.constexpr, N: tl.constexpr):
    inside = (i[:, None] < M) & (j[None, :] < N)
    tl.store(x + lane * M * N + i[:, None] * N + j[None, :], value, mask=inside)


@triton.jit
def _dot(x, y, total, S: tl.constexpr):
    return tl.dot(x, y, total, input_precision=S.products, out_dtype=x.dtype)


@triton.jit
def _scaled(x, weight, bias, lane, r, d, R: tl.constexpr, D: tl.constexpr):
    """Return a block of rows [R, D]; of a norm's result, if it has a weight, from what it is before weight and bias."""
    rows = _load(x, lane, r, d, R, D)
    if weight is not None:
        rows *= _load(weight, lane, tl.arange(0, 1), d, 1, D)
    return _plus(rows, bias, lane, d, D)


@triton.jit
def _product(
    x, weight, bias, y, lane, r, f, R: tl.constexpr, D: tl.constexpr, N: tl.constexpr, turned, S: tl.constexpr
):
    """Return a block of x [R, D] times y [D, N], or times y [N, D] ``turned``; x is normed if it has a weight."""
    total = tl.zeros([r.shape[0], f.shape[0]], dtype=x.dtype.element_ty)
    for first in range(0, D, S.step):
        d = first + tl.arange(0, S.step)
        block = tl.trans(_load(y, lane, f, d, N, D)) if turned else _load(y, lane, d, f, D, N)
        total = _dot(_scaled(x, weight, bias, lane, r, d, R, D), block, total, S)
    return total


@triton.jit
def _linear(normal, weight, bias, up, up_bias, lane, r, f, S: tl.constexpr):
    """Return a block of a product of rows after a norm, with its bias."""
    return _plus(_product(normal, weight, bias, up, lane, r, f, S.R, S.D, S.F, True, S), up_bias, lane, f, S.F)


@triton.jit
def _hidden(normal, weight, bias, up, up_bias, lane, r, f, S: tl.constexpr):
    """Return a block of the hidden layer, and the activation's slopes."""
    h = _linear(normal, weight, bias, up, up_bias, lane, r, f, S)
    if S.gelu:
        below = 0.5 * (1 + tl.erf(h * 0.7071067811865476))  # the normal distribution function
        return h * below, below + h * tl.exp(-0.5 * h * h) * 0.3989422804014327
    else:
        return tl.where(h < 0, 0.0, h), tl.where(h > 0, 1.0, 0.0)


@triton.jit
def _norm(total, weight, bias, normal, rate, lane, r, d, S: tl.constexpr):
    """Return the norm of rows, and write what ``standardise`` returns."""
    one = tl.arange(0, 1)
    total = tl.where(d[None, :] < S.D, total - tl.sum(total, 1, keep_dims=True) / S.D, 0.0)
    by = tl.rsqrt(tl.sum(total * total, 1, keep_dims=True) / S.D + S.eps)
    total *= by
    _store(rate, by, lane, r, one, S.R, 1)
    _store(normal, total, lane, r, d, S.R, S.D)
    return total * _load(weight, lane, one, d, 1, S.D) + _load(bias, lane, one, d, 1, S.D)


@triton.jit
def _norm_gradient(grad, weight, normal, rate, parts, place: tl.constexpr, lane, r, d, S: tl.constexpr):
    """Return the gradient of a norm's input, and write those of its weight and bias for these rows."""
    one = tl.arange(0, 1)
    x = _load(normal, lane, r, d, S.R, S.D)
    _sum(parts, grad * x, place, lane, d, S)
    _sum(parts, grad, place + 1, lane, d, S)
    grad *= _load(weight, lane, one, d, 1, S.D)
    along = tl.sum(grad * x, 1, keep_dims=True) / S.D
    return _load(rate, lane, r, one, S.R, 1) * (grad - tl.sum(grad, 1, keep_dims=True) / S.D - x * along)


@triton.jit
def _sum(parts, rows, place: tl.constexpr, lane, d, S: tl.constexpr):
    """Write the sum of a program's rows, which are 0 outside the lane's."""
    part = lane * S.blocks + tl.program_id(0)
    _store(parts, tl.sum(rows, 0, keep_dims=True), part, place + tl.arange(0, 1), d, S.sums, S.D)


@triton.jit
def _whole_sums(parts, sums, lane, d, S: tl.constexpr):
    """Write the sums over all of a lane's rows; of its programs, the first one does it."""
    if tl.program_id(0) == 0:
        i = tl.arange(0, 8)
        whole = tl.zeros([8, d.shape[0]], dtype=parts.dtype.element_ty)
        for block in range(S.blocks):
            whole += _load(parts, lane * S.blocks + block, i, d, S.sums, S.D)
        at = (i[:, None] * tl.num_programs(1) + lane) * S.D + d[None, :]
        tl.store(sums + at, whole, mask=(i[:, None] < S.sums) & (d[None, :] < S.D))


@triton.jit
def _own(table, lane, r, S: tl.constexpr):
    """Return the own rows before the block of rows after it; X where there is no row."""
    return tl.load(table + (lane * S.R + r) * (S.T + 1) + S.T, mask=r < S.R, other=S.X)


@triton.jit
def _query(q, bias, table, lane, r, c, S: tl.constexpr):
    """Return columns of the scaled queries of rows."""
    query = _load(q, lane, _own(table, lane, r, S) - (S.X - S.Q), c, S.Q, S.q_width)
    return _plus(query, bias, lane, c, 3 * S.D) * (S.D // S.H) ** -0.5


@triton.jit
def _attention(q, kv, bias, table, S: tl.constexpr):
    """Return lane, rows, columns of one head, the scaled queries [.., c], keys, values [.., j, c], weights and places.

    Columns are outside every matrix where a head has fewer.
    """
    k, j = tl.arange(0, triton.next_power_of_2(S.D // S.H)), tl.arange(0, triton.next_power_of_2(S.T))[None, :]
    lane = tl.program_id(1).to(tl.int64)
    r = tl.program_id(0) * S.rows + tl.arange(0, S.rows)
    c = tl.where(k < S.D // S.H, tl.program_id(2) * (S.D // S.H) + k, 3 * S.D)
    query = _query(q, bias, table, lane, r, c, S)
    inside = (r[:, None] < S.R) & (j < S.T)
    i = tl.load(table + (lane * S.R + r[:, None]) * (S.T + 1) + j, mask=inside, other=S.X)[:, :, None]
    at = kv + (lane * S.X + i) * S.kv_width + c[None, None, :]
    seen = (i < S.X) & (c[None, None, :] < S.D)
    key, value = tl.load(at, mask=seen, other=0.0), tl.load(at + S.D, mask=seen, other=0.0)
    score = tl.sum(query[:, None, :] * key, 2, keep_dims=True)
    score = tl.where((i < S.X) | (r[:, None, None] >= S.R), score, float("-inf"))
    share = tl.exp(score - tl.max(score, 1, keep_dims=True))
    return lane, r, c, key, value, query, share / tl.sum(share, 1, keep_dims=True)


@triton.jit
def mix_kernel(q, kv, bias, table, mixed, S: tl.constexpr):
    """Write one head's columns of rows of attention's mixed values."""
    lane, r, c, _, value, _, share = _attention(q, kv, bias, table, S)
    total = _plus(tl.sum(share * value, 1), bias, lane, 2 * S.D + c, 3 * S.D)
    _store(mixed, total, lane, r, c, S.R, S.D)


@triton.jit
def shares_kernel(of_mixed, q, kv, bias, table, shares, of_query, S: tl.constexpr):
    """Write one head's weights, their scores' gradients, and columns of the gradients of the queries, for rows."""
    lane, r, c, key, value, _, share = _attention(q, kv, bias, table, S)
    along = tl.sum(_load(of_mixed, lane, r, c, S.R, S.D)[:, None, :] * value, 2, keep_dims=True)
    slope = share * (along - tl.sum(share * along, 1, keep_dims=True))
    j = tl.arange(0, triton.next_power_of_2(S.T))[None, :, None]
    at = shares + ((lane * S.R + r[:, None, None]) * S.T + j) * (2 * S.H) + tl.program_id(2)
    tl.store(at, share, mask=(r[:, None, None] < S.R) & (j < S.T))
    tl.store(at + S.H, slope, mask=(r[:, None, None] < S.R) & (j < S.T))
    _store(of_query, tl.sum(slope * key, 1) * (S.D // S.H) ** -0.5, lane, r, c, S.R, S.D)


@triton.jit
def sources_kernel(
    grad, q, bias, table, shares, order, lengths, of_first, of_query, of_x, of_q, of_kv, S: tl.constexpr
):
    """Write the gradients of a row before the block: sums over the rows after it that see the row, in their order."""
    row, lane, d = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, S.width)
    c, i = tl.where(d < S.D, d, 3 * S.D), tl.arange(0, triton.next_power_of_2(S.X))
    begin = tl.sum(tl.load(lengths + lane * S.X + i, mask=i < row, other=0))
    end = begin + tl.load(lengths + lane * S.X + row)
    of_key = tl.zeros([1, d.shape[0]], dtype=q.dtype.element_ty)
    of_value, of_asked, of_residual = of_key, of_key, of_key
    for first in range(begin, end, S.rows):
        at = first + tl.arange(0, S.rows)
        place = tl.load(order + lane * S.R * S.T + at, mask=at < end, other=S.R * S.T)
        share = _load(shares, lane, place, d // (S.D // S.H), S.R * S.T, 2 * S.H)
        slope = _load(shares, lane, place, d // (S.D // S.H) + S.H, S.R * S.T, 2 * S.H)
        r = place // S.T  # R where there is none
        of_value += tl.sum(share * _load(grad, lane, r, c, S.R, S.D), 0, keep_dims=True)
        of_key += tl.sum(slope * _query(q, bias, table, lane, r, c, S), 0, keep_dims=True)
        if of_query is not None:
            r = tl.where(_own(table, lane, r, S) == row, r, S.R)  # those whose own row it is
            of_asked += tl.sum(_load(of_query, lane, r, c, S.R, S.D), 0, keep_dims=True)
            of_residual += tl.sum(_load(of_first, lane, r, c, S.R, S.D), 0, keep_dims=True)
    row += tl.arange(0, 1)
    _store(of_kv, of_key, lane, row, c, S.X, S.kv_width)
    _store(of_kv, of_value, lane, row, S.D + c, S.X, S.kv_width)
    if of_query is not None:
        row = tl.where(row < S.X - S.Q, S.Q, row - (S.X - S.Q))  # rows without queries are outside
        _store(of_q, of_asked, lane, row, c, S.Q, S.q_width)
        _store(of_x, of_residual, lane, row, c, S.Q, S.D)


@triton.jit
def input_kernel(of_residual, of_q, of_kv, qkv, of_x, S: tl.constexpr):
    """Write rows of the gradient of x: what the residual connection and the products bring."""
    lane, r, d = _place(S.rows, S)
    asked = tl.where(r < S.X - S.Q, S.Q, r - (S.X - S.Q))  # rows without queries are outside
    total = _load(of_residual, lane, asked, d, S.Q, S.D)
    if S.Q == S.X:
        total += _product(of_q, None, None, qkv, lane, r, d, S.X, 3 * S.D, S.D, False, S)
    else:
        # parts of one weight
        total += _product(of_q, None, None, qkv + lane * (2 * S.D * S.D), lane, asked, d, S.Q, S.D, S.D, False, S)
        total += _product(of_kv, None, None, qkv + (lane + 1) * (S.D * S.D), lane, r, d, S.X, 2 * S.D, S.D, False, S)
    _store(of_x, total, lane, r, d, S.X, S.D)


# A program reads rows again that its other threads have written, for a product's blocks: after a barrier.


@triton.jit
def forward_kernel(
    x, table, mixed, out, out_bias, weight1, bias1, up, up_bias, down, down_bias, weight2, bias2,
    y, normal1, rate1, normal2, rate2, S: tl.constexpr,
):  # fmt: skip
    """Write rows of y, and of what ``standardise`` returns for both norms."""
    lane, r, d = _place(S.rows, S)
    total = _plus(_product(mixed, None, None, out, lane, r, d, S.R, S.D, S.D, True, S), out_bias, lane, d, S.D)
    skipped: tl.constexpr = S.X - S.Q
    total += _load(x + lane * skipped * S.D, lane, _own(table, lane, r, S) - skipped, d, S.Q, S.D)
    total = _norm(total, weight1, bias1, normal1, rate1, lane, r, d, S)
    tl.debug_barrier()
    for first in range(0, S.F, S.chunk):
        f = first + tl.arange(0, S.chunk)
        h, _ = _hidden(normal1, weight1, bias1, up, up_bias, lane, r, f, S)
        total = _dot(h, tl.trans(_load(down, lane, d, f, S.D, S.F)), total, S)
    total = _plus(total, down_bias, lane, d, S.D)
    _store(y, _norm(total, weight2, bias2, normal2, rate2, lane, r, d, S), lane, r, d, S.R, S.D)


@triton.jit
def rows_kernel(
    grad, normal1, rate1, normal2, rate2, out, weight1, bias1, up, up_bias, down, weight2,
    of_second, of_first, of_mixed, parts, S: tl.constexpr,
):  # fmt: skip
    """Write rows of the gradients of both norms' inputs and of the mixed values, and parts of the sums."""
    lane, r, d = _place(S.rows, S)
    total = _norm_gradient(_load(grad, lane, r, d, S.R, S.D), weight2, normal2, rate2, parts, 0, lane, r, d, S)
    _store(of_second, total, lane, r, d, S.R, S.D)
    _sum(parts, total, 2, lane, d, S)
    tl.debug_barrier()
    for first in range(0, S.F, S.chunk):
        f = first + tl.arange(0, S.chunk)
        of_h = _product(of_second, None, None, down, lane, r, f, S.R, S.D, S.F, False, S)
        of_h *= _hidden(normal1, weight1, bias1, up, up_bias, lane, r, f, S)[1]
        total = _dot(of_h, _load(up, lane, f, d, S.F, S.D), total, S)
    total = _norm_gradient(total, weight1, normal1, rate1, parts, 3, lane, r, d, S)
    _store(of_first, total, lane, r, d, S.R, S.D)
    _sum(parts, total, 5, lane, d, S)
    tl.debug_barrier()
    total = _product(of_first, None, None, out, lane, r, d, S.R, S.D, S.D, False, S)
    _store(of_mixed, total, lane, r, d, S.R, S.D)
    _sum(parts, total, 6, lane, d, S)


@triton.jit
def weights_kernel(grad, normal, weight, bias, up, up_bias, down, part, of_up, of_bias, of_down, sums, S: tl.constexpr):
    """Write a chunk of the gradients of both weights and of the first bias; the first program, the sums of parts."""
    lane, f, d = _place(S.chunk, S)
    ups = tl.zeros([f.shape[0], d.shape[0]], dtype=up.dtype.element_ty)
    downs, total = ups, tl.zeros([1, f.shape[0]], dtype=up.dtype.element_ty)
    for first in range(0, S.R, S.rows):
        r = first + tl.arange(0, S.rows)
        of_h = _product(grad, None, None, down, lane, r, f, S.R, S.D, S.F, False, S)
        h, slope = _hidden(normal, weight, bias, up, up_bias, lane, r, f, S)
        of_h *= slope
        total += tl.sum(of_h, 0, keep_dims=True)
        ups = _dot(tl.trans(of_h), _scaled(normal, weight, bias, lane, r, d, S.R, S.D), ups, S)
        downs = _dot(tl.trans(h), _load(grad, lane, r, d, S.R, S.D), downs, S)
    _store(of_up, ups, lane, f, d, S.F, S.D)
    _store(of_bias, total, lane, tl.arange(0, 1), f, 1, S.F)
    _store(of_down, tl.trans(downs), lane, d, f, S.D, S.F)
    _whole_sums(part, sums, lane, d, S)


@triton.jit
def head_forward_kernel(x, weight, bias, head, head_bias, answer, losses, hits, logs, rate, normal, S: tl.constexpr):
    """Write rows of everything that the operation returns; the sums of exponentials go over one chunk after another."""
    lane, r, d = _place(S.rows, S)
    one = tl.arange(0, 1)
    if weight is None:
        _store(normal, _load(x, lane, r, d, S.R, S.D), lane, r, d, S.R, S.D)
    else:
        _norm(_load(x, lane, r, d, S.R, S.D), weight, bias, normal, rate, lane, r, d, S)
    tl.debug_barrier()
    right = _load(answer, lane, r, one, S.R, 1).to(tl.int32)
    whole = tl.zeros([r.shape[0], 1], dtype=x.dtype.element_ty)
    own, top, before = whole, whole + float("-inf"), whole + float("-inf")
    for first in range(0, S.F, S.chunk):
        f = first + tl.arange(0, S.chunk)
        logit = tl.where(f[None, :] < S.F, _linear(normal, weight, bias, head, head_bias, lane, r, f, S), float("-inf"))
        own += tl.sum(tl.where(f[None, :] == right, logit, 0.0), 1, keep_dims=True)
        before = tl.maximum(before, tl.max(tl.where(f[None, :] < right, logit, float("-inf")), 1, keep_dims=True))
        peak = tl.maximum(top, tl.max(logit, 1, keep_dims=True))
        whole = whole * tl.exp(top - peak) + tl.sum(tl.exp(logit - peak), 1, keep_dims=True)
        top = peak
    whole = tl.log(whole) + top
    _store(losses, whole - own, lane, r, one, S.R, 1)
    _store(hits, tl.where((own == top) & (own > before), 1.0, 0.0), lane, r, one, S.R, 1)  # the first of equals
    _store(logs, whole, lane, r, one, S.R, 1)


@triton.jit
def _slopes(grad, normal, logs, weight, bias, head, head_bias, answer, lane, r, f, S: tl.constexpr):
    """Return a block of the gradients of the logits, 0 outside."""
    one = tl.arange(0, 1)
    logit = tl.where(f[None, :] < S.F, _linear(normal, weight, bias, head, head_bias, lane, r, f, S), float("-inf"))
    share = tl.exp(logit - _load(logs, lane, r, one, S.R, 1, float("inf")))
    right = _load(answer, lane, r, one, S.R, 1).to(tl.int32)
    return tl.where(f[None, :] == right, share - 1, share) * _load(grad, lane, r, one, S.R, 1)


@triton.jit
def head_rows_kernel(grad, rate, normal, logs, weight, bias, head, head_bias, answer, of_x, parts, S: tl.constexpr):
    """Write rows of the gradient of x, and parts of the norm's sums."""
    lane, r, d = _place(S.rows, S)
    total = tl.zeros([r.shape[0], d.shape[0]], dtype=head.dtype.element_ty)
    for first in range(0, S.F, S.chunk):
        f = first + tl.arange(0, S.chunk)
        slope = _slopes(grad, normal, logs, weight, bias, head, head_bias, answer, lane, r, f, S)
        total = _dot(slope, _load(head, lane, f, d, S.F, S.D), total, S)
    if weight is not None:
        total = _norm_gradient(total, weight, normal, rate, parts, 0, lane, r, d, S)
    _store(of_x, total, lane, r, d, S.R, S.D)


@triton.jit
def head_weights_kernel(
    grad, normal, logs, weight, bias, head, head_bias, answer, parts, of_head, of_bias, sums, S: tl.constexpr
):
    """Write a chunk of the gradients of the head and its bias; the first program, the sums of parts."""
    lane, f, d = _place(S.chunk, S)
    heads = tl.zeros([f.shape[0], d.shape[0]], dtype=head.dtype.element_ty)
    total = tl.zeros([1, f.shape[0]], dtype=head.dtype.element_ty)
    for first in range(0, S.R, S.rows):
        r = first + tl.arange(0, S.rows)
        slope = _slopes(grad, normal, logs, weight, bias, head, head_bias, answer, lane, r, f, S)
        total += tl.sum(slope, 0, keep_dims=True)
        heads = _dot(tl.trans(slope), _scaled(normal, weight, bias, lane, r, d, S.R, S.D), heads, S)
    _store(of_head, heads, lane, f, d, S.F, S.D)
    _store(of_bias, total, lane, tl.arange(0, 1), f, 1, S.F)
    _whole_sums(parts, sums, lane, d, S)
