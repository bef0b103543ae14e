"""Shares with intervals, comparisons of two shares, and the number of seeds for an interval's width.

Sources: Wilson 1927; Clopper and Pearson 1934; Katz et al. 1978 (ratio); Brown, Cai and DasGupta 2001
(choice of the interval); Cameron, Gelbach and Miller 2011 (multi-way clustering).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy import special, stats
from statsmodels.stats.proportion import confint_proportions_2indep

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

RARE: Final = 5
"""Below this number of hits or of misses a share has the exact interval."""


def _z(level: float) -> float:
    return float(special.ndtri(0.5 + level / 2))


def wilson(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Return ``hits / n`` with Wilson's score interval, whose mean coverage is close to nominal."""
    return _interval(hits, n, "wilson", "Wilson", level)


def clopper_pearson(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Return ``hits / n`` with the exact interval: coverage never below ``level``."""
    return _interval(hits, n, "exact", "Clopper-Pearson", level)


def _interval(hits: int, n: int, method: Literal["wilson", "exact"], name: str, level: float) -> Estimate:
    _check(hits, n)
    ends = stats.binomtest(hits, n).proportion_ci(level, method)
    return Estimate(hits / n, float(ends.low), float(ends.high), n, name, level)


def share(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """Return ``hits / n`` with the exact interval if hits or misses are below ``RARE``, else with Wilson's.

    Raises:
        NotEnoughData: ``n`` is 0.
    """
    _check(hits, n)
    return (clopper_pearson if min(hits, n - hits) < RARE else wilson)(hits, n, level)


def _check(hits: int, n: int) -> None:
    if n < 1:
        raise NotEnoughData("at least one run to take a share of")
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits of {n}: expected 0 <= hits <= n")


def ratio(hits_a: int, n_a: int, hits_b: int, n_b: int, level: float = LEVEL) -> Estimate:
    """Return share a divided by share b, with Katz's interval on the log scale.

    If one group has no hit, half a hit is added to every count, so that one end of the interval is
    finite and above 0; the other end is 0 or infinite.

    Raises:
        NotEnoughData: neither group has a hit.
    """
    _check(hits_a, n_a)
    _check(hits_b, n_b)
    if hits_a == hits_b == 0:
        raise NotEnoughData("at least one hit in either group to compare rates")
    extra = 0.5 if hits_a == 0 or hits_b == 0 else 0.0
    low, high = confint_proportions_2indep(
        hits_a + extra, n_a + 2 * extra, hits_b + extra, n_b + 2 * extra, "log", "ratio", alpha=1 - level
    )
    value = math.inf if hits_b == 0 else (hits_a / n_a) / (hits_b / n_b)
    return Estimate(
        value, float(low) if hits_a else 0.0, float(high) if hits_b else math.inf, n_a + n_b, "Katz log ratio", level
    )


def seeds_for_width(expected: float, width: float, level: float = LEVEL) -> int:
    """Return the smallest n whose Wilson interval is at most ``width`` wide at share ``expected``.

    ``expected`` and ``width`` are shares: 0.0087 and 0.01 mean an interval that is one
    percentage point wide around 0.87%.
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


@dataclass(frozen=True)
class Heterogeneity:
    """Test that all groups have one rate: Pearson's chi-square with a permutation p-value."""

    statistic: float
    p: float
    p_of: dict[int, float]
    """Two-sided p-value of each group: that its rate equals that of the others."""
    groups: int
    n: int


def heterogeneity(
    hits: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    draws: int = 1000,
    blocks: Sequence[np.ndarray] = (),
) -> Heterogeneity:
    """Test whether boolean ``hits`` (n,) are equally frequent in all ``groups`` (n,) (integer labels).

    The null distribution permutes the hits over all runs, so the test is valid for rare hits.
    In a crossed design the runs of one group at one level of another factor are not independent
    (an interaction), so only such units may be permuted. Each of ``blocks`` (n,) gives the levels of
    one such factor: within each level whole groups are permuted. With several factors, p is the
    largest of theirs.

    Raises:
        NotEnoughData: there is only one group, or all runs are hits, or none is.
    """
    names, group = np.unique(groups, return_inverse=True)
    total, n, k = int(hits.sum()), len(hits), len(names)
    if k < 2 or total in (0, n):
        raise NotEnoughData("two groups or more, and hits as well as misses")
    hit = hits.astype(bool)

    def deviations(label: np.ndarray, h: np.ndarray) -> np.ndarray:
        size = np.bincount(label, minlength=k).astype(float)
        expected = size * total / n
        spread = np.sqrt(np.maximum(expected * (1 - total / n), 1e-12))
        return np.asarray((np.bincount(label[h], minlength=k) - expected) / spread)

    observed = deviations(group, hit)
    statistic = float((observed**2).sum())
    p, p_of = 0.0, np.zeros(k)
    for block in blocks or (None,):
        null = np.empty((draws, k))
        place = None if block is None else np.unique(block, return_inverse=True)[1]
        for d in range(draws):
            if place is None:
                null[d] = deviations(group, rng.permutation(hit))
            else:
                labels = rng.permuted(np.tile(np.arange(k), (int(place.max()) + 1, 1)), axis=1)
                null[d] = deviations(labels[place, group], hit)
        p = max(p, (1 + int(((null**2).sum(1) >= statistic - 1e-9).sum())) / (1 + draws))
        # The groups' deviations have nearly the same null distribution: pooling them resolves small p-values.
        pooled = np.sort(np.abs(null).reshape(-1))
        beyond = len(pooled) - np.searchsorted(pooled, np.abs(observed) - 1e-9)
        p_of = np.maximum(p_of, (1 + beyond) / (1 + len(pooled)))
    return Heterogeneity(statistic, p, {int(g): float(v) for g, v in zip(names, p_of, strict=True)}, k, n)


def clustered_ratio(
    hits: np.ndarray, chosen: np.ndarray, clusterings: Sequence[np.ndarray], level: float = LEVEL
) -> Estimate:
    """Return the rate of boolean ``hits`` among the ``chosen`` runs divided by the rate among the others.

    The interval is on the log scale, by linearisation, from the spread between clusters of dependent
    runs. Each of ``clusterings`` (n,) labels the runs by one factor that they can share (multi-way
    clustering; Cameron, Gelbach and Miller 2011).

    Raises:
        NotEnoughData: a clustering has fewer than four clusters, or a group has no hit.
    """
    kinds = [np.unique(labels, return_inverse=True)[1] for labels in clusterings]
    fewest = min(int(kind.max()) + 1 for kind in kinds)
    a, b = int(hits[chosen].sum()), int(hits[~chosen].sum())
    if fewest < 4 or not a or not b:
        raise NotEnoughData("hits in both groups, and four seeds or more to see their spread over")
    n, m = int(chosen.sum()), int((~chosen).sum())
    # Influence of one run on log(rate): (hit - rate) / (rate n).
    part = np.where(chosen, (hits - a / n) / a, -(hits - b / m) / b)

    def variance(kind: np.ndarray) -> float:
        k = int(kind.max()) + 1
        return k / (k - 1) * float((np.bincount(kind, weights=part, minlength=k) ** 2).sum())

    variances = [variance(kind) for kind in kinds]
    cells = np.unique(np.stack(kinds, 1), axis=0, return_inverse=True)[1].reshape(-1)
    together = sum(variances) - (len(variances) - 1) * variance(cells)
    # Two fitted rates cost two degrees of freedom.
    half = float(stats.t.ppf(0.5 + level / 2, fewest - 2)) * math.sqrt(max(*variances, together, 0.0))
    value = (a / n) / (b / m)
    low, high = value * math.exp(-half), value * math.exp(half)
    return Estimate(value, low, high, n + m, "log ratio, between clusters", level)


def confirmed_ratio(
    hits: np.ndarray, levels: np.ndarray, others: Sequence[np.ndarray], level: float = LEVEL
) -> Estimate:
    """Return how many times as likely hits are at the best of ``levels``, chosen and measured on separate runs.

    ``others`` are the labels of the factors that ``levels`` is crossed with. The level is chosen on one half
    of the levels of each of them and measured on the other half, for all pairs of halves. So the runs for
    choosing and for measuring share nothing but the level. If they shared a seed of another factor, a lucky
    combination with that seed would count as a lucky level.

    Raises:
        NotEnoughData: as :func:`clustered_ratio`.
    """
    codes = [np.unique(other, return_inverse=True)[1] for other in others]
    sides = np.stack([code % 2 for code in codes], 1)
    chosen, measured = np.zeros(len(hits), dtype=bool), np.zeros(len(hits), dtype=bool)
    for side in np.unique(sides, axis=0):
        pick, measure = (sides == side).all(1), (sides == 1 - side).all(1)
        rates = {value: hits[pick & (levels == value)].mean() for value in np.unique(levels[pick])}
        best = max(sorted(rates), key=lambda value: rates[value])
        measured |= measure
        chosen |= measure & (levels == best)
    return clustered_ratio(hits[measured], chosen[measured], [code[measured] for code in codes], level)
