"""Is a seed's speed a property of the seed? Scores over repeated conditions, against chance.

``values`` is a table (units, conditions): the outcome (smaller is faster) of each
candidate seed under each condition, NaN where it was not run. Ranks are taken inside
each condition, so conditions may differ in level.

Sources: Friedman 1937 (ranks in blocks); Benjamini and Hochberg 1995.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.multiplicity import benjamini_hochberg

Floats = NDArray[np.float64]

FLAT = 1e-12
"""Variance of scores between 0 and 1 below which all are equal, but for rounding."""


@dataclass(frozen=True)
class Repeatability:
    """Scores of the candidates: 1 always the fastest, 0.5 what chance gives, 0 always the slowest."""

    scores: Floats
    p: Floats
    """One-sided: how often chance gives a score at least this high."""
    q: Floats
    """After Benjamini-Hochberg over all candidates."""
    agreement: Estimate
    """Mean rank correlation between two conditions: 0 chance, 1 a property of the seed alone."""
    agreement_p: float
    conditions: int


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


def _agreement(scores: Floats) -> float:
    """Return the mean correlation of scores over pairs of conditions, each over the units they share (three or more).

    All pairs at once: products with the mask give every pair's counts and sums.
    """
    here = np.isfinite(scores)
    x, mask = np.where(here, scores, 0.0), here.astype(float)
    shared = mask.T @ mask
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = x.T @ mask / shared  # [a, b]: mean of a over the units that a and b share
        variance = (x**2).T @ mask / shared - mean**2
        correlation = (x.T @ x / shared - mean * mean.T) / np.sqrt(variance * variance.T)
    counted = (shared >= 3) & (variance > FLAT) & (variance.T > FLAT)
    counted &= np.triu(np.ones_like(counted), 1)
    return float(correlation[counted].mean()) if counted.any() else 0.0


def repeatability(values: Floats, rng: np.random.Generator, draws: int = 1000, level: float = LEVEL) -> Repeatability:
    """Score every unit over its conditions; the null distribution shuffles units inside each condition.

    Raises:
        NotEnoughData: fewer than five units, or fewer than two conditions that share them.
    """
    scores = rank_scores(values)
    if values.shape[0] < 5 or (np.isfinite(scores).sum(0) >= 5).sum() < 2:
        raise NotEnoughData("at least five candidate seeds, each run under at least two conditions")
    keep = np.isfinite(scores).sum(0) >= 2
    scores = scores[:, keep]
    mean = np.nanmean(scores, 1)
    null = np.empty((draws, len(mean)))
    null_agreement = np.empty(draws)
    for d in range(draws):
        shuffled = _shuffled(scores, rng)
        null[d] = np.nanmean(shuffled, 1)
        null_agreement[d] = _agreement(shuffled)
    p = (1 + (null >= mean - 1e-12).sum(0)) / (1 + draws)
    observed = _agreement(scores)
    boot = np.array([_agreement(scores[rng.integers(0, len(mean), len(mean))]) for _ in range(min(draws, 400))])
    tail = (1 - level) / 2
    low, high = np.quantile(boot, [tail, 1 - tail])
    return Repeatability(
        mean,
        p,
        benjamini_hochberg(p),
        Estimate(observed, min(observed, float(low)), max(observed, float(high)), len(mean), "bootstrap over seeds"),
        float((1 + (null_agreement >= observed - 1e-12).sum()) / (1 + draws)),
        scores.shape[1],
    )


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
    boot = np.array([np.mean(rng.choice(confirmed, len(confirmed))) for _ in range(draws)])
    tail = (1 - level) / 2
    low, high = np.quantile(boot, [tail, 1 - tail])
    return Confirmation(
        float(np.mean(found)),
        Estimate(value, min(value, float(low)), max(value, float(high)), len(confirmed), "bootstrap, cross-fitted"),
        float((1 + (null >= value - 1e-12).sum()) / (1 + draws)),
        top,
    )


def _row_mean(scores: Floats) -> Floats:
    count = np.isfinite(scores).sum(1)
    total = np.where(np.isfinite(scores), scores, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
