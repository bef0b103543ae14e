"""Who will be super, told early: AUROC, cross-validated scores, and what a screen misses.

Sources: DeLong, DeLong and Clarke-Pearson 1988 (variance of the AUROC); le Cessie and
van Houwelingen 1992 (ridge in logistic regression).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.proportions import wilson

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FEWEST: Final = 10
"""Hits, and misses, below which no prediction is judged."""
MOST_REPEATS: Final = 5
"""Ways to cut the folds, at most: over them the mean has less noise."""
REPEATED_RUNS: Final = 1500
"""Ways times runs, at most: with many runs one way does."""


def _enough(labels: Flags) -> None:
    hits = int(labels.sum())
    if min(hits, len(labels) - hits) < FEWEST:
        raise NotEnoughData(
            f"at least {FEWEST} seeds of either kind to learn from (seen: {hits} and {len(labels) - hits})"
        )


def auroc(scores: Floats, labels: Flags, level: float = LEVEL) -> Estimate:
    """Return the chance that a hit scores higher than a miss, with DeLong's interval on the logit scale.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` hits or misses.
    """
    _enough(labels)
    value, se = _delong(scores, labels)
    return _on_logit(value, se, labels, "DeLong", level)


def _delong(scores: Floats, labels: Flags) -> tuple[float, float]:
    """Return the AUROC and its standard error over runs."""
    hits, misses = scores[labels], scores[~labels]
    m, n = len(hits), len(misses)
    ranks = stats.rankdata(np.concatenate([hits, misses]))
    v_hits = (ranks[:m] - stats.rankdata(hits)) / n
    v_misses = 1 - (ranks[m:] - stats.rankdata(misses)) / m
    return float(v_hits.mean()), math.sqrt(float(v_hits.var(ddof=1)) / m + float(v_misses.var(ddof=1)) / n)


def _on_logit(value: float, se: float, labels: Flags, method: str, level: float, freedom: float = math.inf) -> Estimate:
    n = len(labels)
    if not 0 < value < 1 or se == 0:
        # Perfect separation has no variance to see: what so many pairs of seeds allow at this level.
        fewest = min(int(labels.sum()), int((~labels).sum()))
        slack = 1 - ((1 - level) / 2) ** (1 / fewest)
        return Estimate(value, max(0.0, value - slack), min(1.0, value + slack), n, "exact bound", level)
    half = float(stats.t.ppf(0.5 + level / 2, freedom)) * se / (value * (1 - value))
    centre = float(special.logit(value))
    low, high = float(special.expit(centre - half)), float(special.expit(centre + half))
    return Estimate(value, low, high, n, method, level)


def folds(labels: Flags, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a fold number per run, hits and misses spread evenly over folds."""
    fold = np.empty(len(labels), dtype=np.int64)
    for kind in (True, False):
        where = np.flatnonzero(labels == kind)
        fold[rng.permutation(where)] = np.arange(len(where)) % k
    return fold


def fit_logistic(x: Floats, labels: Flags, ridge: float = 1.0, iterations: int = 50) -> Floats:
    """Return weights (1 + features) of a ridge logistic regression on standardised ``x``; the first is the offset."""
    design = np.column_stack([np.ones(len(x)), x])
    penalty = np.diag([1e-8, *[ridge] * x.shape[1]])
    weights = np.zeros(design.shape[1])
    for _ in range(iterations):
        p = special.expit(design @ weights)
        gradient = design.T @ (labels - p) - penalty @ weights
        hessian = (design * (p * (1 - p))[:, None]).T @ design + penalty
        step = np.linalg.solve(hessian, gradient)
        weights = weights + step / max(1.0, float(np.abs(step).max()) / 4)
        if float(np.abs(step).max()) < 1e-8:
            break
    return weights


@dataclass(frozen=True, slots=True)
class OutOfFold:
    """Scores of runs by models that have not seen them."""

    scores: Floats
    """(n,) mean rank of each run within its folds, 0 to 1."""
    concordance: float
    """Chance that a hit scores higher than a miss of the same fold: the AUROC, one half for labels that mean nothing.

    Pairs of different folds were scored by models that have learnt from each other's labels: counted with
    the rest, they put meaningless labels below one half.
    """


def cross_validated(x: Floats, labels: Flags, rng: np.random.Generator, k: int = 5) -> OutOfFold:
    """Return out-of-fold scores of a logistic regression, over several ways to cut ``k`` folds where n is small.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` hits or misses.
    """
    _enough(labels)
    repeats = max(1, min(MOST_REPEATS, REPEATED_RUNS // len(labels)))
    scores, higher, pairs = np.zeros(len(labels)), 0.0, 0
    for _ in range(repeats):
        fold = folds(labels, k, rng)
        for f in range(k):
            train, test = fold != f, fold == f
            mean, sd = x[train].mean(0), x[train].std(0)
            sd = np.where(sd > 0, sd, 1.0)
            weights = fit_logistic((x[train] - mean) / sd, labels[train])
            ranks = stats.rankdata(((x[test] - mean) / sd) @ weights[1:])
            hit = labels[test]
            m, n = int(hit.sum()), int((~hit).sum())
            higher, pairs = higher + float(ranks[hit].sum()) - m * (m + 1) / 2, pairs + m * n
            scores[test] += (ranks - 0.5) / (m + n) / repeats
    return OutOfFold(scores, higher / pairs)


def cross_validated_auroc(
    out: OutOfFold, labels: Flags, widen: float = 1.0, shuffles: float = math.inf, level: float = LEVEL
) -> Estimate:
    """Return the concordance within folds with DeLong's interval on the logit scale.

    ``widen`` multiplies the standard error, for scores that were learnt: the root of the mean of
    :func:`cross_validation_noise` over so many ``shuffles``. A few of them tell a variance roughly, so the
    interval is Student's with as many degrees of freedom.
    """
    _, se = _delong(out.scores, labels)
    return _on_logit(out.concordance, widen * se, labels, "DeLong, widened for cross-validation", level, shuffles)


def cross_validation_noise(x: Floats, labels: Flags, rng: np.random.Generator, draws: int = 10, k: int = 5) -> Floats:
    """Return how far the concordance strays from one half under shuffled labels: squared, over DeLong's variance.

    The scores come from ``k`` fitted models whose noise the variance over runs does not
    hold. The root of the mean of many such ratios (draws,) is the factor to widen by.
    Labels that luck has separated perfectly show no variance; theirs is Mann and Whitney's.
    """
    m, n = int(labels.sum()), int((~labels).sum())
    chance = math.sqrt((m + n + 1) / (12 * m * n))
    noise = np.empty(draws)
    for d in range(draws):
        shuffled = rng.permutation(labels)
        null = cross_validated(x, shuffled, rng, k)
        noise[d] = ((null.concordance - 0.5) / (_delong(null.scores, shuffled)[1] or chance)) ** 2
    return noise


@dataclass(frozen=True, slots=True)
class Screen:
    """A two-stage search: train all seeds to ``step``, go on only with the most promising share."""

    step: int
    kept: float
    missed: Estimate
    """Share of the hits that the screen throws away."""
    cost: float
    """Steps trained with the screen over steps trained without."""


def screened(scores: Floats, labels: Flags, keep: float, step: int, lengths: Floats) -> tuple[int, float]:
    """Return how many hits keeping the top share ``keep`` by ``scores`` misses, and its cost (1: without a screen).

    ``lengths`` (n,) are the steps that each run takes without a screen.
    """
    n = max(1, round(keep * len(scores)))
    kept = np.zeros(len(scores), dtype=bool)
    kept[np.argsort(-scores, kind="stable")[:n]] = True
    steps = np.where(kept, lengths, np.minimum(lengths, step))
    return int((labels & ~kept).sum()), float(steps.sum() / lengths.sum())


def screen(scores: Floats, labels: Flags, keep: float, step: int, lengths: Floats) -> Screen:
    """Return what keeping the top share ``keep`` by ``scores`` (from out of fold) misses, and its cost.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` hits or misses.
    """
    _enough(labels)
    missed, cost = screened(scores, labels, keep, step, lengths)
    n = max(1, round(keep * len(scores)))
    return Screen(step, n / len(scores), wilson(missed, int(labels.sum())), cost)


def spearman(x: Floats, y: Floats, level: float = LEVEL) -> Estimate:
    """Return the rank correlation with its interval (Fisher z, Bonett and Wright 2000).

    Raises:
        NotEnoughData: fewer than ten pairs, or one of them constant.
    """
    if len(x) < 10 or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise NotEnoughData(f"at least ten pairs of differing values (seen: {len(x)})")
    r = float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
    half = float(special.ndtri(0.5 + level / 2)) * math.sqrt((1 + r * r / 2) / (len(x) - 3))
    centre = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return Estimate(r, math.tanh(centre - half), math.tanh(centre + half), len(x), "Fisher z", level)
