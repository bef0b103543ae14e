"""Standard deviations and variance ratios of normal values, and medians of any, with exact intervals."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData


def standard_deviation(values: NDArray[np.float64], level: float = LEVEL) -> Estimate:
    """Return the standard deviation of normal ``values`` with its exact interval (chi-squared).

    Raises:
        NotEnoughData: fewer than two different values.
    """
    n, variance = len(values), _variance(values)
    low, high = (math.sqrt((n - 1) * variance / float(stats.chi2.ppf(q, n - 1))) for q in _tails(level)[::-1])
    return Estimate(math.sqrt(variance), low, high, n, "chi-squared, normal values", level)


def variance_ratio(a: NDArray[np.float64], b: NDArray[np.float64], level: float = LEVEL) -> Estimate:
    """Return the variance of ``a`` over that of ``b``, both normal, with its exact interval (F).

    Raises:
        NotEnoughData: fewer than two different values on one side.
    """
    ratio = _variance(a) / _variance(b)
    low, high = (ratio / float(stats.f.ppf(q, len(a) - 1, len(b) - 1)) for q in _tails(level)[::-1])
    return Estimate(ratio, low, high, len(a) + len(b), "F, normal values", level)


def median(values: NDArray[np.float64], level: float = LEVEL) -> Estimate:
    """Return the median of ``values`` (n,) with its exact interval, by the sign test; few values leave it open."""
    x = np.concatenate([[-np.inf], np.sort(values), [np.inf]])
    outside = int(stats.binom.ppf(0.5 - level / 2, len(values), 0.5))  # as many are below, and above
    return Estimate(
        float(np.median(values)), float(x[outside]), float(x[-1 - outside]), len(values), "sign test", level
    )


def _tails(level: float) -> tuple[float, float]:
    return 0.5 - level / 2, 0.5 + level / 2


def _variance(values: NDArray[np.float64]) -> float:
    if len(values) < 2 or float(np.ptp(values)) == 0:
        raise NotEnoughData("at least two different outcomes")
    return float(np.var(values, ddof=1))
