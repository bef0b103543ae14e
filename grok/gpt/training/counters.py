"""Counters of one run, and its loss scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from grok.config.gpt import GptConfig

SCALE_START: Final = 2.0**16
SCALE_GROWTH_STEPS: Final = 2000
SCALE_MAX: Final = 2.0**24
"""Loss scaling in fp16 (Micikevicius et al. 2018): halved on overflow, doubled after that many good steps."""


@dataclass(slots=True)
class Counters:
    """Counters of a run."""

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    not_finite: int = 0
    adam_steps: int = 0
    scale: float = 1.0
    scale_good: int = 0

    def overflowed(self, config: GptConfig, grad_norm: float) -> bool:
        """Return whether fp16 gradients with this norm call for a smaller loss scale, and the least is not reached."""
        scaled = config.precision == "fp16" and self.scale > config.stability.least_scale
        return scaled and not math.isfinite(grad_norm)

    def rescale(self, config: GptConfig, overflow: bool) -> None:
        """Halve the loss scale after an overflow, double it after many good steps; only fp16 has one."""
        if config.precision != "fp16":
            return
        if overflow:
            self.scale, self.scale_good = max(self.scale / 2, config.stability.least_scale), 0
            return
        self.scale_good += 1
        if self.scale_good == SCALE_GROWTH_STEPS:
            self.scale, self.scale_good = min(self.scale * 2, SCALE_MAX), 0


def start_scale(config: GptConfig) -> float:
    """Return the initial loss scale of a run's precision."""
    return SCALE_START if config.precision == "fp16" else 1.0
