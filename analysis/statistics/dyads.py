"""The mean over pairs of one seed of either side, such as recipient and donor, that share seeds.

Source: Cameron, Gelbach and Miller 2011 (clustering by both sides).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

FEWEST: Final = 3
"""Smallest number of seeds of a side for an interval."""


def mean_over_pairs(
    values: NDArray[np.float64], sides: tuple[Sequence[str], Sequence[str]], level: float = LEVEL
) -> tuple[Estimate, tuple[int, ...]]:
    """Return the mean of one value per pair (n,), and the sides (0, 1) for whose other seeds its interval holds.

    Pairs with a common seed are not independent, so each side's seeds are clusters, and the side with fewer seeds gives
    the degrees of freedom. If it has fewer than ``FEWEST``, its seeds are fixed: the interval is for other seeds of the
    other side. If no two pairs share a seed, the interval is Student's.

    Raises:
        NotEnoughData: both sides have fewer than ``FEWEST`` seeds.
    """
    codes = [np.unique(np.asarray(side), return_inverse=True)[1] for side in sides]
    counts = [int(code.max(initial=-1)) + 1 for code in codes]
    if max(counts) < FEWEST:
        raise NotEnoughData(f"pairs of {FEWEST} different seeds of one side")
    value = float(values.mean())
    rest = values - value
    own = float(rest @ rest)
    sums = [float((np.bincount(code, weights=rest) ** 2).sum()) for code in codes]
    open_sides: tuple[int, ...]
    if min(counts) >= FEWEST:
        open_sides, k, total = (0, 1), min(counts), max(sum(sums) - own, *sums)
    else:
        free = int(np.argmax(counts))
        open_sides, k, total = (free,), counts[free], sums[free]
    n = len(values)
    half = float(stats.t.ppf(0.5 + level / 2, k - 1)) * math.sqrt(k / (k - 1) * total) / n
    return Estimate(value, value - half, value + half, n, f"t, between {k} seeds of a side", level), open_sides
