"""Learning-rate range test: raises the rate at each step and finds where the loss falls fastest.

Afterwards weights, moments and counters are restored, bit by bit. There is no other state,
because batches and dropout are functions of the step.

Source: Smith 2017, "Cyclical learning rates for training neural networks", section 3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grok.errors import TrainingError
from grok.gpt.training.checkpoint import capture, put_back
from grok.gpt.training.history import History
from grok.gpt.training.optimizer import total_norm
from grok.gpt.training.trainer import Trainer

SMOOTHING = 0.9
BLOWN_UP = 2.0
"""The test ends when the smoothed loss is this many nats above its lowest."""


@dataclass(frozen=True, slots=True)
class RangeTest:
    """The learning rates of the test, the loss at each, and the rate of the fastest fall."""

    rates: NDArray[np.float64]
    losses: NDArray[np.float64]
    """Mean loss of the step's batch before its update, in nats."""
    smooth: NDArray[np.float64]
    suggestion: float
    """The rate at which the smoothed loss falls fastest on a logarithmic axis."""
    configured: float

    @property
    def ratio(self) -> float:
        """The configured rate divided by the suggested one."""
        return self.configured / self.suggestion


def range_test(trainer: Trainer, *, first: float = 1e-6, last: float = 1.0, steps: int = 100) -> RangeTest:
    """Return the range test of ``trainer`` from its present state, at most ``steps`` updates; the state is restored.

    Raises:
        TrainingError: the loss is not finite before a rate could be suggested.
    """
    before = capture(trainer, History())
    rates, losses, smooth = [], [], []
    lowest, average = math.inf, 0.0
    try:
        for i in range(steps):
            rate = first * (last / first) ** (i / (steps - 1))
            k = trainer.counters.step + 1
            x, y = trainer.batch(k)
            loss = float(trainer.gradients(k, x, y))
            if not math.isfinite(loss):
                break
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            rates.append(rate)
            losses.append(loss)
            smooth.append(average / (1 - SMOOTHING ** (i + 1)))
            lowest = min(lowest, smooth[-1])
            if smooth[-1] > lowest + BLOWN_UP:
                break
            norm = total_norm(trainer.unscale())
            overflow = trainer.counters.overflowed(trainer.config, float(norm))
            if not overflow:
                trainer.apply(norm, rate)
            trainer.counters.rescale(trainer.config, overflow)
            trainer.counters.step = k
    finally:
        put_back(trainer, before)
    if len(rates) < 10:
        raise TrainingError(
            f"the loss is not finite, or blew up, after {len(rates)} steps from rate {first}: start lower than that"
        )
    return RangeTest(
        rates=np.array(rates),
        losses=np.array(losses),
        smooth=np.array(smooth),
        suggestion=steepest(np.array(rates), np.array(smooth)),
        configured=trainer.config.optim.lr,
    )


def steepest(rates: NDArray[np.float64], smooth: NDArray[np.float64]) -> float:
    """Return the rate of the steepest fall of ``smooth`` against the logarithm of ``rates``."""
    slope = np.gradient(smooth, np.log(rates))
    return float(rates[int(slope.argmin())])
