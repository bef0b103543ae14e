"""The output head and its loss, in chunks of rows, so that all logits of a large vocabulary are never in memory.

The gradients of a chunk are computed with its logits, as in Liger (Hsu et al. 2024) and Cut Cross-Entropy (Wijmans et
al. 2024). So the peak memory is one chunk's logits, and the logits are computed once. The z-loss (Chowdhery et al.
2022, PaLM) keeps the log of softmax's divisor near 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.numerics.products import linear, onednn_weight_gradient

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

    Rows of the head beyond ``vocab_size`` are ignored. ``path``: of :mod:`grok.numerics.products`. The gradient is
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
            loss = _mean(F.cross_entropy(logits, targets, reduction="none"), scored)
        if z_loss:
            penalty = z_loss * _mean(logits.logsumexp(1).square(), scored)
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


def _mean(values: Tensor, scored: Tensor | None) -> Tensor:
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
