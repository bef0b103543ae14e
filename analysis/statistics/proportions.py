"""Shares with intervals, comparisons of two shares, paired differences, and the number of seeds for a width.

Sources: Wilson 1927; Clopper and Pearson 1934; Donner and Zou 2012 (ratio); Brown, Cai and DasGupta 2001
(choice of the interval); Robbins 1970 and Howard et al. 2021 (confidence sequence); Westfall and Young 1993 (many
groups).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy import optimize, special, stats
from statsmodels.stats.proportion import confint_proportions_2indep

from grok.analysis.statistics.estimate import LEVEL, Estimate, Labels, NotEnoughData, student

RARE: Final = 5
"""Below this number of hits or of misses a share has the exact interval."""


@functools.lru_cache(maxsize=10_000, typed=True)
def share(hits: int, n: int, rare: float = RARE) -> Estimate:
    """Return ``hits / n`` with the exact interval if hits or misses are below ``rare``, else with Wilson's.

    Raises:
        NotEnoughData: ``n`` is 0.
    """
    if n < 1:
        raise NotEnoughData("at least one run to take a share of")
    exact = min(hits, n - hits) < rare
    # against its own share the test itself, which nobody asks for, takes no search
    ends = stats.binomtest(hits, n, hits / n).proportion_ci(LEVEL, "exact" if exact else "wilson")
    return Estimate(hits / n, float(ends.low), float(ends.high), n, "Clopper-Pearson" if exact else "Wilson")


def clopper_pearson(hits: int, n: int) -> Estimate:
    """Return ``hits / n`` with the exact interval: coverage never below ``LEVEL``."""
    return share(hits, n, math.inf)


def at_any_time(hits: int, n: int) -> Estimate:
    """Return ``hits / n`` with an interval that holds at every n at once, as a store grows.

    Whoever looks after every run, and stops when the interval says what was hoped for, is wrong in at most
    1 - ``LEVEL`` of cases; `share` holds for an n that was fixed beforehand. A rate is outside if the counts are
    1 / (1 - ``LEVEL``) times as likely under a mixture of all rates (Beta(1/2, 1/2)) as under it: the ratio is a
    martingale at the true rate.
    """
    mixed = special.betaln(hits + 0.5, n - hits + 0.5) - special.betaln(0.5, 0.5) + math.log(1 - LEVEL)

    def beyond(rate: float) -> float:
        return float(mixed - special.xlogy(hits, rate) - special.xlog1py(n - hits, -rate))

    seen = hits / n
    low = 0.0 if beyond(0.0) <= 0 else float(optimize.brentq(beyond, 0.0 if not hits else 1e-300, seen))
    high = 1.0 if beyond(1.0) <= 0 else float(optimize.brentq(beyond, seen, 1.0 if hits == n else 1 - 1e-16))
    return Estimate(seen, low, high, n, "confidence sequence")


def ratio(hits_a: int, n_a: int, hits_b: int, n_b: int) -> Estimate:
    """Return share a divided by share b, with the interval that Donner and Zou make of both intervals.

    Without a hit the other end of the interval is 0 or infinite.

    Raises:
        NotEnoughData: neither group has a hit.
    """
    if hits_a == hits_b == 0:
        raise NotEnoughData("at least one hit in either group to compare rates")
    a, b = share(hits_a, n_a), share(hits_b, n_b)
    product = a.value * b.value
    (least_a, most_a), (least_b, most_b) = ([end * (2 * e.value - end) for end in (e.low, e.high)] for e in (a, b))
    low = least_a / (product + math.sqrt(max(0.0, product**2 - least_a * most_b))) if hits_a else 0.0
    high = (product + math.sqrt(max(0.0, product**2 - most_a * least_b))) / least_b if hits_b else math.inf
    return Estimate(a.value / b.value if hits_b else math.inf, low, high, n_a + n_b, "Donner and Zou")


def fisher(
    one: tuple[int, int], other: tuple[int, int], *, side: Literal["two-sided", "greater"] = "two-sided"
) -> float:
    """Return the p-value of Fisher's exact test that two groups, of (hits, runs) each, have one rate.

    ``greater``: that the rate of ``one`` is not above that of ``other``.
    """
    return float(stats.fisher_exact(np.array([[k, n - k] for k, n in (one, other)]), side).pvalue)


def alike(one: tuple[int, int], other: tuple[int, int]) -> float | None:
    """Return :func:`fisher` of two groups; None if they are so small that no hits of theirs could tell them apart."""
    least = fisher((one[1], one[1]), (0, other[1]))
    return fisher(one, other) if least <= 1 - LEVEL else None


def difference(hits_a: int, n_a: int, hits_b: int, n_b: int) -> Estimate:
    """Return share b minus share a of independent groups, with Newcombe's interval."""
    low, high = confint_proportions_2indep(hits_b, n_b, hits_a, n_a, "newcomb", "diff", alpha=1 - LEVEL)
    return Estimate(hits_b / n_b - hits_a / n_a, float(low), float(high), n_a + n_b, "Newcombe")


@dataclass(frozen=True)
class Heterogeneity:
    """Test that an outcome is alike in all groups, by its ranks, with permutation p-values."""

    p: float
    p_of: dict[int, float]
    """Two-sided p-value of each group: that its outcomes equal those of the others."""
    groups: int
    n: int


def heterogeneity(
    values: np.ndarray,
    groups: np.ndarray,
    rng: np.random.Generator,
    draws: int = 1000,
    blocks: Sequence[np.ndarray] = (),
) -> Heterogeneity:
    """Test whether ``values`` (n,), by their ranks, are alike in all ``groups`` (n,) (integer labels).

    Values are true or false, or numbers: their ranks lose nothing to a threshold.
    The null distribution permutes the values over all runs, so the test is valid for rare hits.
    In a crossed design the runs of one group at one level of another factor are not independent
    (an interaction), so only such units may be permuted. Each of ``blocks`` (n,) gives the levels of
    one such factor: within each level the groups that it has are permuted as wholes, and only what
    differs within levels counts. With several factors, p is the largest of theirs.

    Raises:
        NotEnoughData: there is only one group, all values are equal, or no level of a block has two groups.
    """
    names, group = np.unique(groups, return_inverse=True)
    n, k = len(values), len(names)
    if k < 2 or np.ptp(values.astype(np.float64)) == 0:
        raise NotEnoughData("two groups or more, and hits as well as misses")
    ranks = stats.rankdata(values)
    ranks = (ranks - ranks.mean()) / ranks.std()

    def deviations(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        return np.asarray(sums / np.sqrt(np.maximum(sizes, 1)))

    sizes = np.bincount(group, minlength=k)
    observed = deviations(np.bincount(group, weights=ranks, minlength=k), sizes)
    p, p_of = 0.0, np.zeros(k)
    for block in blocks or (None,):
        if block is None:
            shuffled = (rng.permutation(ranks) for _ in range(draws))
            null = np.stack([deviations(np.bincount(group, weights=r, minlength=k), sizes) for r in shuffled])
        else:
            names_of, place = np.unique(block, return_inverse=True)
            unit, shape = place * k + group, (1, len(names_of), k)
            within = ranks - (np.bincount(place, ranks) / np.bincount(place))[place]
            cells = [np.bincount(unit, w, len(names_of) * k).reshape(shape) for w in (within, None)]
            told = (cells[1] > 0).sum(2)[0] > 1  # a level with one group tells nothing
            if not told.any():
                raise NotEnoughData("runs of two groups that agree in all else")
            cells = [cell[:, told] for cell in cells]
            absent = cells[1] == 0
            moved = np.empty((draws, *absent.shape[1:]), dtype=np.int64)  # the cell that takes each group's place
            order = np.argsort(rng.random(moved.shape) + absent, axis=2)
            np.put_along_axis(moved, np.argsort(absent, axis=2, kind="stable"), order, 2)
            null = deviations(*(np.take_along_axis(cell, moved, 2).sum(1) for cell in cells))
            observed = deviations(*(cell.sum(1)[0] for cell in cells))
        statistic = float((observed**2).sum())
        p = max(p, (1 + int(((null**2).sum(1) >= statistic - 1e-9).sum())) / (1 + draws))
        # In their own standard deviations the groups' deviations have nearly one null distribution: pooling them
        # resolves small p-values.
        scale = np.maximum(null.std(0), 1e-9)
        pooled = np.sort(np.abs(null / scale).reshape(-1))
        beyond = len(pooled) - np.searchsorted(pooled, np.abs(observed / scale) - 1e-9)
        p_of = np.maximum(p_of, (1 + beyond) / (1 + len(pooled)))
    return Heterogeneity(p, {int(g): float(v) for g, v in zip(names, p_of, strict=True)}, k, n)


@dataclass(frozen=True)
class Unequal:
    """Test that several groups of runs have one rate of a rare outcome."""

    p: float
    """p-value that all groups have one rate."""
    p_of: tuple[float, ...]
    """p-value of each group that its rate is that of all others, corrected for the number of groups."""
    shares: tuple[Estimate, ...]
    """Share of each group."""


def unequal_rates(hits: Sequence[int], runs: Sequence[int], rng: np.random.Generator, draws: int = 9999) -> Unequal:
    """Test whether groups of runs, such as devices or commits, have one rate of an outcome, however rare.

    Each group is held against all others by Fisher's exact test. The smallest p-value, and each group's, is corrected
    for the number of groups by the smallest p-values of counts that are drawn at random with the same totals (Westfall
    and Young). Of two groups the p-value is Fisher's.

    Args:
        hits: number of runs with the outcome in each group.
        runs: number of runs in each group.
        rng: for the drawn counts.
        draws: number of drawn tables, which bounds p from below by 1 / (draws + 1).

    Raises:
        NotEnoughData: fewer than two groups with runs, or all runs have the outcome, or none has.
    """
    counts, sizes = np.asarray(hits), np.asarray(runs)
    total, n = int(counts.sum()), int(sizes.sum())
    if len(sizes) < 2 or sizes.min() < 1 or total in (0, n):
        raise NotEnoughData("two groups of runs or more, and runs with the outcome as well as without")

    def fisher(size: int) -> np.ndarray:
        """Return the two-sided p-value of each number of hits of a group."""
        mass = stats.hypergeom.pmf(np.arange(total + 1), n, total, size)
        order = np.argsort(mass, kind="stable")
        below = np.searchsorted(mass[order], mass * (1 + 1e-7), "right")
        return np.asarray(np.minimum(np.concatenate([[0.0], np.cumsum(mass[order])])[below], 1.0))

    tables = {int(size): fisher(int(size)) for size in np.unique(sizes)}
    alone = np.array([tables[int(size)][k] for size, k in zip(sizes, counts, strict=True)])
    if len(sizes) == 2:
        adjusted = alone
    else:
        drawn = rng.multivariate_hypergeometric(sizes, total, draws, method="marginals")
        least = np.min([tables[int(size)][column] for size, column in zip(sizes, drawn.T, strict=True)], axis=0)
        adjusted = (1 + (least[:, None] <= alone * (1 + 1e-7)).sum(0)) / (1 + draws)
    shares = tuple(share(int(k), int(size)) for k, size in zip(counts, sizes, strict=True))
    return Unequal(float(adjusted.min()), tuple(adjusted.tolist()), shares)


def clustered_ratio(hits: np.ndarray, chosen: np.ndarray, clusterings: Labels) -> Estimate:
    """Return the rate of boolean ``hits`` among the ``chosen`` runs divided by the rate among the others.

    The interval is on the log scale, by linearisation, from the spread between clusters of dependent
    runs (`student`). Each of ``clusterings`` (n,) labels the runs by one factor that they can share.

    Raises:
        NotEnoughData: a clustering has fewer than four clusters, a group has no hit, or no cluster differs.
    """
    fewest = min(len(np.unique(labels)) for labels in clusterings)
    a, b = int(hits[chosen].sum()), int(hits[~chosen].sum())
    if fewest < 4 or not a or not b:
        raise NotEnoughData("hits in both groups, and four seeds or more to see their spread over")
    n, m = int(chosen.sum()), int((~chosen).sum())
    # Influence of one run on log(rate): (hit - rate) / (rate n).
    labels = [np.concatenate([kind[chosen], kind[~chosen]]) for kind in clusterings]
    _, error, freedom = student(hits[chosen] * n / a, hits[~chosen] * m / b, labels)
    if error < 1e-9:
        raise NotEnoughData("seeds whose rates differ, to see their spread")
    half, value = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * error, (a / n) / (b / m)
    low, high = value * math.exp(-half), value * math.exp(half)
    return Estimate(value, low, high, n + m, "log ratio, between clusters")


def confirmed_ratio(hits: np.ndarray, levels: np.ndarray, others: Sequence[np.ndarray]) -> Estimate:
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
    return clustered_ratio(hits[measured], chosen[measured], [code[measured] for code in codes])


# Two settings on the same seeds: the difference of their shares (Bonett and Price 2012).


def paired_difference(lost: int, won: int, n: int) -> Estimate:
    """Return the difference of two shares of the same ``n`` seeds, won minus lost, with Bonett and Price's interval."""
    p_lost, p_won = (lost + 1) / (n + 2), (won + 1) / (n + 2)
    middle = p_won - p_lost
    half = float(stats.norm.ppf(0.5 + LEVEL / 2)) * math.sqrt((p_won + p_lost - middle**2) / (n + 2))
    return Estimate((won - lost) / n, max(-1.0, middle - half), min(1.0, middle + half), n, "Bonett-Price")
