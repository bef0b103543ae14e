"""Do fast seeds stay fast? Rank correlation between conditions, over seeds not selected for their speed.

``values`` is an array (units, conditions): the outcome (smaller is faster) of each seed under
each condition, NaN if it was not run. Ranks are taken within each condition, so conditions may
differ in their mean.

Source: Efron and Tibshirani 1993 (delete-a-group jackknife).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]

FLAT: Final = 1e-12
"""Variance of scores between 0 and 1 below which all are equal except for rounding."""
GROUPS: Final = 40
"""Largest number of groups of units for the jackknife."""


def rank_scores(values: Floats) -> Floats:
    """Return each unit's rank score within each condition: 1 fastest, 0 slowest, ties averaged; NaN stays NaN."""
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


def mean_correlation(scores: Floats) -> float:
    """Return the mean correlation of scores over pairs of conditions that share three units or more.

    Matrix products with the mask of finite scores give the counts and sums of all pairs at once.
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
    return float(correlation[usable].mean()) if usable.any() else 0.0


def agreement(values: Floats, rng: np.random.Generator, draws: int = 200, level: float = LEVEL) -> Estimate:
    """Return the mean rank correlation between two conditions: 0 for chance, 1 if only the seed decides.

    Raises:
        NotEnoughData: fewer than five units, or no two conditions that share five of them.
    """
    scores = rank_scores(values)
    if values.shape[0] < 5 or (np.isfinite(scores).sum(0) >= 5).sum() < 2:
        raise NotEnoughData("at least five candidate seeds, each run under at least two conditions")
    scores = scores[:, np.isfinite(scores).sum(0) >= 2]
    observed = mean_correlation(scores)
    # With few units the jackknife is noisy: the standard deviation under chance, times 1 - r^2, is its lower bound.
    null = np.array([mean_correlation(_shuffled(scores, rng)) for _ in range(draws)])
    low, high = _jackknife(scores, observed, float(null.std()) * (1 - observed**2), rng, level)
    return Estimate(observed, min(observed, low), max(observed, high), len(scores), "jackknife over seeds", level)


def _jackknife(
    scores: Floats, observed: float, floor: float, rng: np.random.Generator, level: float
) -> tuple[float, float]:
    """Return the interval of the agreement by a delete-a-group jackknife."""
    k = min(len(scores), GROUPS)
    group = rng.permutation(len(scores)) % k
    left = np.array([mean_correlation(scores[group != g]) for g in range(k)])
    pseudo = k * observed - (k - 1) * left
    half = float(stats.t.ppf(0.5 + level / 2, k - 1)) * max(floor, float(pseudo.std(ddof=1)) / float(np.sqrt(k)))
    return max(-1.0, observed - half), min(1.0, observed + half)
