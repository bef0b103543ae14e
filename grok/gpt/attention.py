"""Causal attention and the three ways in which positions enter it. S keys, of which the last T are the queries'.

Sources: Vaswani et al. 2017; Su et al. 2021 (rotary); Press et al. 2021 (ALiBi). In half precision, products of
queries and keys can overflow. Scaling both before their product, and a softmax in float32, prevent it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.gpt.dropout import Mask, drop


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
        allowed = None
        if bias is not None or t != s:
            allowed = past_only(t, s, q.device) if bias is None else bias
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

    Its dropout depends on the seed of the device's generator (``grok.gpt.dropout.kernels_seeded``).
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
