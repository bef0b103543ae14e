"""Shares with intervals, comparisons of two shares, and how many seeds an interval needs.

Sources: Wilson 1927; Clopper and Pearson 1934; Newcombe 1998 (method 10, difference);
Katz et al. 1978 (ratio); Brown, Cai and DasGupta 2001 on which to use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special, stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

RARE: Final = 5
"""Below this count (of hits or of misses) a share gets its exact interval."""


def _z(level: float) -> float:
    return float(special.ndtri(0.5 + level / 2))


def wilson(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Return ``hits / n`` with Wilson's score interval, whose mean coverage is close to nominal."""
    _check(hits, n)
    z2 = _z(level) ** 2
    p = hits / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == n else min(1.0, centre + half)
    return Estimate(p, low, high, n, "Wilson", level)


def clopper_pearson(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Return ``hits / n`` with the exact interval: coverage never below ``level``."""
    _check(hits, n)
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(special.betaincinv(hits, n - hits + 1, tail))
    high = 1.0 if hits == n else float(special.betaincinv(hits + 1, n - hits, 1 - tail))
    return Estimate(hits / n, low, high, n, "Clopper-Pearson", level)


def share(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Return ``hits / n``: exact where the count is rare (``RARE``), Wilson elsewhere."""
    _check(hits, n)
    return (clopper_pearson if min(hits, n - hits) < RARE else wilson)(hits, n, level)


def _check(hits: int, n: int) -> None:
    if n < 1:
        raise NotEnoughData("at least one run to take a share of")
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits of {n}: expected 0 <= hits <= n")


def difference(hits_a: int, n_a: int, hits_b: int, n_b: int, level: float = LEVEL) -> Estimate:
    """Return share a minus share b with Newcombe's interval (two Wilson intervals, squared and added)."""
    a, b = wilson(hits_a, n_a, level), wilson(hits_b, n_b, level)
    d = a.value - b.value
    low = d - math.hypot(a.value - a.low, b.high - b.value)
    high = d + math.hypot(a.high - a.value, b.value - b.low)
    return Estimate(d, max(-1.0, low), min(1.0, high), n_a + n_b, "Newcombe", level)


def ratio(hits_a: int, n_a: int, hits_b: int, n_b: int, level: float = LEVEL) -> Estimate:
    """Return share a over share b with an interval on the log scale.

    Half a hit is added to every count where one of them is 0, so that the other
    end of the interval stays informative; the end beyond the zero is 0 or infinite.

    Raises:
        NotEnoughData: neither group has a hit.
    """
    _check(hits_a, n_a)
    _check(hits_b, n_b)
    if hits_a == hits_b == 0:
        raise NotEnoughData("at least one hit in either group to compare rates")
    extra = 0.5 if hits_a == 0 or hits_b == 0 else 0.0
    a, b = hits_a + extra, hits_b + extra
    na, nb = n_a + 2 * extra, n_b + 2 * extra
    log = math.log(a / na) - math.log(b / nb)
    half = _z(level) * math.sqrt(max(0.0, 1 / a - 1 / na + 1 / b - 1 / nb))
    value = math.inf if hits_b == 0 else (hits_a / n_a) / (hits_b / n_b)
    low = 0.0 if hits_a == 0 else math.exp(log - half)
    high = math.inf if hits_b == 0 else math.exp(log + half)
    return Estimate(value, low, high, n_a + n_b, "Katz log ratio", level)


def seeds_for_width(expected: float, width: float, level: float = LEVEL) -> int:
    """Return the smallest n whose Wilson interval is at most ``width`` wide at share ``expected``.

    ``expected`` and ``width`` are shares: 0.0087 and 0.01 ask for an interval of one
    percentage point around the diary's 0.87%.
    """
    if not 0 <= expected <= 1 or not 0 < width < 1:
        raise ValueError(f"expected={expected}, width={width}: both are shares, width above 0 and below 1")
    z2 = _z(level) ** 2

    def wide(n: int) -> bool:
        half = math.sqrt(z2 * (expected * (1 - expected) / n + z2 / (4 * n * n))) / (1 + z2 / n)
        return 2 * half > width

    low, high = 0, 1
    while wide(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """Do the groups share one rate? Pearson's chi-square with a permutation p-value."""

    statistic: float
    p: float
    groups: int
    n: int


def heterogeneity(hits: np.ndarray, groups: np.ndarray, rng: np.random.Generator, draws: int = 1000) -> Heterogeneity:
    """Test whether boolean ``hits`` are equally frequent in all ``groups`` (integer labels).

    The null distribution permutes the hits over all runs, so it holds for rare hits too.
    """
    _, group = np.unique(groups, return_inverse=True)
    size = np.bincount(group).astype(float)
    total, n = int(hits.sum()), len(hits)
    if len(size) < 2 or total in (0, n):
        raise NotEnoughData("two groups or more, and hits as well as misses")
    expected = size * total / n

    def chi2(h: np.ndarray) -> float:
        seen = np.bincount(group[h], minlength=len(size))
        return float(((seen - expected) ** 2 / expected).sum() / (1 - total / n))

    observed = chi2(hits.astype(bool))
    null = np.array([chi2(rng.permutation(hits.astype(bool))) for _ in range(draws)])
    p = (1 + int((null >= observed - 1e-12).sum())) / (1 + draws)
    return Heterogeneity(observed, p, len(size), n)


def chi2_p(statistic: float, dof: int) -> float:
    """Return the upper tail of the chi-square distribution."""
    return float(stats.chi2.sf(statistic, dof))
