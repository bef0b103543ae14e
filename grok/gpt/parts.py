"""The parts of a GPT: dropout masks, causal attention with positions, the output head with its loss.

On one GPU the fused kernel drops attention weights itself, because a mask of them would take more memory than the rest.
It can draw from the device's global generator only. This one is seeded from (step, micro-batch) before the kernel runs,
and has its former state afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.config.gpt import ModelConfig
from grok.numerics import linear, onednn_weight_gradient
from grok.streams import Stream

Mask = Tensor
"""A factor for each element: 0 where dropped, 1 / (1 - p) where kept."""
Masks = dict[str, Mask]
"""Masks by place: ``embedding``, ``blocks.0.attention``, ``blocks.0.residual1``, ``blocks.0.residual2``, ..."""


def drop(x: Tensor, mask: Mask | None) -> Tensor:
    """Return ``x`` times its mask, or ``x`` itself without one."""
    return x if mask is None else x * mask.to(x.dtype)


def places(config: ModelConfig, b: int, t: int) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Return (probability, shape) of every mask of ``config``, by place."""
    result: dict[str, tuple[float, tuple[int, ...]]] = {}
    flat, square = (b, t, config.d_model), (b, config.heads, t, t)
    if config.dropout_embedding:
        result["embedding"] = (config.dropout_embedding, flat)
    for i in range(config.layers):
        if config.dropout_attention:
            result[f"blocks.{i}.attention"] = (config.dropout_attention, square)
        if config.dropout_residual:
            result[f"blocks.{i}.residual1"] = (config.dropout_residual, flat)
            result[f"blocks.{i}.residual2"] = (config.dropout_residual, flat)
    return result


def draw_masks(
    config: ModelConfig,
    b: int,
    t: int,
    *,
    stream: Stream,
    device: torch.device,
    rows: slice | None = None,
    fused: bool = False,
) -> Masks:
    """Return the masks of one micro-batch of ``b`` sequences of ``t`` tokens; ``stream`` is at its step and number.

    Each mask is drawn on ``device`` by a generator seeded with its own address, so the
    draws of one place never depend on whether another drops. ``rows``: only these of the ``b`` sequences are
    returned, with the draws that they have among all of them. ``fused``: attention gets no mask, its kernels
    draw (:func:`kernels_seeded`).
    """
    masks = {}
    for name, (p, shape) in places(config, b, t).items():
        if fused and name.endswith(".attention"):
            continue
        generator = torch.Generator(device=device).manual_seed(stream.at(name).seed64())
        kept = torch.rand(shape, generator=generator, device=device)[rows or slice(None)] >= p
        masks[name] = kept.to(torch.float32).mul_(1 / (1 - p))
    return masks


@contextmanager
def kernels_seeded(device: torch.device, stream: Stream, *, fused: bool = True) -> Iterator[None]:
    """Let kernels on ``device`` draw by ``stream`` in this block; afterwards its generator is as before.

    The generator's state is on the host, so nothing waits for the device. ``fused``: whether kernels draw at all.
    """
    if not fused:
        yield
        return
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
    generator = torch.cuda.default_generators[index] if device.type == "cuda" else torch.default_generator
    state = generator.get_state()
    generator.manual_seed(stream.at("attention").seed64())
    try:
        yield
    finally:
        generator.set_state(state)


# Causal attention and the three ways in which positions enter it. S keys, of which the last T are the queries'.
#
# Sources: Vaswani et al. 2017; Su et al. 2021 (rotary); Press et al. 2021 (ALiBi). In half precision, products of
# queries and keys can overflow. Scaling both before their product, and a softmax in float32, prevent it.


class KVCache:
    """Keys and values of every block for the tokens so far: [layers, B, H, S, K] each."""

    def __init__(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append ``k`` and ``v`` [B, H, T, K] of ``layer``; return all keys and values so far, [B, H, S, K]."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        if layer == len(self.keys) - 1:
            self.length = end
        return self.keys[layer, :, :, :end].to(k.dtype), self.values[layer, :, :, :end].to(v.dtype)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None,
    scaling: str,
    softmax: str,
    mask: Mask | None,
    dropped: float = 0.0,
) -> Tensor:
    """Return causal attention of queries ``q`` [B, H, T, K] over keys ``k`` and values ``v`` [B, H or fewer, S, K].

    Fewer heads of keys and values are grouped queries: each serves as many heads of queries, one after another.
    ``bias`` [H, T, S] or [B, 1 or H, T, S] is added to the scores. The fused kernel runs unless a dropout mask or a
    softmax of its own is asked for; ``dropped`` is the share of weights that it drops itself.
    """
    t, s, width = q.shape[2], k.shape[2], q.shape[3]
    scale = 1 / math.sqrt(width)
    if scaling == "operands":
        q, k, scale = q * width**-0.25, k * width**-0.25, 1.0
    in_kernel = softmax == "fused" and mask is None
    if k.shape[1] < q.shape[1] and not (in_kernel and shares_keys(q.device)):
        k, v = (y.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for y in (k, v))  # [B, H, S, K]
    if in_kernel:
        allowed = past_only(t, s, q.device) if bias is None and t != s else bias
        return fused(q, k, v, allowed, scale, dropped)
    scores = (q @ k.transpose(-2, -1)) * scale  # [B, H, T, S]
    scores = scores.masked_fill(~past_only(t, s, q.device), -math.inf) if bias is None else scores + bias
    if softmax == "activations":
        weights = rounded_softmax(scores)
    else:
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return drop(weights.to(v.dtype), mask) @ v


def shares_keys(device: torch.device) -> bool:
    """Return whether the fused kernel reads keys and values that several heads of queries share, without copies.

    On a CPU it does. On a GPU its forms for a mask and for float32 lack it, so all of them get copies.
    """
    return device.type == "cpu"


def rounded_softmax(scores: Tensor) -> Tensor:
    """Return softmax over the last axis with the exponentials, their sum and the quotient each in the scores' dtype.

    Torch's own computes in float32 inside and rounds the result alone, in half precision, too.
    """
    with torch.autocast(scores.device.type, enabled=False):
        exponentials = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        return exponentials / exponentials.sum(-1, keepdim=True)


def fused(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float, dropped: float = 0.0) -> Tensor:
    """Return attention by the fused kernel; ``allowed`` is a mask or a bias, None for the plain causal one.

    Its dropout depends on the seed of the device's generator (``grok.gpt.parts.kernels_seeded``).
    """
    low = q.dtype
    if q.device.type == "cpu" and low in (torch.bfloat16, torch.float16):
        # on a CPU the fused backward pass takes ten times longer in half precision than in float32
        with torch.autocast("cpu", enabled=False):
            return fused(q.float(), k.float(), v.float(), allowed, scale, dropped).to(low)
    if allowed is not None and allowed.dtype != torch.bool:
        allowed = allowed.to(low)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropped,
        is_causal=allowed is None,
        scale=scale,
        enable_gqa=k.shape[1] < q.shape[1],
    )


def past_only(t: int, s: int, device: torch.device) -> Tensor:
    """Return [T, S]: True if token j is not after query i, which is token S - T + i."""
    return torch.ones(t, s, dtype=torch.bool, device=device).tril(s - t)


def same_document(tokens: Tensor, end: int) -> Tensor:
    """Return [B, T, T]: True where token j of ``tokens`` [B, T] is token i or before it, in the same document.

    ``end`` is the id of a document's last token.
    """
    ended = tokens == end
    documents = ended.cumsum(1) - ended.long()  # [B, T]: the document's number in its row
    return (documents[:, :, None] == documents[:, None, :]) & past_only(tokens.shape[1], tokens.shape[1], tokens.device)


def only_visible(visible: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the scores' bias [B, 1 or H, T, T]: ``bias`` [H, T, T] or 0, and minus infinity where not ``visible``."""
    zeros = torch.zeros(1, 1, 1, device=visible.device)
    return (zeros if bias is None else bias).to(dtype).masked_fill(~visible[:, None], -math.inf)


def alibi(past: int, t: int, heads: int, device: torch.device) -> Tensor:
    """Return the scores' bias [H, T, past + T]: -slope times distance, and -infinity for later tokens."""
    slopes = torch.tensor(alibi_slopes(heads), device=device)
    s = past + t
    distance = torch.arange(past, s, device=device)[:, None] - torch.arange(s, device=device)[None, :]
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -math.inf)


def alibi_slopes(heads: int) -> list[float]:
    """Return one slope per head: 2**(-8 i / H) if H is a power of two; otherwise some of the next power's are added."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


def rotary(past: int, t: int, width: int, device: torch.device) -> Tensor:
    """Return cosines and sines [2, T, K/2] of positions ``past .. past + t``, in float32."""
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angle = torch.arange(past, past + t, device=device, dtype=torch.float32)[:, None] * rate
    return torch.stack([angle.cos(), angle.sin()])


def rotate(x: Tensor, places: Tensor) -> Tensor:
    """Return ``x`` [B, H, T, K] with its two halves rotated by the angles of ``places`` [2, T, K/2]."""
    cos, sin = places[0], places[1]
    a, b = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


# The output head and its loss, in chunks of rows, so that all logits of a large vocabulary are never in memory.
#
# The gradients of a chunk are computed with its logits, as in Liger (Hsu et al. 2024) and Cut Cross-Entropy (Wijmans et
# al. 2024). So the peak memory is one chunk's logits, and the logits are computed once. The z-loss (Chowdhery et al.
# 2022, PaLM) keeps the log of softmax's divisor near 0.

CHUNK_ELEMENTS = {"cpu": 2**24, "cuda": 2**28}
"""Logits in memory at once, by kind of device. The numbers are fixed, because the order of sums depends on them."""
HALF_SCALE, HALF_ROWS = 2.0**14, 64
"""In fp16 the chunks' gradients are those of the mean loss times the first; fewer rows than the second count as that
many. Then a logit's gradient is at most 256, and a weight's overflows only if its mean over the rows is above 4."""


def chunk_rows(n: int, vocab_rows: int, device: str) -> int:
    """Return the number of rows of a chunk, of ``n`` rows in all."""
    return max(1, min(n, CHUNK_ELEMENTS.get(device, 2**24) // vocab_rows))


def mean_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    vocab_size: int,
    path: str = "plain",
    z_loss: float = 0.0,
    scored: Tensor | None = None,
) -> Tensor:
    """Return the mean cross-entropy of ``targets`` [N] under ``features`` [N, D] and head ``weight`` [rows, D].

    Rows of the head beyond ``vocab_size`` are ignored. ``path``: of :mod:`grok.numerics`. The gradient is
    that of the cross-entropy and ``z_loss`` times the mean squared log of softmax's divisor together. ``scored`` [N]:
    the mean is over these targets only; None: over all.
    """
    rows = chunk_rows(len(features), len(weight), features.device.type)
    if rows >= len(features):
        logits = linear(features, weight, None, path)[:, :vocab_size]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if scored is None:
            loss = F.cross_entropy(logits, targets)
        else:
            loss = mean_over(F.cross_entropy(logits, targets, reduction="none"), scored)
        if z_loss:
            penalty = z_loss * mean_over(logits.logsumexp(1).square(), scored)
            loss = loss + (penalty - penalty.detach())
        return loss
    chunked: Tensor = _ChunkedLoss.apply(features, weight, targets, vocab_size, rows, path, z_loss, scored)  # type: ignore[no-untyped-call]
    return chunked


def score(
    features: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, path: str = "plain"
) -> tuple[Tensor, Tensor]:
    """Return each target's cross-entropy [N] in nats and whether it was the most likely token [N]."""
    losses, hits = [], []
    rows = chunk_rows(len(features), len(weight), features.device.type)
    for x, y in zip(features.split(rows), targets.split(rows), strict=True):
        logits = linear(x, weight, None, path)[:, :vocab_size]
        losses.append(F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none"))
        hits.append(logits.argmax(-1) == y)
    return torch.cat(losses), torch.cat(hits)


def mean_over(values: Tensor, scored: Tensor | None) -> Tensor:
    """Return the mean of ``values``, or of those that are ``scored``."""
    return values.mean() if scored is None else (values * scored).sum() / scored.sum().clamp(min=1)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        targets: Tensor,
        vocab_size: int,
        rows: int,
        path: str,
        z_loss: float,
        scored: Tensor | None,
    ) -> Tensor:
        device = features.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
        with torch.autocast(device, enabled=False):
            w = weight.to(low)
            d_features, d_weight = torch.empty_like(features), torch.zeros_like(weight)
            total = torch.zeros((), device=features.device, dtype=torch.promote_types(weight.dtype, torch.float32))
            n = len(features) if scored is None else scored.sum().clamp(min=1).to(total.dtype)
            half = low == torch.float16
            # the loss is scaled only after this function: fp16 would round most gradients of a mean to 0
            unit = max(len(features), HALF_ROWS) / HALF_SCALE if half else n
            for start in range(0, len(features), rows):
                x = features[start : start + rows].to(low)
                y = targets[start : start + rows]
                logits = linear(x, w, None, path).to(total.dtype)
                logits[:, vocab_size:] = -torch.inf
                log_z = logits.logsumexp(1)
                nats = log_z - logits.gather(1, y[:, None])[:, 0]
                counted = None if scored is None else scored[start : start + rows]
                total += (nats if counted is None else nats * counted).sum()
                d_logits = (logits - log_z[:, None]).exp_()
                if z_loss:
                    d_logits *= 1 + 2 * z_loss * log_z[:, None]
                d_logits[torch.arange(len(y), device=y.device), y] -= 1
                if counted is not None:
                    d_logits *= counted[:, None]
                d_low = (d_logits / unit).to(low)
                d_features[start : start + rows] = linear(d_low, w.t(), None, path)
                d_weight += d_low.t() @ x if path == "plain" else onednn_weight_gradient(d_low, x)
        ctx.save_for_backward(d_features, d_weight, *([torch.ones_like(total) * unit / n] if half else []))
        return total / n

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_features, d_weight, *units = ctx.saved_tensors
        factor = grads[0] * units[0] if units else grads[0]
        return d_features * factor, d_weight * factor, None, None, None, None, None, None
