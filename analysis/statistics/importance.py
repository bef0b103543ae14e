"""How much of a search's outcome one setting explains, and the median of few seeds with its interval.

Sources: Hutter, Hoos and Leyton-Brown 2014 (the variance that one setting explains);
Conover 1999 (the order-statistic interval of a median).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]
FEWEST = 12
"""Smallest number of trials: a curve through fewer would mostly fit their noise."""
BOOTSTRAPS = 400


def median_interval(values: Floats, level: float = LEVEL) -> Estimate:
    """Return the median of ``values`` (n,) with its order-statistic interval at ``level``.

    With fewer than six values no such interval exists at 95%. The interval is then from the
    smallest to the largest, and ``level`` of the estimate is the level that this has.
    """
    ordered = np.sort(values)
    n = len(ordered)
    k = 0  # the largest number of values that can be left out on each side
    while k + 1 < n / 2 and stats.binom.cdf(k + 1, n, 0.5) <= (1 - level) / 2:
        k += 1
    reached = float(1 - 2 * stats.binom.cdf(k, n, 0.5))
    value = float(np.median(ordered))
    return Estimate(value, float(ordered[k]), float(ordered[n - 1 - k]), n, "order statistics", min(level, reached))


def explained(x: Floats, y: Floats, rng: np.random.Generator, level: float = LEVEL) -> Estimate:
    """Return the share of the variance of ``y``'s ranks (n,) that a parabola in ``x``'s ranks (n,) explains.

    A parabola, because the best value of a setting often lies inside its bounds. The share is
    adjusted for its two coefficients; the interval is a bootstrap over trials. For a categorical
    setting use :func:`explained_by_groups`.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` trials, or one of them constant.
    """
    return _bootstrap(x, y, _parabola, rng, level)


def explained_by_groups(codes: Floats, y: Floats, rng: np.random.Generator, level: float = LEVEL) -> Estimate:
    """Return the adjusted share of the variance of ``y``'s ranks (n,) that the groups ``codes`` (n,) explain.

    Raises:
        NotEnoughData: as :func:`explained`.
    """
    return _bootstrap(codes, y, _groups, rng, level)


def _bootstrap(
    x: Floats, y: Floats, share: Callable[[Floats, Floats], float], rng: np.random.Generator, level: float
) -> Estimate:
    n = len(x)
    if n < FEWEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise NotEnoughData(f"at least {FEWEST} finished trials of differing values (seen: {n})")
    ranks = stats.rankdata(y)
    draws = rng.integers(0, n, (BOOTSTRAPS, n))
    drawn = np.array([share(x[i], ranks[i]) for i in draws])
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    value = float(share(x, ranks))
    return Estimate(value, min(float(low), value), max(float(high), value), n, "bootstrap over trials", level)


def _parabola(x: Floats, y: Floats) -> float:
    r = stats.rankdata(x)
    spread = float(np.std(r))
    if spread == 0:
        return 0.0
    z = (r - r.mean()) / spread
    design = np.stack([np.ones_like(z), z, z * z], 1)
    return _adjusted(y, design @ np.linalg.lstsq(design, y, rcond=None)[0], 3)


def _groups(codes: Floats, y: Floats) -> float:
    _, group = np.unique(codes, return_inverse=True)
    means = np.bincount(group, weights=y) / np.bincount(group)
    return _adjusted(y, means[group], len(means))


def _adjusted(y: Floats, fitted: Floats, coefficients: int) -> float:
    n, total = len(y), float(((y - y.mean()) ** 2).sum())
    if total == 0 or n <= coefficients:
        return 0.0
    left = float(((y - fitted) ** 2).sum()) / (n - coefficients)
    return max(0.0, 1 - left / (total / (n - 1)))
