"""What one log-normal population of times predicts.

No test decides here between one population and two: at the sizes of a census neither a dip
test nor a two-component mixture can. With 40 seeds a second group of 7% is found in 2% of the
cases and with 200 in 35%, and one population of another shape is called two nearly always.

Sources: Cox and Oakes 1984 (maximum likelihood with censored times); Wilks 1938 (likelihood
interval).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.survival import Times

Floats = NDArray[np.float64]

FEWEST: Final = 10
"""Generalised runs below which no population is fitted."""
NARROWEST: Final = 1e-3
"""Smallest spread of log time that is fitted: keeps the likelihood bounded."""


@dataclass(frozen=True)
class LogNormal:
    """One log-normal population, fitted to times that are known to lie in intervals."""

    mean: float
    """Of the natural log of the step."""
    sd: float
    times: Times

    @property
    def median(self) -> float:
        """The median time in steps."""
        return math.exp(self.mean)

    def share_by(self, step: float, level: float = LEVEL) -> Estimate:
        """Return the share that the population predicts to have generalised by ``step``, with its likelihood interval.

        The interval is about the fit alone: it supposes that the population is log-normal.
        """
        data = _Grouped(self.times)
        at = math.log(step)
        z = (at - self.mean) / self.sd
        drop = float(stats.t.ppf(0.5 + level / 2, len(self.times) - 2)) ** 2 / 2
        limit = data.loss(self.mean, self.sd) + drop

        def loss_at(log_sd: float, quantile: float) -> float:
            return data.loss(at - quantile * math.exp(log_sd), math.exp(log_sd))

        def excess(quantile: float) -> float:
            """How much worse the best population is that has ``step`` at this quantile."""
            ends = (math.log(self.sd) - 3, math.log(self.sd) + 3)
            best = optimize.minimize_scalar(loss_at, bounds=ends, args=(quantile,), method="bounded")
            return float(best.fun) - limit

        low, high = (_crossing(excess, z, direction) for direction in (-1.0, 1.0))
        n = len(self.times)
        value = float(special.ndtr(z))
        return Estimate(value, float(special.ndtr(low)), float(special.ndtr(high)), n, "log-normal, likelihood", level)


class _Grouped:
    """The likelihood over distinct intervals."""

    def __init__(self, times: Times) -> None:
        pairs, counts = np.unique(np.stack([times.left, times.right], 1), axis=0, return_counts=True)
        with np.errstate(divide="ignore"):
            self.low, self.high = np.log(np.maximum(pairs[:, 0], 0.0)), np.log(pairs[:, 1])
        self.counts = counts.astype(float)

    def loss(self, mean: float, sd: float) -> float:
        a, b = (self.low - mean) / sd, (self.high - mean) / sd
        # Above the mean the difference of upper tails keeps its digits.
        upper = a > 0
        inside = np.where(upper, special.ndtr(-a) - special.ndtr(-b), special.ndtr(b) - special.ndtr(a))
        return -float(self.counts @ np.log(np.maximum(inside, 1e-300)))


def _crossing(excess: Callable[[float], float], start: float, direction: float) -> float:
    step = 0.1
    while excess(start + direction * step) < 0:
        step *= 2
        if step > 100:
            return direction * math.inf
    low, high = sorted((start, start + direction * step))
    return float(optimize.brentq(excess, low, high, xtol=1e-4))


def fit(times: Times) -> LogNormal:
    """Fit one log-normal population by maximum likelihood.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` runs generalised, or all at one evaluation.
    """
    seen = int(times.seen.sum())
    if seen < FEWEST or len(np.unique(times.right[times.seen])) < 3:
        raise NotEnoughData(f"at least {FEWEST} runs that generalised at different steps (seen: {seen})")
    # The optimiser tries populations under which a time is impossible, and turns back.
    with np.errstate(divide="ignore", invalid="ignore"):
        left, right = np.log(np.maximum(times.left, 0.0)), np.log(times.right)
        inside = np.stack([left[times.seen], right[times.seen]], 1)
        known: stats.CensoredData = stats.CensoredData(interval=inside, right=left[~times.seen])
        mean, sd = stats.norm.fit(known)
    return LogNormal(float(mean), max(float(sd), NARROWEST), times)
