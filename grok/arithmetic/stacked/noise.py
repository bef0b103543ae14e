"""Dropout on the device: a mask is a function of the lane's dropout seed, the step, the place and the element.

The host hashes a stream's key; the device mixes it with a counter in integer arithmetic, so
the masks are equal on every device. They differ from those of a single lane on a CPU, which
come from torch's generator.

Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from grok.arithmetic.lanes import Noise, no_noise
from grok.config.arithmetic import ModelConfig
from grok.streams import Stream


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
FIRST: Final = _signed(0xBF58476D1CE4E5B9)
SECOND: Final = _signed(0x94D049BB133111EB)
BITS: Final = 53
"""Number of the upper bits of a mixed 64-bit word that are compared with the rate."""


def places(model: ModelConfig) -> list[str]:
    """Return the names of the places of dropout; an empty list without dropout."""
    if model.dropout == 0:
        return []
    return ["embedding", *[f"blocks.{i}.{part}" for i in range(model.layers) for part in ("attention", "mlp")]]


def keys_of(model: ModelConfig, seed: int) -> list[int]:
    """Return each place's key for a dropout seed."""
    return [Stream("dropout", seed).at("lanes", place).seed64() for place in places(model)]


def dropout(model: ModelConfig, keys: Tensor, step: Tensor) -> Noise:
    """Return the dropout of each lane's next update: ``keys`` [places, L], ``step`` [L]; inverted scaling."""
    if model.dropout == 0:
        return no_noise
    index = {place: i for i, place in enumerate(places(model))}
    least = round(model.dropout * 2**BITS)

    def noise(place: str, x: Tensor) -> Tensor:  # [L, R, D]
        elements = x.shape[1] * x.shape[2]
        counter = torch.arange(1, elements + 1, device=x.device)
        words = mixed(keys[index[place]][:, None] + (step[:, None] * elements + counter) * GOLDEN)
        keep = _shifted(words, 64 - BITS) >= least
        kept: Tensor = x * keep.view(x.shape).to(x.dtype) / (1 - model.dropout)
        return kept

    return noise


def mixed(words: Tensor) -> Tensor:
    """Return SplitMix64's output function of 64-bit words, stored as signed integers; products wrap around."""
    words = (words ^ _shifted(words, 30)) * FIRST
    words = (words ^ _shifted(words, 27)) * SECOND
    mixed_words: Tensor = words ^ _shifted(words, 31)
    return mixed_words


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Return the words shifted right with zeros from the left (a signed shift would repeat the sign bit)."""
    shifted: Tensor = (words >> bits) & (2 ** (64 - bits) - 1)
    return shifted
