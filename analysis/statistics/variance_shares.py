"""How much of the spread is the split, the weights, the order, their interactions, and chaos?

The outcome y of a run is modelled as a sum of independent random effects, one for each
set of crossed factors and one for the replicate (chaos):
``y = mean + sum over sets A of effect_A(levels of A) + chaos``.

A full grid with equally many replicates in each cell is analysed by its mean squares;
intervals are fiducial (generalised confidence intervals): every mean square is an
independent scaled chi-square under the model, which is inverted draw by draw. Any other
design uses differences between pairs of runs: half the mean squared difference of pairs
that share exactly the levels of A is, in expectation, the sum of all components not
inside A, and Moebius inversion gives each one. Its intervals are a parametric bootstrap
and approximate.

Sources: Searle, Casella and McCulloch 1992; Weerahandi 1993; Hannig, Iyer and Patterson
2006 (fiducial generalised intervals).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHAOS: Final = "chaos"
DRAWS: Final = 4000
BOOTSTRAPS: Final = 200


@dataclass(frozen=True)
class VarianceShares:
    """Share of the total variance by component: ``"init"``, ``"init × order"``, ..., ``"chaos"``."""

    shares: dict[str, Estimate]
    components: dict[str, float]
    total: float
    levels: dict[str, int]
    replicates: float
    n: int
    balanced: bool


def _subsets(k: int) -> list[tuple[int, ...]]:
    return [s for size in range(1, k + 1) for s in combinations(range(k), size)]


def variance_shares(
    y: Floats, factors: dict[str, Ints], rng: np.random.Generator, level: float = LEVEL
) -> VarianceShares:
    """Return the variance shares of outcome ``y`` (n,) over crossed ``factors`` (name: level of each run).

    Factors with a single level are left out.

    Raises:
        NotEnoughData: no factor has two levels, no cell has two replicates (then
            interaction and chaos cannot be told apart), or all outcomes are equal.
    """
    names = [name for name, values in factors.items() if len(np.unique(values)) > 1]
    if not names:
        raise NotEnoughData("at least two levels of one source of randomness")
    codes = np.stack([np.unique(factors[name], return_inverse=True)[1] for name in names], 1)
    sizes = codes.max(0) + 1
    cell = np.ravel_multi_index(tuple(codes.T), tuple(sizes))
    counts = np.bincount(cell, minlength=int(np.prod(sizes)))
    if counts.max() < 2:
        raise NotEnoughData(
            "at least two replicates of a cell (perturb.ulps=1 with two seeds.perturb): with one deterministic run "
            "a cell, interaction and chaos look the same"
        )
    if float(np.ptp(y)) == 0:
        raise NotEnoughData("outcomes that differ")
    if counts.min() >= 2:
        return _balanced(y, names, sizes, cell, int(counts.min()), rng, level)
    return _pairs(y, names, codes, rng, level)


def _name(names: Sequence[str], subset: tuple[int, ...]) -> str:
    return " × ".join(names[i] for i in subset)


def _estimates(
    point: Floats, draws: Floats, labels: list[str], n: int, method: str, level: float
) -> dict[str, Estimate]:
    value = np.maximum(point, 0)
    value = value / value.sum()
    # A draw's total takes its negative components along: cutting each off at 0 first would inflate the
    # total and pull every share down.
    total = draws.sum(1, keepdims=True)
    drawn = np.clip(draws / np.where(total > 0, total, np.inf), 0, 1)
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return {
        label: Estimate(float(v), min(float(a), float(v)), max(float(b), float(v)), n, method, level)
        for label, v, a, b in zip(labels, value, low, high, strict=True)
    }


def _balanced(
    y: Floats, names: list[str], sizes: Ints, cell: Ints, replicates: int, rng: np.random.Generator, level: float
) -> VarianceShares:
    # Surplus replicates of a cell are left out, the first ones kept: mean squares need equal counts.
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(int(np.prod(sizes))))
    table = y[order[starts[:, None] + np.arange(replicates)]].reshape(*sizes, replicates)
    k = len(names)
    subsets = _subsets(k)
    means = table.mean(-1)
    squares, dof = [], []
    for subset in subsets:
        effect = means.mean(tuple(i for i in range(k) if i not in subset), keepdims=True) if len(subset) < k else means
        for i in subset:
            effect = effect - effect.mean(i, keepdims=True)
        repeats = replicates * int(np.prod([sizes[i] for i in range(k) if i not in subset]))
        free = int(np.prod([sizes[i] - 1 for i in subset]))
        squares.append(float((effect**2).sum()) * repeats / free)
        dof.append(free)
    squares.append(float(((table - means[..., None]) ** 2).sum()) / (means.size * (replicates - 1)))
    dof.append(means.size * (replicates - 1))
    # Expected mean squares: chaos + sum over supersets B of A of (runs per level of B) * component B.
    expected = np.zeros((len(subsets) + 1, len(subsets) + 1))
    expected[:, -1] = 1
    for row, a in enumerate(subsets):
        for column, b in enumerate(subsets):
            if set(a) <= set(b):
                expected[row, column] = replicates * np.prod([sizes[i] for i in range(k) if i not in b])
    solve = np.linalg.inv(expected)
    ms = np.array(squares)
    point = solve @ ms
    chi = np.stack([rng.chisquare(d, DRAWS) for d in dof], 1)
    draws = (ms * np.array(dof) / chi) @ solve.T
    labels = [_name(names, s) for s in subsets] + [CHAOS]
    shares = _estimates(point, draws, labels, table.size, "fiducial, balanced grid", level)
    components = dict(zip(labels, np.maximum(point, 0).tolist(), strict=True))
    levels = dict(zip(names, (int(s) for s in sizes), strict=True))
    return VarianceShares(shares, components, sum(components.values()), levels, replicates, table.size, True)


class _PairDesign:
    """Pairs of runs by the set of factors whose levels they share."""

    def __init__(self, codes: Ints) -> None:
        n, k = codes.shape
        self.i, self.j = np.triu_indices(n, 1)
        self.shared = sum((codes[self.i, f] == codes[self.j, f]).astype(np.int64) << f for f in range(k))
        self.count = np.bincount(self.shared, minlength=2**k)

    def gaps(self, y: Floats) -> Floats:
        """Return half the mean squared difference for each shared set (bit mask)."""
        total = np.bincount(self.shared, weights=(y[self.i] - y[self.j]) ** 2 / 2, minlength=len(self.count))
        return np.asarray(total / np.maximum(self.count, 1))


def _pairs(y: Floats, names: list[str], codes: Ints, rng: np.random.Generator, level: float) -> VarianceShares:
    k, n = len(names), len(y)
    design = _PairDesign(codes)
    full = 2**k - 1
    subsets = _subsets(k)
    masks = [sum(1 << i for i in s) for s in subsets]
    if (design.count == 0).any():
        absent = [_name(names, s) or "nothing" for s in [(), *subsets] if design.count[sum(1 << i for i in s)] == 0]
        raise NotEnoughData(
            "pairs of runs that share exactly " + ", ".join(absent) + ": cross the seeds (a grid, full or sampled)"
        )

    # gap(M) = sum of components not inside M, so the sum inside M is total - gap(M); Moebius inversion follows.
    def components(gap: Floats) -> Floats:
        inside = gap[0] - gap
        found = []
        for mask in masks:
            parts = [s for s in range(2**k) if s & ~mask == 0]
            found.append(sum((-1) ** (bin(mask).count("1") - bin(s).count("1")) * inside[s] for s in parts))
        return np.array([*found, gap[full]])

    point = components(design.gaps(y))
    kept = np.maximum(point, 0)
    groups = [np.unique(codes[:, list(s)], axis=0, return_inverse=True)[1].reshape(-1) for s in subsets]
    draws = np.empty((BOOTSTRAPS, len(point)))
    for b in range(BOOTSTRAPS):
        fake = rng.normal(0, np.sqrt(kept[-1]), n)
        for group, variance in zip(groups, kept[:-1], strict=True):
            if variance > 0:
                fake = fake + rng.normal(0, np.sqrt(variance), int(group.max()) + 1)[group]
        draws[b] = components(design.gaps(fake))
    labels = [_name(names, s) for s in subsets] + [CHAOS]
    shares = _estimates(point, draws, labels, n, "parametric bootstrap, sampled grid (approximate)", level)
    replicates = n / len(np.unique(groups[-1]))
    parts = dict(zip(labels, kept.tolist(), strict=True))
    levels = {name: int(codes[:, i].max()) + 1 for i, name in enumerate(names)}
    return VarianceShares(shares, parts, float(kept.sum()), levels, replicates, n, False)
