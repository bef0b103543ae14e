"""Variance shares of split, weights, order, their interactions and chaos: a random-effects analysis of variance.

The outcome y of a run is a sum of independent random effects, one for each set of crossed
factors and one for the replicate (chaos):
``y = mean + sum over sets A of effect_A(levels of A) + chaos``.

The mean square of a set of factors measures the part of the cell means that its levels explain
and that no other set of as many or fewer factors explains. Its expectation is a known linear
combination of the variance components, so a linear system gives the components. Intervals are
fiducial (generalised confidence intervals): each mean square is a scaled chi-square, which is
inverted draw by draw. On a full grid with equal numbers of replicates this is the classical
analysis, exact under the model. On a sampled grid the chi-squares have Satterthwaite's degrees of
freedom, and the intervals are approximate.

Sources: Searle, Casella and McCulloch 1992 (fitting constants); Satterthwaite 1946;
Weerahandi 1993; Hannig, Iyer and Patterson 2006 (fiducial generalised intervals).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
TOLERANCE: Final = 1e-8
"""Relative eigenvalues below this count as zero."""


@dataclass(frozen=True)
class VarianceShares:
    """Share of the total variance by component: ``"init"``, ``"init × order"``, ..., ``"chaos"``."""

    shares: dict[str, Estimate]
    together: Estimate | None
    """Share of all interactions; None with a single factor."""
    sums: dict[str, Estimate]
    """Shares of the requested sums of components, by name."""
    components: dict[str, float]
    total: float
    levels: dict[str, int]
    replicates: float
    n: int
    balanced: bool
    """A full grid with equally many replicates in each cell: the intervals are exact under the model."""


def variance_shares(
    y: Floats,
    factors: dict[str, Ints],
    rng: np.random.Generator,
    level: float = LEVEL,
    sums: Mapping[str, Collection[str]] | None = None,
) -> VarianceShares:
    """Return the variance shares of outcome ``y`` (n,) over crossed ``factors`` (name: level of each run).

    Factors with a single level are left out. ``sums`` names sums of components. Example: an order nested in its
    split is the crossed model with the sum of ``order`` and ``split × order``.

    Raises:
        NotEnoughData: no factor has two levels; no cell has two replicates, so interaction and chaos cannot
            be separated; the levels are not crossed enough to separate the components; or all outcomes are equal.
    """
    names = [name for name, values in factors.items() if len(np.unique(values)) > 1]
    if not names:
        raise NotEnoughData("at least two levels of one source of randomness")
    codes = np.stack([np.unique(factors[name], return_inverse=True)[1] for name in names], 1)
    cells, where, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    where = where.reshape(-1)
    if counts.max() < 2:
        raise NotEnoughData(
            "at least two replicates of a cell (perturb.ulps=1 with two seeds.perturb): with one deterministic run "
            "a cell, interaction and chaos look the same"
        )
    if float(np.ptp(y)) == 0:
        raise NotEnoughData("outcomes that differ")
    means = np.bincount(where, weights=y) / counts
    within = len(y) - len(cells)
    design = _Design(cells, 1 / counts, names, strict=True)
    if design.missing:
        design = _Design(cells, 1 / counts, names, strict=False)
    if design.missing:
        raise NotEnoughData(
            f"seeds crossed more fully to tell {', '.join(design.missing)} from the rest (a grid, full or sampled)"
        )
    inside: Floats = np.bincount(where, weights=(y - means[where]) ** 2).astype(np.float64)
    squares = np.array([*design.mean_squares(means), float(inside.sum()) / within])
    solve = np.linalg.inv(design.expected)
    point = np.asarray(solve @ squares)
    chaos = _freedom(inside[counts > 1], within)
    dof = np.array([*design.degrees_of_freedom(np.maximum(point, 0)), chaos])
    draws = (squares * dof / rng.chisquare(dof, (DRAWS, len(dof)))) @ solve.T
    labels = [_name(names, s) for s in design.subsets] + [CHAOS]
    sizes = cells.max(0) + 1
    balanced = len(cells) == np.prod(sizes) and counts.min() == counts.max()
    method = "fiducial, full grid" if balanced else "fiducial, sampled grid (approximate)"
    parts = np.maximum(point, 0)
    shares = _estimates(parts / parts.sum(), draws, labels, len(y), method, level)

    def summed(chosen: NDArray[np.bool_]) -> Estimate:
        value = np.stack([parts[chosen].sum(), parts[~chosen].sum()])
        drawn = np.stack([draws[:, chosen].sum(1), draws[:, ~chosen].sum(1)], 1)
        return _estimates(value / value.sum(), drawn, ["sum", "rest"], len(y), method, level)["sum"]

    together = summed(np.array([len(s) > 1 for s in design.subsets] + [False])) if len(names) > 1 else None
    return VarianceShares(
        shares,
        together,
        {
            name: summed(np.isin(labels, list(members)))
            for name, members in (sums or {}).items()
            if set(members) <= set(labels)
        },
        dict(zip(labels, parts.tolist(), strict=True)),
        float(parts.sum()),
        dict(zip(names, (int(s) for s in sizes), strict=True)),
        len(y) / len(cells),
        len(y),
        bool(balanced),
    )


def _freedom(squares: Floats, most: int) -> float:
    """Return the degrees of freedom of the sum of ``squares`` (one per cell), at most ``most``.

    They are those of the chi-square with the same mean and variance (Satterthwaite). If a few chaotic cells
    make most of the sum, it is less certain than the number of cells suggests.
    """
    spread = len(squares) * float(squares.var(ddof=1)) if len(squares) > 1 else 0.0
    return min(float(most), max(1.0, 2 * float(squares.sum()) ** 2 / spread)) if spread > 0 else float(most)


def _name(names: Sequence[str], subset: tuple[int, ...]) -> str:
    return " × ".join(names[i] for i in subset)


def _estimates(
    value: Floats, draws: Floats, labels: list[str], n: int, method: str, level: float
) -> dict[str, Estimate]:
    # A draw's total includes its negative components: clipping each at 0 first would raise the total and
    # bias all shares down.
    total = draws.sum(1, keepdims=True)
    drawn = np.clip(draws / np.where(total > 0, total, np.inf), 0, 1)
    tail = (1 - level) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return {
        label: Estimate(float(v), min(float(a), float(v)), max(float(b), float(v)), n, method, level)
        for label, v, a, b in zip(labels, value, low, high, strict=True)
    }


def _basis(columns: Floats) -> Floats:
    """Return an orthonormal basis (cells, rank) of the span of ``columns`` (cells, k)."""
    values, vectors = np.linalg.eigh(columns.T @ columns)
    kept = values > TOLERANCE * max(float(values[-1]), 1.0)
    return np.asarray(columns @ (vectors[:, kept] / np.sqrt(values[kept])))


class _Design:
    """The expected mean squares of the cell means, for the cells that were run.

    Rows of ``expected`` are the mean squares (one per set of factors, then chaos), columns the
    variance components in the same order.
    """

    def __init__(self, cells: Ints, noise: Floats, names: Sequence[str], *, strict: bool) -> None:
        """Decompose ``cells`` (m, factors); the variance of a cell's mean has ``noise`` (m,) times the chaos variance.

        ``strict``: each set's effects are made orthogonal to all other sets of as many factors, so that
        its mean square has as few components as possible. This needs many cells. Otherwise they are
        orthogonal only to sets of fewer factors.
        """
        m, k = cells.shape
        self.subsets = [s for size in range(1, k + 1) for s in combinations(range(k), size)]
        *partial, _ = self.subsets
        self._noise, self._strict = noise, strict
        self._levels = [np.unique(cells[:, list(s)], axis=0, return_inverse=True)[1].reshape(-1) for s in partial]
        indicator = [np.eye(int(level.max()) + 1)[level] for level in self._levels]

        def span(size: int, but: int = -1) -> Floats:
            kept = [z for j, z in enumerate(indicator) if len(partial[j]) <= size - (not strict) and j != but]
            return _basis(np.hstack([np.ones((m, 1)), *kept]))

        self._bases: list[Floats] = []
        for i, s in enumerate(partial):
            freed = span(len(s), i)
            self._bases.append(_basis(indicator[i] - freed @ (freed.T @ indicator[i])))
        self._freed = span(k - 1)
        self._left = m - self._freed.shape[1]
        self.missing = [_name(names, s) for s, b in zip(partial, self._bases, strict=True) if not b.shape[1]]
        if self._left < 1:
            self.missing.append(_name(names, self.subsets[-1]))
        self.expected = np.zeros((0, 0)) if self.missing else self._expected()
        if not self.missing and np.linalg.cond(self.expected) > 1 / TOLERANCE:
            self.missing = [_name(names, s) for s in self.subsets]

    def _sums(self, basis: Floats, i: int) -> Floats:
        """Return ``basis`` summed over the cells of each level of the i-th set: (levels, rank)."""
        out = np.zeros((int(self._levels[i].max()) + 1, basis.shape[1]))
        np.add.at(out, self._levels[i], basis)
        return out

    def _expected(self) -> Floats:
        n, m = len(self._bases), len(self._noise)
        expected = np.zeros((n + 2, n + 2))
        for row, basis in enumerate(self._bases):
            for column in range(n):
                expected[row, column] = float((self._sums(basis, column) ** 2).sum())
            expected[row, n + 1] = float((basis**2).sum(1) @ self._noise)
            expected[row] /= basis.shape[1]
            expected[row, n] = 1.0
        for column in range(n):
            expected[n, column] = max(0.0, m - float((self._sums(self._freed, column) ** 2).sum()))
        expected[n, n + 1] = float((1 - (self._freed**2).sum(1)) @ self._noise)
        expected[n] /= self._left
        expected[n, n] = 1.0
        expected[n + 1, n + 1] = 1.0
        return expected

    def mean_squares(self, means: Floats) -> list[float]:
        """Return the mean square of each set of factors, the full one last."""
        squares = [float(((basis.T @ means) ** 2).sum()) / basis.shape[1] for basis in self._bases]
        rest = means - self._freed @ (self._freed.T @ means)
        return [*squares, float((rest**2).sum()) / self._left]

    def degrees_of_freedom(self, components: Floats) -> list[float]:
        """Return those of the chi-square with the mean and variance of each mean square (Satterthwaite)."""

        def effective(basis: Floats) -> float:
            covariance = components[-2] * np.eye(basis.shape[1]) + components[-1] * (basis.T * self._noise) @ basis
            for i, variance in enumerate(components[:-2]):
                sums = self._sums(basis, i)
                covariance += variance * sums.T @ sums
            spread = float((covariance**2).sum())
            return float(np.trace(covariance)) ** 2 / spread if spread > 0 else float(basis.shape[1])

        degrees = [effective(basis) for basis in self._bases]
        if self._strict:
            return [*degrees, float(self._left)]
        return [*degrees, effective(_basis(np.eye(len(self._noise)) - self._freed @ self._freed.T))]
