"""Dropout masks from the dropout stream at (step, micro-batch, place), never from a global generator.

On one GPU the fused kernel drops attention weights itself, because a mask of them would take more memory than the rest.
It can draw from the device's global generator only. This one is seeded from (step, micro-batch) before the kernel runs,
and has its former state afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from grok.config.gpt_model import ModelConfig
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
