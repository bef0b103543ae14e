"""Spikes and divergence, and the branches that a rollback makes.

A spike is caught in its step, before its update is made. A rollback returns to a state
well before the onset, as a new branch of the run: the model seed stays, the data order
moves (or data is skipped, or the rate is cut), and the abandoned branch is kept under a
name of its own.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

from grok.config.gpt import StabilityConfig

NORMAL_MAD = 1.4826
"""Median absolute deviation of a normal distribution, times this, is its standard deviation."""
SMOOTHING = 0.98


@dataclass(frozen=True, slots=True)
class Branch:
    """What a run has changed by rolling back; the first branch has changed nothing."""

    number: int = 0
    order: int = 0
    """Which data order: 0 is the order stream's own, n that of the n-th rollback."""
    skipped_samples: int = 0
    lr_factor: float = 1.0
    step: int = 0
    """Where it left the branch before it."""

    def next(self, config: StabilityConfig, *, back_to: int, skip: int) -> Branch:
        """Return the branch after rolling back to step ``back_to``; ``skip`` sequences are the onset's data."""
        number = self.number + 1
        return Branch(
            number=number,
            order=number if config.policy == "new_data_seed" else self.order,
            skipped_samples=self.skipped_samples + (skip if config.policy == "skip_data" else 0),
            lr_factor=self.lr_factor * (config.lr_cut if config.policy == "cut_lr" else 1.0),
            step=back_to,
        )


def abandoned_id(run_id: str, branch: int) -> str:
    """Return the name of an abandoned branch: derived, so that the same rollback always names it the same."""
    return hashlib.sha256(f"{run_id}/branch/{branch}".encode()).hexdigest()[: len(run_id)]


def return_step(steps: list[int], onset: int, margin: int, tries: int) -> int:
    """Return which of the kept ``steps`` to go back to: ``margin`` before the onset, doubled at each further try."""
    wanted = onset - margin * 2 ** (tries - 1)
    return max((s for s in steps if s <= wanted), default=min(steps))


class Watch:
    """Looks at the loss and the gradient norm of every step and says when something is wrong."""

    def __init__(self, config: StabilityConfig) -> None:
        self.config = config
        self.recent: deque[float] = deque(maxlen=config.window)
        self.first: float | None = None
        """Loss of the first step, which a fresh model's is known to be: about log V."""
        self.smooth = 0.0
        self.above = 0

    def see(self, loss: float, grad_norm: float) -> str | None:
        """Return ``not_finite``, ``spike``, ``rising`` or None for the next step, and remember it."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return "not_finite"
        event = "spike" if self._spikes(loss) else None
        if event and self.config.policy != "log":
            return event
        self._remember(loss)
        if self.above >= self.config.rise_steps:
            return "rising"
        return event

    def _spikes(self, loss: float) -> bool:
        if len(self.recent) < self.recent.maxlen:  # type: ignore[operator]
            return False
        middle = statistics.median(self.recent)
        deviation = NORMAL_MAD * statistics.median(abs(x - middle) for x in self.recent)
        return loss > middle + max(self.config.spike, self.config.sigma * deviation)

    def _remember(self, loss: float) -> None:
        self.recent.append(loss)
        if self.first is None:
            self.first = self.smooth = loss
        self.smooth = SMOOTHING * self.smooth + (1 - SMOOTHING) * loss
        self.above = self.above + 1 if self.smooth > self.first + self.config.rise else 0

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "recent": list(self.recent),
            "first": self.first,
            "smooth": self.smooth,
            "above": self.above,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self.recent = deque(state["recent"], maxlen=self.config.window)
        self.first, self.smooth, self.above = state["first"], state["smooth"], state["above"]
