"""A log-normal distribution fitted to event times, as the line of a quantile plot.

It predicts nothing that it was not fitted to: of a true mixture it gives nearly the share of early seeds that was seen.
There is no test of one population against two: at the sizes of a census neither a dip test nor a
two-component mixture decides it. In simulations they detect a second group of 7% in 2% of the cases
with 40 seeds and in 35% with 200, and nearly always report two groups for one population of another
shape.

Source: Cox and Oakes 1984 (maximum likelihood with censored times).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.survival import Times

Floats = NDArray[np.float64]

FEWEST: Final = 10
"""Smallest number of generalised runs for a fit."""
NARROWEST: Final = 1e-3
"""Smallest fitted standard deviation of log time; it keeps the likelihood bounded."""


@dataclass(frozen=True)
class LogNormal:
    """A log-normal distribution, fitted to interval-censored times."""

    mean: float
    """Mean of the natural log of the time in steps."""
    sd: float
    """Standard deviation of the same."""
    times: Times

    @property
    def median(self) -> float:
        """The median time in steps."""
        return math.exp(self.mean)


def fit(times: Times) -> LogNormal:
    """Fit a log-normal distribution by maximum likelihood.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` runs generalised, or at fewer than three different evaluations.
    """
    seen = int(times.seen.sum())
    if seen < FEWEST or len(np.unique(times.right[times.seen])) < 3:
        raise NotEnoughData(f"at least {FEWEST} runs that generalised at different steps (seen: {seen})")
    # The optimiser may try parameters of likelihood zero on its way: their warnings mean nothing.
    with np.errstate(divide="ignore", invalid="ignore"):
        left, right = np.log(np.maximum(times.left, 0.0)), np.log(times.right)
        inside = np.stack([left[times.seen], right[times.seen]], 1)
        known: stats.CensoredData = stats.CensoredData(interval=inside, right=left[~times.seen])
        mean, sd = stats.norm.fit(known)
    return LogNormal(float(mean), max(float(sd), NARROWEST), times)
