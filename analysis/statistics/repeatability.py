"""Do outcomes repeat? Repeats of candidates, and what parents pass on to children."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from grok.analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData, benjamini_hochberg
from grok.analysis.statistics.proportions import clopper_pearson, fisher, share

Floats = NDArray[np.float64]

# Does a rare outcome of a seed repeat? Hits among repeats of candidates, compared with the rate of other seeds.
#
# A candidate was chosen because of a hit. Its repeats are runs that played no part in the choice. If
# the hit was chance, its repeats hit as often as other seeds do. The rate of other seeds is estimated
# from a finite number of runs, so Fisher's exact test compares the two counts. Its p-value is valid for
# one candidate, at any rate and for any number of runs.
#
# Sources: Clopper and Pearson 1934; Fisher 1935; Benjamini and Hochberg 1995; Hoeffding 1956
# (a sum of hits at different rates varies no more than one at their mean rate, so the exact
# interval covers it).

RATE: Final = 0.05
"""False-discovery rate of the verdicts about single candidates of all kinds of repeat."""
MOST: Final = 0.5
"""Share of hits above which a candidate hits in most of its repeats."""

Counts = tuple[int, int]
"""Hits and runs."""


class Verdict(Enum):
    """Result of the repeats."""

    MOST = "in most repeats"
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


def mean_share(counts: Sequence[Counts], lines: Sequence[str] | None = None) -> Estimate:
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
    total, tail = value * free, (1 - LEVEL) / 2
    low = float(special.betaincinv(total, free - total + 1, tail)) if total > 0 else 0.0
    high = float(special.betainccinv(total + 1, free - total, tail)) if total < free else 1.0
    return Estimate(value, low, high, n, "exact, by the scatter between units")


def replication(
    counts: Sequence[Counts], bases: Sequence[Counts | None], lines: Sequence[str] | None = None, rate: float = RATE
) -> Replication:
    """Compare each candidate's hits with those of other seeds.

    Args:
        counts: each candidate's hits and repeats.
        bases: the hits and runs of the other seeds that it is compared with; None: too few of them.
        lines: each candidate's line of descent, as in `mean_share`.
        rate: false-discovery rate over the candidates, and level of the test of all of them.

    Raises:
        NotEnoughData: no candidate.
    """
    if not counts:
        raise NotEnoughData("at least one repeated candidate")
    hits, runs = np.array(counts).T
    p_most = np.asarray(stats.binom.sf(hits - 1, runs, MOST)).tolist()
    both = zip(counts, bases, strict=True)
    p_more = [None if base is None else fisher(count, base, side="greater") for count, base in both]
    compared = np.array([p is not None for p in p_more])
    q_more = np.ones(len(counts))
    if compared.any():
        q_more[compared] = benjamini_hochberg([p for p in p_more if p is not None])
    q_most = benjamini_hochberg(p_most)
    others = {base: share(*base) for base in set(bases) if base is not None}
    candidates = []
    for i, (count, base) in enumerate(zip(counts, bases, strict=True)):
        again = clopper_pearson(*count)
        verdict = _verdict(again, base is not None, bool(q_more[i] <= rate), bool(q_most[i] <= rate))
        candidates.append(Candidate(again, others.get(base) if base else None, p_more[i], verdict))
    pooled = clopper_pearson(int(hits.sum()), int(runs.sum()))
    more = together_more_often(counts, bases) <= rate
    related = len(counts) if lines is None else len(set(lines))
    mean = mean_share(counts, lines) if related > 1 else None
    return Replication(tuple(candidates), pooled, mean, _together(candidates, pooled, more))


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
        p.append(len(others) * fisher((int(mine[:, 0].sum()), int(mine[:, 1].sum())), base, side="greater"))
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


# How much of its outcome a parent run passes on to children that keep some of its streams.
#
# Outcomes are normal scores of the census (`normal_scores`), so nothing depends on the scale: a redraw of all streams
# gives a standard normal score. Children of one parent are alike through the streams that they keep. The covariance of
# siblings is therefore the variance between parents, as a share of the variance between random seeds. It is a statement
# about parents chosen as these were, and choosing them does not bias it. The covariance of parent and child is one
# about all seeds, and holds for unchosen parents only.
#
# Sources: Galton 1886; Falconer and Mackay 1996, ch. 9 and 11 (covariance of siblings, realised heritability); Efron
# and Stein 1981 (jackknife).

Ints = NDArray[np.int64]

FEWEST_FAMILIES = 5
"""Smallest number of lines for a share: its interval comes from the spread between them."""
SMALLEST: Final = 0.02
"""Smallest mean square between families, in units of that without likeness, for its logarithm."""
LARGEST: Final = 12.0
"""No variance of scores is larger: half of the parents at each end of a census of 2,000 seeds."""
UNSEEN: Final = np.array([[1.0, special.ndtri(0.9) ** 2, 0.0, 1.0, 0.0]])
"""Moments of one more line, at the edge of the best or last tenth of the census, that keeps everything."""


@dataclass(frozen=True)
class Kept:
    """What children keep of their parents, by the streams that are redrawn."""

    shares: dict[str, Estimate]
    contrasts: dict[tuple[str, str], Estimate]
    """Share of the first redraw minus that of the second, of every two redraws with common lines of descent."""


def normal_scores(values: Floats, census: Floats) -> Floats:
    """Return the standard normal quantiles (n,) of the ranks of ``values`` (n,) in ``census`` (m,).

    Values with equal ranks get their middle. Values beyond the census count as its first or last, so one run at the end
    of its scale cannot carry the rest. The scores of the census have mean 0 and variance 1. A score has no unit, and
    does not change if all values are transformed by one increasing function.

    Raises:
        NotEnoughData: the census has no two different values.
    """
    ordered = np.sort(census)
    if not len(ordered) or ordered[0] == ordered[-1]:
        raise NotEnoughData("a census of random seeds that differ in the outcome")

    def scores(x: Floats) -> Floats:
        rank = (np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right")) / 2
        return np.asarray(special.ndtri(np.clip(rank, 0.5, len(ordered) - 0.5) / len(ordered)))

    own = scores(ordered)
    return np.asarray((scores(values) - own.mean()) / own.std())


def between_parents(children: Floats, redrawn: NDArray[np.str_], parents: Ints, lines: Ints) -> Kept:
    """Return the variance between parents of their children's expected score, as a share of that between random seeds.

    It is the mean product of two siblings minus that of children of two lines of descent. The estimate is about parents
    chosen as these were, in the same proportions. If the parents are random seeds, it is the share of the variance that
    the kept streams decide.

    The interval is that of the jackknife over lines, on the logarithm of the mean square between families, whose
    scatter grows with it; that of a contrast needs none. Many parents without a sign may hide a few that hand on much,
    and a tenth of all is missed by every one of 19 random parents in one study of eight. So an upper end is that with
    one more line (``UNSEEN``), which few lines feel and many do not; a rarer kind of parent can still be missed.

    Args:
        children: normal scores (n,).
        redrawn: name of what each child redraws (n,), such as ``"order"``.
        parents: each child's parent (n,), any integer code.
        lines: each child's line of descent (n,). Parents of one line share streams, and are one unit.

    Raises:
        NotEnoughData: no redraw has ``FEWEST_FAMILIES`` lines with two siblings.
    """

    def moments(rows: NDArray[np.bool_]) -> tuple[Floats, Ints, float]:
        _, place = np.unique(parents[rows], return_inverse=True)
        weights = np.ones(int(rows.sum())), children[rows], children[rows] ** 2
        size, total, square = (np.bincount(place, weight).astype(np.float64) for weight in weights)
        line = np.zeros(len(size), dtype=np.int64)
        line[place] = lines[rows]
        kept = size > 1
        line, size, total, square = line[kept], size[kept], total[kept], square[kept]
        names, unit = np.unique(line, return_inverse=True)
        sums = [np.ones(len(size)), (total**2 - square) / (size * (size - 1)), total / size]
        table = np.stack([np.bincount(unit, column, len(names)).astype(np.float64) for column in sums], 1)
        table = np.concatenate([table, table[:, [0]] ** 2, table[:, [2]] ** 2], 1)  # pairs within a line
        return table, names, float(size.mean()) if len(size) else 2.0

    def covariance(sums: Floats) -> Floats:
        families, products, means, squared, within = np.moveaxis(sums, -1, 0)
        return np.asarray(products / families - (means**2 - within) / (families**2 - squared))

    def estimate(table: Floats, size: float, n: int) -> Estimate:
        alone = 1 / (size - 1)
        value, _ = _jackknife_of_parents(covariance, table)
        ends = [value]
        for side, units in ((-1, table), (1, np.concatenate([table, UNSEEN]))):
            middle, half = _jackknife_of_parents(
                lambda s: np.log(np.maximum(covariance(s) / alone + 1, SMALLEST)), units
            )
            ends.append((math.exp(middle + side * half) - 1) * alone)
        return Estimate(value, min(ends), min(max(ends), max(value, LARGEST)), n, "siblings, jackknife of lines")

    return _kept(moments, covariance, estimate, redrawn, "siblings", hidden=True)


def kept_distance(children: Floats, redrawn: NDArray[np.str_], parents: Ints, lines: Ints, own: Floats) -> Kept:
    """Return the share of chosen parents' mean distance from the census that their children keep on average.

    0: children are like random seeds; 1: they are as far away as their parents. It is the mean score of the children
    over that of the parents (realised heritability), a statement about parents chosen as these were. A family counts
    by the number of its children. Arguments: `between_parents`.

    Raises:
        NotEnoughData: no redraw has ``FEWEST_FAMILIES`` lines, or the parents' mean score is not clearly above or
            below 0.
    """

    def moments(rows: NDArray[np.bool_]) -> tuple[Floats, Ints, float]:
        names, unit = np.unique(lines[rows], return_inverse=True)
        return np.stack([np.bincount(unit, column[rows], len(names)) for column in (children, own)], 1), names, 1.0

    def ratio(sums: Floats) -> Floats:
        return np.asarray(sums[..., 0] / sums[..., 1])

    def estimate(table: Floats, size: float, n: int) -> Estimate:
        away, doubt = _jackknife_of_parents(lambda s: s[..., 1], table)
        if abs(away) <= doubt:
            raise NotEnoughData("parents that were chosen by their outcome: their mean score is not clearly above 0")
        value, half = _jackknife_of_parents(ratio, table)
        return Estimate(value, value - half, value + half, n, "mean of children over parents, jackknife of lines")

    return _kept(moments, ratio, estimate, redrawn, "chosen parents")


def _kept(
    moments: Callable[[NDArray[np.bool_]], tuple[Floats, Ints, float]],
    statistic: Callable[[Floats], Floats],
    estimate: Callable[[Floats, float, int], Estimate],
    redrawn: NDArray[np.str_],
    of: str,
    hidden: bool = False,
) -> Kept:
    """Return the estimates of ``statistic``, a function of sums (..., moments) over lines, and their contrasts.

    ``hidden``: one more line (``UNSEEN``) of either redraw widens their contrast.
    """
    tables: dict[str, tuple[Floats, Ints]] = {}
    shares = {}
    for name in dict.fromkeys(redrawn.tolist()):
        rows = redrawn == name
        table, lines, size = moments(rows)
        if len(lines) >= FEWEST_FAMILIES:
            shares[name] = estimate(table, size, int(rows.sum()))
            tables[name] = table, lines
    if not shares:
        raise NotEnoughData(f"{of} of at least {FEWEST_FAMILIES} lines of descent")
    contrasts = {}
    for one, other in permutations(tables, 2):
        (a, first), (b, second) = tables[one], tables[other]
        common, units = np.intersect1d(first, second), np.union1d(first, second)
        if len(common) < FEWEST_FAMILIES:
            continue
        both = np.zeros((len(units), a.shape[1] + b.shape[1]))
        both[np.searchsorted(units, first), : a.shape[1]] = a
        both[np.searchsorted(units, second), a.shape[1] :] = b
        k = a.shape[1]

        def difference(sums: Floats, k: int = k) -> Floats:
            return np.asarray(statistic(sums[..., :k]) - statistic(sums[..., k:]))

        value, half = _jackknife_of_parents(difference, both)
        ends = [value - half, value + half]
        for shift in (0, k) if hidden else ():
            extra = np.roll(np.pad(UNSEEN, ((0, 0), (0, k))), shift)
            middle, wide = _jackknife_of_parents(difference, np.concatenate([both, extra]))
            ends.append(middle - wide if shift else middle + wide)
        method = "difference, jackknife of common lines"
        contrasts[one, other] = Estimate(value, min(ends), max(ends), len(units), method)
    return Kept(shares, contrasts)


def _jackknife_of_parents(statistic: Callable[[Floats], Floats], table: Floats) -> tuple[float, float]:
    """Return ``statistic`` of the sum of ``table`` (units, moments), and half the width of its interval."""
    n, total = len(table), table.sum(0)
    without = statistic(total - table)
    spread = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    return float(statistic(total)), float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * spread
