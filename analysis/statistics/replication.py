"""Does a rare outcome of a seed repeat? Hits among repeats of candidates, compared with the rate of other seeds.

A candidate was chosen because of a hit. Its repeats are runs that played no part in the choice. If
the hit was chance, its repeats hit as often as other seeds do. The rate of other seeds is estimated
from a finite number of runs, so Fisher's exact test compares the two counts. Its p-value is valid for
one candidate, at any rate and for any number of runs.

Sources: Clopper and Pearson 1934; Fisher 1935; Benjamini and Hochberg 1995; Hoeffding 1956
(a sum of hits at different rates varies no more than one at their mean rate, so the exact
interval covers it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.multiplicity import benjamini_hochberg
from analysis.statistics.proportions import clopper_pearson

RATE: Final = 0.05
"""False-discovery rate of the verdicts about single candidates."""
MOST: Final = 0.5
"""Share of hits above which a candidate hits in most of its repeats."""

Counts = tuple[int, int]
"""Hits and runs."""


class Verdict(Enum):
    """Result of the repeats."""

    MOST = "most repeats"
    MORE = "more often than other seeds"
    NO_SIGN = "no sign of it"
    UNKNOWN = "too few repeats to tell"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate's repeats."""

    again: Estimate
    """Share of its repeats that hit, with the exact interval."""
    base: Estimate | None
    """Share of other seeds that hit; None if too few of them were run."""
    p_more: float | None
    """One-sided p-value of: it hits no more often than other seeds."""
    p_most: float
    """One-sided p-value of: it hits in no more than half of its repeats."""
    verdict: Verdict
    """MOST: it hits in most repeats. MORE: more often than other seeds. NO_SIGN: neither, and the interval excludes
    most repeats. Verdicts use p-values corrected for the number of candidates."""


@dataclass(frozen=True, slots=True)
class Replication:
    """The repeats of all candidates."""

    candidates: tuple[Candidate, ...]
    pooled: Estimate
    """Share of all repeats that hit; the interval is for these candidates."""
    mean: Estimate | None
    """Mean share over lines of descent; the interval is for the population of such candidates. None for one line."""
    verdict: Verdict
    """That of the single candidates. MORE also if none is called alone, but all together hit more often."""

    def count(self, *verdicts: Verdict) -> int:
        """Return how many candidates have one of these verdicts."""
        return sum(candidate.verdict in verdicts for candidate in self.candidates)


def mean_share(counts: Sequence[Counts], lines: Sequence[str] | None = None, level: float = LEVEL) -> Estimate:
    """Return the mean of the units' shares of hits, with an interval for the population of such units.

    The interval is Clopper and Pearson's for a number of independent runs that the scatter between units shows: all
    runs if units differ by chance alone, one run a unit if each hits always or never. Few units that hit show little
    of it: so one more unit's worth of evidence says the latter. Without it, units of which a tenth hits in most of its
    runs were missed: the interval held in 84 to 92% of such cases.

    Args:
        counts: each unit's hits and runs.
        lines: each unit's line of descent. Units of one line share streams, so together they are one draw, with
            their mean share. None: no two units are related.

    Raises:
        NotEnoughData: no unit.
    """
    if not counts:
        raise NotEnoughData("at least one repeated seed")
    shares = np.array([hits / runs for hits, runs in counts])
    draws = np.arange(len(shares)) if lines is None else np.asarray(lines)
    _, place, sizes = np.unique(draws, return_inverse=True, return_counts=True)
    n = len(sizes)
    means = np.bincount(place, shares) / sizes
    runs = np.bincount(place, [run for _, run in counts])
    value, fewest = float(means.mean()), float((1 / runs).mean())
    chance = value * (1 - value) * fewest
    most = 1 / fewest  # how many times the variance of units that differ by chance alone
    times = min(max(float(means.var(ddof=1)) / chance, 1.0), most) if n > 1 and chance > 0 else most
    seen = min(int((means > 0).sum()), int((means < 1).sum()))
    free = n / fewest / ((seen * times + most) / (seen + 1))
    total, tail = value * free, (1 - level) / 2
    low = float(stats.beta.ppf(tail, total, free - total + 1)) if total > 0 else 0.0
    high = float(stats.beta.isf(tail, total + 1, free - total)) if total < free else 1.0
    return Estimate(value, low, high, n, "exact, by the scatter between units", level)


def replication(
    counts: Sequence[Counts], bases: Sequence[Counts | None], lines: Sequence[str] | None = None
) -> Replication:
    """Compare each candidate's hits with those of other seeds.

    Args:
        counts: each candidate's hits and repeats.
        bases: the hits and runs of the other seeds that it is compared with; None: too few of them.
        lines: each candidate's line of descent, as in `mean_share`.

    Raises:
        NotEnoughData: no candidate.
    """
    if not counts:
        raise NotEnoughData("at least one repeated candidate")
    hits, runs = np.array(counts).T
    p_most = np.asarray(stats.binom.sf(hits - 1, runs, MOST)).tolist()
    p_more = [None if base is None else more_often(count, base) for count, base in zip(counts, bases, strict=True)]
    compared = np.array([p is not None for p in p_more])
    q_more = np.ones(len(counts))
    if compared.any():
        q_more[compared] = benjamini_hochberg([p for p in p_more if p is not None])
    q_most = benjamini_hochberg(p_most)
    others = {base: clopper_pearson(*base) for base in set(bases) if base is not None}
    candidates = []
    for i, (count, base) in enumerate(zip(counts, bases, strict=True)):
        again = clopper_pearson(*count)
        verdict = _verdict(again, base is not None, bool(q_more[i] <= RATE), bool(q_most[i] <= RATE))
        candidates.append(Candidate(again, others.get(base) if base else None, p_more[i], p_most[i], verdict))
    pooled = clopper_pearson(int(hits.sum()), int(runs.sum()))
    more = together_more_often(counts, bases) <= RATE
    related = len(counts) if lines is None else len(set(lines))
    mean = mean_share(counts, lines) if related > 1 else None
    return Replication(tuple(candidates), pooled, mean, _together(candidates, pooled, more))


def more_often(count: Counts, base: Counts) -> float:
    """Return the one-sided p-value of Fisher's exact test that the rate of ``count`` is not above that of ``base``."""
    (hits, runs), (other_hits, other_runs) = count, base
    return float(stats.hypergeom.sf(hits - 1, runs + other_runs, hits + other_hits, runs))


def together_more_often(counts: Sequence[Counts], bases: Sequence[Counts | None]) -> float:
    """Return the p-value that all candidates together hit no more often than the seeds that they are compared with.

    Many candidates with few repeats each can be clear together where none is alone. Candidates that are compared with
    the same seeds are one test; of several tests the smallest p-value counts, corrected for their number. 1 without
    seeds for comparison.
    """
    others = {base for base in bases if base is not None}
    p = [1.0]
    for base in others:
        mine = np.array([count for count, other in zip(counts, bases, strict=True) if other == base])
        p.append(len(others) * more_often((int(mine[:, 0].sum()), int(mine[:, 1].sum())), base))
    return min(p)


def _verdict(again: Estimate, has_base: bool, more: bool, most: bool) -> Verdict:
    if most and (more or not has_base):
        return Verdict.MOST
    if more:
        return Verdict.MORE
    return Verdict.NO_SIGN if again.high <= MOST else Verdict.UNKNOWN


def _together(candidates: Sequence[Candidate], pooled: Estimate, more: bool) -> Verdict:
    verdicts = [candidate.verdict for candidate in candidates]
    called = [v for v in verdicts if v in (Verdict.MOST, Verdict.MORE)]
    if verdicts.count(Verdict.MOST) > len(verdicts) / 2 or (called and pooled.low > MOST):
        return Verdict.MOST
    if called or more:
        return Verdict.MORE
    return Verdict.NO_SIGN if pooled.high <= MOST else Verdict.UNKNOWN
