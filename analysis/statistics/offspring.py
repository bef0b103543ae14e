"""How much of its outcome a parent run passes on to children that keep some of its streams.

Outcomes are normal scores of the census (`normal_scores`), so nothing depends on the scale: a redraw of all streams
gives a standard normal score. Children of one parent are alike through the streams that they keep. The covariance of
siblings is therefore the variance between parents, as a share of the variance between random seeds. It is a statement
about parents chosen as these were, and choosing them does not bias it. The covariance of parent and child is one about
all seeds, and holds for unchosen parents only.

Sources: Galton 1886; Falconer and Mackay 1996, ch. 9 and 11 (covariance of siblings, realised heritability); Efron
and Stein 1981 (jackknife).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_FAMILIES = 5
"""Smallest number of lines for a share: its interval comes from the spread between them."""
SMALLEST: Final = 0.02
"""Smallest mean square between families, in units of that without likeness, for its logarithm."""
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


def between_parents(
    children: Floats, redrawn: NDArray[np.str_], parents: Ints, lines: Ints, own: Floats | None = None,
    level: float = LEVEL,
) -> Kept:  # fmt: skip
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
        own: each child's parent's own score (n,), which then counts as one more sibling. Only for parents that were not
            chosen by it, or by something that is related to it.
        level: confidence level.

    Raises:
        NotEnoughData: no redraw has ``FEWEST_FAMILIES`` lines with two siblings.
    """

    def moments(rows: NDArray[np.bool_]) -> tuple[Floats, Ints, float]:
        _, place = np.unique(parents[rows], return_inverse=True)
        weights = np.ones(int(rows.sum())), children[rows], children[rows] ** 2
        size, total, square = (np.bincount(place, weight).astype(np.float64) for weight in weights)
        if own is not None:
            mine = np.zeros(len(size))
            mine[place] = own[rows]
            size, total, square = size + 1, total + mine, square + mine**2
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
        value, _ = _jackknife(covariance, table)
        ends = [value]
        for side, units in ((-1, table), (1, np.concatenate([table, UNSEEN]))):
            middle, half = _jackknife(lambda s: np.log(np.maximum(covariance(s) / alone + 1, SMALLEST)), units, level)
            ends.append((math.exp(middle + side * half) - 1) * alone)
        return Estimate(value, min(ends), max(ends), n, "siblings, jackknife of lines", level)

    return _kept(moments, covariance, estimate, redrawn, "siblings", level, hidden=True)


def kept_distance(
    children: Floats, redrawn: NDArray[np.str_], parents: Ints, lines: Ints, own: Floats, level: float = LEVEL
) -> Kept:
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
        away, doubt = _jackknife(lambda s: s[..., 1], table, level)
        if abs(away) <= doubt:
            raise NotEnoughData("parents that were chosen by their outcome: their mean score is not clearly above 0")
        value, half = _jackknife(ratio, table, level)
        return Estimate(
            value, value - half, value + half, n, "mean of children over parents, jackknife of lines", level
        )

    return _kept(moments, ratio, estimate, redrawn, "chosen parents", level)


def _kept(
    moments: Callable[[NDArray[np.bool_]], tuple[Floats, Ints, float]],
    statistic: Callable[[Floats], Floats],
    estimate: Callable[[Floats, float, int], Estimate],
    redrawn: NDArray[np.str_],
    of: str,
    level: float,
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

        value, half = _jackknife(difference, both, level)
        ends = [value - half, value + half]
        for shift in (0, k) if hidden else ():
            extra = np.roll(np.pad(UNSEEN, ((0, 0), (0, k))), shift)
            middle, wide = _jackknife(difference, np.concatenate([both, extra]), level)
            ends.append(middle - wide if shift else middle + wide)
        method = "difference, jackknife of common lines"
        contrasts[one, other] = Estimate(value, min(ends), max(ends), len(units), method, level)
    return Kept(shares, contrasts)


def _jackknife(statistic: Callable[[Floats], Floats], table: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Return ``statistic`` of the sum of ``table`` (units, moments), and half the width of its interval."""
    n, total = len(table), table.sum(0)
    without = statistic(total - table)
    spread = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    return float(statistic(total)), float(stats.t.ppf(0.5 + level / 2, n - 1)) * spread
