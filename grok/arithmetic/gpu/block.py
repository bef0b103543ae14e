"""A block of all lanes, and the losses after the last one, as one operation each: ``numerics.kernels=fused``.

On a CUDA device the operations launch the kernels of ``grok.arithmetic.gpu.block_kernels``; on a CPU they are the same
mathematics in torch. A compiler sees opaque calls.

L lanes, X rows before the block, Q of them with queries: the last ones, R rows after it, T positions, H heads, D width,
F width of the hidden layer, V vocabulary.

The bias of the keys is not read, and its gradient is 0: it adds the same number to all scores of a softmax.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.lanes import standardise, standardise_gradient


def block(x: Tensor, *rest: Any) -> Tensor:
    """Return rows [L, R, D] after a block with norms behind its residual connections; differentiable.

    Args:
        x: rows [L, X, D].
        rest: weight [L, 3 D, D] and bias [L, 3 D] of ``qkv``; the number X - Q; for every row after the block, the
            rows of ``x`` that its attention sees at each position, X for none, and its own one, [L, R, T + 1]; what
            ``group_rows`` returns for the former; weight [L, D, D] and bias [L, D] of ``out``; weight and bias [L, D]
            of ``norm1``; weight [L, F, D] and bias [L, F] of ``up``; weight [L, D, F] and bias [L, D] of ``down``;
            weight and bias [L, D] of ``norm2``; whether several rows after the block may have one own row; H; whether
            the activation is GELU, else ReLU; the precision of the kernels' products, as triton names it (``ieee``,
            ``tf32``, ``tf32x3``). Biases of products: all or none.
    """
    return _Block.apply(x.contiguous(), *rest)  # type: ignore[no-any-return, no-untyped-call]


class _Block(torch.autograd.Function):
    """Keeps queries, keys, values and what the norms' gradients need; the hidden layer is computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, qkv: Tensor, qkv_bias: Tensor | None, skipped: int, *rest: Any) -> Tensor:
        table, order, lengths, *parameters = rest[:13]
        ctx.skipped, ctx.how, widths = skipped, rest[13:], [x.shape[2], 2 * x.shape[2]]
        if skipped:
            q, kv = (torch.bmm(rows, w.mT) for rows, w in zip((x[:, skipped:], x), qkv.split(widths, 1), strict=True))
        else:
            q, kv = torch.bmm(x, qkv.mT).split(widths, 2)
        y, mixed, *kept = torch.ops.grok.block.default(x[:, skipped:], q, kv, qkv_bias, table, *parameters, *ctx.how)
        ctx.save_for_backward(x, mixed, q, kv, qkv, qkv_bias, table, order, lengths, *kept, *parameters)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, mixed, *again = ctx.saved_tensors
        found = torch.ops.grok.block_gradients.default(grads[0].contiguous(), *again, *ctx.how)
        of_x, of_q, of_kv, of_sum, of_up, of_up_bias, of_down, sums = found
        of_weight2, of_bias2, of_down_bias, of_weight1, of_bias1, of_out_bias, of_v_bias = sums
        of_qkv = torch.bmm(of_q.mT, x[:, ctx.skipped :])
        if ctx.skipped:
            of_qkv = torch.cat([of_qkv, torch.bmm(of_kv.mT, x)], 1)
        of_qkv_bias = torch.cat([of_q[..., : x.shape[2]].sum(1), torch.zeros_like(of_v_bias), of_v_bias], 1)
        of_first = torch.bmm(of_sum.mT, mixed), of_out_bias, of_weight1, of_bias1
        of_last = of_up, of_up_bias, of_down, of_down_bias, of_weight2, of_bias2
        every = (of_x, of_qkv, of_qkv_bias, *[None] * 4, *of_first, *of_last, *[None] * 4)
        return tuple(grad if needed else None for grad, needed in zip(every, ctx.needs_input_grad, strict=True))


def head(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return cross-entropies [L, R] of rows ``x`` [L, R, D], differentiable; and 1 where the answer is right, else 0.

    Args:
        x: rows after the last block.
        rest: weight and bias [L, D] of the norm before the head, or None; weight [L, V, D] of the head, and its bias
            [L, V] or None; answers [L, R]; the precision of the kernels' products.
    """
    return _Head.apply(x.contiguous(), *rest)  # type: ignore[no-any-return, no-untyped-call]


class _Head(torch.autograd.Function):
    """Keeps what the norm's gradients need, and the logarithms of softmax's sums; the logits are computed again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        losses, hits, logs, *kept = torch.ops.grok.head.default(*arguments)
        ctx.save_for_backward(*kept, logs, *arguments[1:-1])
        ctx.products = arguments[-1]
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        found = torch.ops.grok.head_gradients.default(grads[0].contiguous(), *ctx.saved_tensors, ctx.products)
        every = found[0], *found[3], *found[1:3], None, None
        return tuple(grad if needed else None for grad, needed in zip(every, ctx.needs_input_grad, strict=True))


# The operations on a CPU.


def _scaled(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return rows after a norm, or without one, from what they are before its weight and bias."""
    return normal if weight is None or bias is None else normal * weight[:, None, :] + bias[:, None, :]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(x, weight.mT) + (0 if bias is None else bias[:, None, :])


def _attention(q: Tensor, kv: Tensor, bias: Tensor | None, table: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Return queries [L, R, 1, H, K], keys and values [L, R, T, H, K], and weights [L, R, T, H, 1]."""
    lanes, seen, d = torch.arange(len(q))[:, None, None], table[..., :-1].long(), q.shape[2]
    own = table[..., -1:].long() - (kv.shape[1] - q.shape[1])
    query = (q if bias is None else q + bias[:, None, :d])[lanes, own].unflatten(-1, (heads, -1))
    keys, values = (rows[lanes, seen.clamp(max=kv.shape[1] - 1)].unflatten(-1, (heads, -1)) for rows in kv.chunk(2, -1))
    scores = (query * keys).sum(-1, keepdim=True) / math.sqrt(d // heads)
    return query, keys, values, scores.masked_fill(seen[..., None, None] == kv.shape[1], -torch.inf).softmax(2)


def _block(*arguments: Any) -> tuple[Tensor, ...]:
    """Return y and the mixed values [L, R, D], and what ``standardise`` returns for both norms."""
    x, q, kv, qkv_bias, table, out, out_bias, weight1, bias1, *rest, _, heads, gelu, _ = arguments
    up, up_bias, down, down_bias, weight2, bias2 = rest
    _, _, values, weights = _attention(q, kv, qkv_bias, table, heads)
    mixed = (weights * values).sum(2).flatten(-2)
    mixed = mixed if qkv_bias is None else mixed + qkv_bias[:, None, 2 * q.shape[2] :]
    residual = x.gather(1, (table[..., -1:].long() - (kv.shape[1] - x.shape[1])).expand_as(mixed))
    normal1, rate1 = standardise(residual + _linear(mixed, out, out_bias))
    z = _scaled(normal1, weight1, bias1)
    h = _linear(z, up, up_bias)
    normal2, rate2 = standardise(z + _linear(F.gelu(h) if gelu else F.relu(h), down, down_bias))
    return _scaled(normal2, weight2, bias2), mixed, normal1, rate1, normal2, rate2


def _block_gradients(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Return the gradients of x, of its products, of the first norm's input, ``up``, its bias and ``down``, and sums.

    Those of the products are two tensors, [L, Q, D] and [L, X, 2 D]; where Q is X, [L, X, 3 D] and an empty one.
    The sums [7, L, D] over rows are the gradients of weight and bias of the second norm, of the bias of ``down``, of
    weight and bias of the first norm, of the bias of ``out``, and of that of the values.
    """
    q, kv, qkv, qkv_bias, table, _, _, normal1, rate1, normal2, rate2, *parameters, _, heads, gelu, _ = arguments
    out, _, weight1, bias1, up, up_bias, down, _, weight2, _ = parameters
    z = _scaled(normal1, weight1, bias1)
    h = _linear(z, up, up_bias)
    of_second = standardise_gradient(grad * weight2[:, None, :], normal2, rate2)
    of_active = torch.bmm(of_second, down)
    of_h = torch.ops.aten.gelu_backward(of_active, h) if gelu else of_active * (h > 0)
    of_down = torch.bmm(of_second.mT, F.gelu(h) if gelu else F.relu(h))
    of_z = of_second + torch.bmm(of_h, up)
    of_first = standardise_gradient(of_z * weight1[:, None, :], normal1, rate1)
    of_mixed = torch.bmm(of_first, out)
    summed = grad * normal2, grad, of_second, of_z * normal1, of_z, of_first, of_mixed
    sums = torch.stack([rows.sum(1) for rows in summed])

    query, keys, values, weights = _attention(q, kv, qkv_bias, table, heads)
    by_head = of_mixed[:, :, None, :].unflatten(-1, (heads, -1))
    of_weights = (by_head * values).sum(-1, keepdim=True)
    slopes = weights * (of_weights - (weights * of_weights).sum(2, keepdim=True)) / math.sqrt(values.shape[-1])
    of_memory = torch.cat([(slopes * query).flatten(-2), (weights * by_head).flatten(-2)], -1)
    of_query = (slopes * keys).sum(2).flatten(-2)
    own, skipped = table[..., -1], kv.shape[1] - q.shape[1]
    of_kv = _sums(of_memory.flatten(1, 2), table[..., :-1].flatten(1).clamp(max=kv.shape[1] - 1), kv.shape[1])
    of_q, of_x = _sums(of_query, own - skipped, q.shape[1]), _sums(of_first, own, kv.shape[1])
    of_x += torch.bmm(of_kv, qkv[:, q.shape[2] :])
    of_x[:, skipped:] += torch.bmm(of_q, qkv[:, : q.shape[2]])
    products = (of_q, of_kv) if skipped else (torch.cat([of_q, of_kv], -1), q.new_empty(0))
    return of_x, *products, of_first, torch.bmm(of_h.mT, z), of_h.sum(1), of_down, sums


def _sums(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Return [L, ``count``, D]: the sums of ``rows`` with equal ``index``, in their order."""
    found = rows.new_zeros(len(rows), count, rows.shape[2])
    return found.scatter_add_(1, index[..., None].long().expand_as(rows), rows)


def _head(*arguments: Any) -> tuple[Tensor, ...]:
    """Return losses, hits and the logarithms of sums [L, R]; the rate and the rows of ``standardise``, or x."""
    x, weight, bias, head, head_bias, answer, _ = arguments
    normal, rate = (x.clone(), x.new_empty(*x.shape[:2], 1)) if weight is None else standardise(x)
    logits = _linear(_scaled(normal, weight, bias), head, head_bias)
    logs, own = logits.logsumexp(-1), logits.gather(2, answer[..., None])[..., 0]
    return logs - own, (logits.argmax(-1) == answer).to(x.dtype), logs, rate, normal


def _head_gradients(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Return the gradients of x, of the head and its bias, and of the norm's weight and bias, [2, L, D]."""
    rate, normal, logs, weight, bias, head, head_bias, answer, _ = arguments
    z = _scaled(normal, weight, bias)
    shares = (_linear(z, head, head_bias) - logs[..., None]).exp()
    slopes = (shares - F.one_hot(answer, head.shape[1])) * grad[..., None]
    of_z = torch.bmm(slopes, head)
    of_x = of_z if weight is None else standardise_gradient(of_z * weight[:, None, :], normal, rate)
    return of_x, torch.bmm(slopes.mT, z), slopes.sum(1), torch.stack([(of_z * normal).sum(1), of_z.sum(1)])


# Their registration.

_KERNELS: Final = "grok.arithmetic.gpu.block_kernels"
"""Imported by the first launch: it needs triton."""
_REST: Final = (
    "Tensor out, Tensor? out_bias, Tensor weight1, Tensor bias1, Tensor up, Tensor? up_bias, Tensor down, "
    "Tensor? down_bias, Tensor weight2, Tensor bias2, bool shared, int heads, bool gelu, str products"
)
_FOUR: Final = "Tensor, Tensor, Tensor, Tensor"
_TENSORS: Final = f"{_FOUR}, Tensor, Tensor"
_LIBRARY: Final = torch.library.Library("grok", "FRAGMENT")
_LIBRARY.define(f"block(Tensor x, Tensor q, Tensor kv, Tensor? qkv_bias, Tensor table, {_REST}) -> ({_TENSORS})")
_LIBRARY.define(
    "block_gradients(Tensor grad, Tensor q, Tensor kv, Tensor qkv, Tensor? qkv_bias, Tensor table, Tensor order, "
    f"Tensor lengths, Tensor normal1, Tensor rate1, Tensor normal2, Tensor rate2, {_REST}) "
    f"-> ({_TENSORS}, Tensor, Tensor)"
)
_HEAD: Final = "Tensor? weight, Tensor? bias, Tensor head, Tensor? head_bias, Tensor answer, str products"
_LIBRARY.define(f"head(Tensor x, {_HEAD}) -> ({_FOUR}, Tensor)")
_LIBRARY.define(f"head_gradients(Tensor grad, Tensor rate, Tensor normal, Tensor logs, {_HEAD}) -> ({_FOUR})")
OPERATIONS: Final = {f.__name__[1:]: f for f in (_block, _block_gradients, _head, _head_gradients)}
for _name, _on_cpu in OPERATIONS.items():
    _LIBRARY.impl(_name, _on_cpu, "CPU")
    _LIBRARY.impl(_name, lambda *arguments, name=_name: getattr(import_module(_KERNELS), name)(*arguments), "CUDA")


@torch.library.register_fake("grok::block", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def empty_results(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return what ``grok::block`` returns, without values."""
    return tuple(x.new_empty(len(x), rest[3].shape[1], n) for n in (*[x.shape[2]] * 3, 1, x.shape[2], 1))


@torch.library.register_fake("grok::block_gradients", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def empty_gradients(grad: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return what ``grok::block_gradients`` returns, without values."""
    q, kv, up, down = rest[0], rest[1], rest[15], rest[17]
    sizes = (q.shape, kv.shape) if q.shape[1] < kv.shape[1] else ((*kv.shape[:2], 3 * q.shape[2]), (0,))
    of_rows = [q.new_empty(size) for size in ((*kv.shape[:2], q.shape[2]), *sizes)]
    of_parts = torch.empty_like(grad), torch.empty_like(up), up.new_empty(up.shape[:2]), torch.empty_like(down)
    return *of_rows, *of_parts, q.new_empty(7, len(q), q.shape[2])


@torch.library.register_fake("grok::head", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def empty_scores(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    """Return what ``grok::head`` returns, without values."""
    return *(x.new_empty(x.shape[:2]) for _ in range(3)), x.new_empty(*x.shape[:2], 1), torch.empty_like(x)


@torch.library.register_fake("grok::head_gradients", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def empty_head_gradients(grad: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return what ``grok::head_gradients`` returns, without values."""
    normal, head = rest[1], rest[5]
    of_sums = head.new_empty(head.shape[:2]), head.new_empty(2, len(head), head.shape[2])
    return torch.empty_like(normal), torch.empty_like(head), *of_sums
