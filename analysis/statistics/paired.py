"""Two settings on the same seeds: the paired difference and whether it is beyond seed noise.

Sources: Wilcoxon 1945; Hodges and Lehmann 1963.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

FEWEST: Final = 6
"""Pairs that differ; with fewer no two-sided signed-rank test can reach 0.05."""


@dataclass(frozen=True, slots=True)
class Paired:
    """The shift of b against a, seed by seed."""

    shift: Estimate
    """Hodges-Lehmann estimate of b - a."""
    p: float
    """Two-sided Wilcoxon signed-rank test."""
    lower: int
    higher: int
    """Seeds for which b is lower, and higher, than a."""


def paired(a: NDArray[np.float64], b: NDArray[np.float64], level: float = LEVEL) -> Paired:
    """Return the paired comparison of outcomes ``a`` and ``b`` (n,) of the same seeds.

    The interval inverts the signed-rank test over the averages of pairs of differences.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` seeds for which the two differ.
    """
    gap = b - a
    moved = gap[gap != 0]
    if len(moved) < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} seeds for which the two settings differ (seen: {len(moved)})")
    n = len(gap)
    i, j = np.triu_indices(n)
    walsh = np.sort((gap[i] + gap[j]) / 2)
    z = float(stats.norm.ppf(0.5 + level / 2))
    cut = max(0, int(np.floor(n * (n + 1) / 4 - z * np.sqrt(n * (n + 1) * (2 * n + 1) / 24))))
    value = float(np.median(walsh))
    test = stats.wilcoxon(moved, method="auto")
    return Paired(
        Estimate(value, float(walsh[cut]), float(walsh[len(walsh) - 1 - cut]), n, "Hodges-Lehmann", level),
        float(test.pvalue),
        int((gap < 0).sum()),
        int((gap > 0).sum()),
    )
