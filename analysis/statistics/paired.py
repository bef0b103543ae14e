"""Two settings on the same seeds: the paired difference with its interval and test.

Sources: Wilcoxon 1945; Hodges and Lehmann 1963; Bonett and Price 2012 (the difference of two shares).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

FEWEST: Final = 6
"""Smallest number of pairs that differ: with fewer, no two-sided signed-rank test reaches 0.05."""

EXACT: Final = 50
"""Largest number of pairs with an exact interval; above it the statistic is taken as normal."""


@dataclass(frozen=True, slots=True)
class Paired:
    """The shift of b against a, seed by seed."""

    shift: Estimate
    """Hodges-Lehmann estimate of b - a; for outcomes that are 0 or 1, the difference of their shares."""
    p: float
    """p-value of the two-sided Wilcoxon signed-rank test."""
    lower: int
    """Seeds for which b is lower than a."""
    higher: int
    """Seeds for which b is higher than a."""
    up: bool
    """Whether b is higher by the test's sum of ranks; for a shift near 0 this may differ from the shift's sign."""


def paired(a: NDArray[np.float64], b: NDArray[np.float64], level: float = LEVEL) -> Paired:
    """Return the paired comparison of outcomes ``a`` and ``b`` (n,) of the same seeds.

    The interval inverts the signed-rank test over the averages of pairs of differences.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` seeds for which the two differ.
    """
    gap = b - a
    moved = gap[gap != 0]
    if len(moved) < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} seeds for which the two settings differ (seen: {len(moved)})")
    n = len(gap)
    test = stats.wilcoxon(moved, method="auto")
    ranks = stats.rankdata(np.abs(moved))
    up = bool(ranks[moved > 0].sum() > ranks[moved < 0].sum())
    lower, higher = int((gap < 0).sum()), int((gap > 0).sum())
    if set(np.unique(np.concatenate([a, b]))) <= {0.0, 1.0}:
        return Paired(_share_difference(lower, higher, n, level), float(test.pvalue), lower, higher, up)
    i, j = np.triu_indices(n)
    walsh = np.sort((gap[i] + gap[j]) / 2)
    cut = _cut(n, level)
    value = float(np.median(walsh))
    return Paired(
        Estimate(value, float(walsh[cut]), float(walsh[len(walsh) - 1 - cut]), n, "Hodges-Lehmann", level),
        float(test.pvalue),
        lower,
        higher,
        up,
    )


def _share_difference(lost: int, won: int, n: int, level: float) -> Estimate:
    """Return the difference of two paired shares with Bonett and Price's interval."""
    p_lost, p_won = (lost + 1) / (n + 2), (won + 1) / (n + 2)
    middle = p_won - p_lost
    half = float(stats.norm.ppf(0.5 + level / 2)) * math.sqrt((p_won + p_lost - middle**2) / (n + 2))
    return Estimate((won - lost) / n, max(-1.0, middle - half), min(1.0, middle + half), n, "Bonett-Price", level)


def _cut(n: int, level: float) -> int:
    """Return how many averages of pairs lie outside the interval at each end, by the signed-rank distribution."""
    if n > EXACT:
        z = float(stats.norm.ppf(0.5 + level / 2))
        return int(np.floor(n * (n + 1) / 4 - z * np.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    ways = np.ones(1)  # number of subsets of the ranks 1..n by their sum
    for rank in range(1, n + 1):
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways
        longer[rank:] += ways
        ways = longer
    below = np.cumsum(ways) / 2.0**n
    return max(0, int(np.searchsorted(below, (1 - level) / 2, side="right")) - 1)
