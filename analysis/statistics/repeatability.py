"""Is a seed's speed a property of the seed? Scores over repeated conditions, against chance.

``values`` is a table (units, conditions): the outcome (smaller is faster) of each
candidate seed under each condition, NaN where it was not run. Ranks are taken inside
each condition, so conditions may differ in level.

Sources: Friedman 1937 (ranks in blocks); Benjamini and Hochberg 1995; Efron and Tibshirani
1993 (delete-a-group jackknife); Cameron, Gelbach and Miller 2011 (multi-way clustering);
Kish 1965 (design effect).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.multiplicity import benjamini_hochberg

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

FLAT: Final = 1e-12
"""Variance of scores between 0 and 1 below which all are equal, but for rounding."""
GROUPS: Final = 40
"""Groups of units that the jackknife leaves out in turn, at most."""


@dataclass(frozen=True)
class Repeatability:
    """Scores of the candidates: 1 always the fastest, 0.5 what chance gives, 0 always the slowest."""

    scores: Floats
    p: Floats
    """One-sided: how often a candidate that is no faster than the typical one scores at least this high."""
    q: Floats
    """After Benjamini-Hochberg over all candidates."""
    chance: Floats
    """What chance gives as the best score, the second best, ...: means over shuffled tables."""
    agreement: Estimate
    """Mean rank correlation between two conditions: 0 chance, 1 a property of the seed alone."""
    agreement_p: float
    conditions: int
    """Conditions in all."""
    per_unit: float
    """Median number of conditions that a candidate was run under."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The best seeds of one half of the conditions, measured on the other half."""

    found: float
    """Mean score where they were picked: flattered by the winner's curse."""
    confirmed: Estimate
    """Mean score where they were not."""
    p: float
    """One-sided, under no repeatability at all."""
    picked: int


def rank_scores(values: Floats) -> Floats:
    """Return each unit's rank score inside each condition: 1 fastest, 0 slowest, ties shared; NaN stays."""
    scores = np.full(values.shape, np.nan)
    for c in range(values.shape[1]):
        here = np.isfinite(values[:, c])
        n = int(here.sum())
        if n > 1:
            scores[here, c] = 1 - (stats.rankdata(values[here, c]) - 1) / (n - 1)
    return scores


def _shuffled(scores: Floats, rng: np.random.Generator) -> Floats:
    if np.isfinite(scores).all():
        return rng.permuted(scores, axis=0)
    out = scores.copy()
    for c in range(scores.shape[1]):
        here = np.flatnonzero(np.isfinite(scores[:, c]))
        out[here, c] = scores[rng.permutation(here), c]
    return out


def _agreement(scores: Floats, counted: Flags | None = None) -> float:
    """Return the mean correlation of scores over pairs of conditions, each over the units they share (three or more).

    ``counted`` (conditions, conditions) says which pairs count. All pairs at once: products
    with the mask give every pair's counts and sums.
    """
    here = np.isfinite(scores)
    x, mask = np.where(here, scores, 0.0), here.astype(float)
    shared = mask.T @ mask
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = x.T @ mask / shared  # [a, b]: mean of a over the units that a and b share
        variance = (x**2).T @ mask / shared - mean**2
        correlation = (x.T @ x / shared - mean * mean.T) / np.sqrt(variance * variance.T)
    usable = (shared >= 3) & (variance > FLAT) & (variance.T > FLAT)
    usable &= np.triu(np.ones_like(usable), 1)
    if counted is not None:
        usable &= counted
    return float(correlation[usable].mean()) if usable.any() else 0.0


def repeatability(
    values: Floats,
    rng: np.random.Generator,
    draws: int = 200,
    level: float = LEVEL,
    related: Flags | None = None,
    clusters: Sequence[Ints] = (),
) -> Repeatability:
    """Score every unit over its conditions.

    A candidate's p-value asks whether its expected score is above 0.5, given how much
    scores move between repeats; that spread is pooled over all candidates, so two repeats of
    each are enough where there are many. The p-value of the agreement comes from shuffling
    units inside each condition.

    ``related`` (conditions, conditions) marks pairs of conditions that have another seed in
    common. Such a pair agrees also where the unit matters only together with that seed, so
    it does not count for the agreement, and the candidates' p-values allow for what these
    pairs agree more than unrelated ones (the design effect of their mean). ``clusters``
    (each units,) says which units have a seed in common, for the interval of the agreement.

    Raises:
        NotEnoughData: fewer than five units, or no two unrelated conditions that share five of them.
    """
    scores = rank_scores(values)
    if values.shape[0] < 5 or (np.isfinite(scores).sum(0) >= 5).sum() < 2:
        raise NotEnoughData("at least five candidate seeds, each run under at least two conditions")
    keep = np.isfinite(scores).sum(0) >= 2
    scores = scores[:, keep]
    here = np.isfinite(scores)
    apart = None
    if related is not None:
        related = related[np.ix_(keep, keep)]
        apart = ~related
        overlap = here.astype(float).T @ here >= 5
        if not (np.triu(overlap, 1) & apart).any():
            raise NotEnoughData("conditions that differ in every other seed, five candidates in common")
    mean = _row_mean(scores)
    observed = _agreement(scores, apart)
    p = _faster(scores, 0.0 if related is None else _agreement(scores, related) - max(observed, 0.0), related)
    shuffled = [_shuffled(scores, rng) for _ in range(draws)]
    null = np.array([_agreement(s, apart) for s in shuffled])
    # With few units the jackknife is noisy: chance's own spread, which shrinks as for any correlation, is the floor.
    floor = float(null.std()) * (1 - observed**2)
    low, high = _jackknife(scores, apart, observed, [np.arange(len(mean)), *clusters], floor, rng, level)
    return Repeatability(
        mean,
        p,
        benjamini_hochberg(p),
        np.mean([np.sort(_row_mean(s))[::-1] for s in shuffled], axis=0),
        Estimate(observed, min(observed, low), max(observed, high), len(mean), "jackknife over seeds", level),
        float((1 + (null >= observed - 1e-12).sum()) / (1 + draws)),
        scores.shape[1],
        float(np.median(here.sum(1))),
    )


def _faster(scores: Floats, extra: float, related: Flags | None) -> Floats:
    """Return one-sided p-values (units,) that the expected score is 0.5, ``extra`` the correlation of related pairs."""
    here = np.isfinite(scores)
    count = here.sum(1)
    pairs = np.zeros(len(scores))
    if related is not None and extra > 0:
        pairs = ((here.astype(float) @ related) * here).sum(1)
    covariance = max(0.0, extra) * float(np.nanvar(scores, axis=0).mean())
    mean = _row_mean(scores)
    squares = np.where(here, (scores - mean[:, None]) ** 2, 0.0).sum()
    dof = float((count - 1).sum())
    # Scores that go together spread less inside a unit than they do over fresh conditions.
    inside = covariance * float((pairs / np.maximum(count * (count - 1), 1)).mean())
    finest = 1 / (12 * max(len(scores) - 1, 1) ** 2)  # equal ranks are known to half a rank only
    variance = max(squares / dof + inside, finest)
    spread = np.sqrt(variance / count + covariance * pairs / count**2)
    return np.asarray(stats.t.sf((mean - 0.5) / spread, dof))


def _jackknife(
    scores: Floats,
    apart: Flags | None,
    observed: float,
    clusterings: Sequence[Ints],
    floor: float,
    rng: np.random.Generator,
    level: float,
) -> tuple[float, float]:
    """Return the interval of the agreement; units that share a seed go out together (multi-way clustering)."""
    variances, fewest = [], len(scores)
    for labels in clusterings:
        _, group = np.unique(labels, return_inverse=True)
        if int(group.max()) + 1 > GROUPS:
            group = (rng.permutation(int(group.max()) + 1) % GROUPS)[group]
        k = int(group.max()) + 1
        if k < 2:
            continue
        left = np.array([_agreement(scores[group != g], apart) for g in range(k)])
        pseudo = k * observed - (k - 1) * left
        variances.append(float(pseudo.var(ddof=1)) / k)
        fewest = min(fewest, k)
    by_unit = variances[0]
    variance = max(*variances, sum(variances) - (len(variances) - 1) * by_unit) if len(variances) > 1 else by_unit
    half = float(stats.t.ppf(0.5 + level / 2, fewest - 1)) * max(floor, float(np.sqrt(variance)))
    return max(-1.0, observed - half), min(1.0, observed + half)


def confirm(
    values: Floats, top: int, rng: np.random.Generator, draws: int = 1000, level: float = LEVEL
) -> Confirmation:
    """Pick the ``top`` best units on half of the conditions, measure them on the other; both ways round, averaged.

    Raises:
        NotEnoughData: fewer than two conditions, or no more units than are picked.
    """
    scores = rank_scores(values)
    scores = scores[:, np.isfinite(scores).sum(0) >= 2]
    if scores.shape[1] < 2 or len(scores) <= top:
        raise NotEnoughData(f"at least two conditions and more than {top} candidates")
    halves = [scores[:, 0::2], scores[:, 1::2]]

    def cross(a: Floats, b: Floats, pick: int) -> tuple[list[float], list[float]]:
        with np.errstate(invalid="ignore"):
            first, second = _row_mean(a), _row_mean(b)
        both = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
        best = both[np.argsort(-first[both], kind="stable")[:pick]]
        return first[best].tolist(), second[best].tolist()

    found, confirmed = [], []
    for a, b in (halves, halves[::-1]):
        f, c = cross(a, b, top)
        found += f
        confirmed += c
    if not confirmed:
        raise NotEnoughData("candidates that were run under conditions of both halves")
    value = float(np.mean(confirmed))
    null = np.empty(draws)
    for d in range(draws):
        shuffled = _shuffled(scores, rng)
        other = [x for a, b in ((0, 1), (1, 0)) for x in cross(shuffled[:, a::2], shuffled[:, b::2], top)[1]]
        null[d] = np.mean(other) if other else 0.5
    # Both ways round mostly the same candidates are picked: there are ``top`` of them to go by, not twice as many.
    half = float(stats.t.ppf(0.5 + level / 2, max(1, top - 1))) * float(np.std(confirmed, ddof=1)) / float(np.sqrt(top))
    interval = Estimate(
        value, max(0.0, value - half), min(1.0, value + half), len(confirmed), "t over the picked", level
    )
    return Confirmation(
        float(np.mean(found)),
        interval,
        float((1 + (null >= value - 1e-12).sum()) / (1 + draws)),
        top,
    )


def _row_mean(scores: Floats) -> Floats:
    count = np.isfinite(scores).sum(1)
    total = np.where(np.isfinite(scores), scores, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
