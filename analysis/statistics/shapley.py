"""Which layers change the outcome? Effects and Shapley shares of a two-level factorial design.

Each run takes every factor (a layer's initial tensors) from one of two seeds: 0 is the recipient, 1
the donor. ``v(S)`` is the mean outcome of runs with exactly the factors in S from the donor. A
factor's Shapley share is its average contribution over all orders of exchanging the factors. The
shares sum to ``v(all) - v(none)``.

Sources: Shapley 1953; Box, Hunter and Hunter 2005 (factorial effects).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.multiplicity import holm

Floats = NDArray[np.float64]
UNFIT: Final = 0.01
"""Level of the test that a fractional design has interactions of three or more factors."""
FLAT: Final = 1e-9
"""Differences below this are rounding of a mean."""
SIGNIFICANT: Final = 0.05
"""Level of the permutation test of shares. A test that cannot reach it is not done."""
UNEXPLAINED: Final = 0.05
"""Largest unexplained share of the variance between combinations at which shares are still given."""


@dataclass(frozen=True)
class Attribution:
    """Shares, main effects and two-way interactions, by factor name, in units of the outcome."""

    shapley: dict[str, Estimate]
    main: dict[str, Estimate]
    interactions: dict[tuple[str, str], Estimate]
    total: Estimate
    """v(all) - v(none): the effect of exchanging all factors."""
    full: bool
    """Whether all combinations were run; otherwise interactions of three or more factors are assumed to be zero."""
    n: int


def attribute(
    design: Floats,
    y: Floats,
    names: list[str],
    rounding: float = 0.0,
    ceiling: float = math.inf,
    level: float = LEVEL,
) -> Attribution:
    """Return the attribution of outcomes ``y`` (n,) to the factors of ``design`` (n, k), entries 0 and 1.

    The error variance comes from replicates (equal rows). In a fractional design it comes from the
    residuals of the model with two-way interactions, if they are larger. It is at least ``rounding``,
    because replicates can agree only by being rounded to the same evaluation. Replicates that were all
    censored at ``ceiling`` do not count, because they agree for that reason.

    Raises:
        NotEnoughData: there are neither replicates nor spare runs, a factor was never exchanged, or in a
            fractional design three or more factors interact.
    """
    design = np.asarray(design, dtype=np.float64)
    n, k = design.shape
    stuck = [name for name, column in zip(names, design.T, strict=True) if np.ptp(column) == 0]
    if stuck:
        raise NotEnoughData(f"runs with and without {', '.join(stuck)} exchanged")
    grid = _combinations_run(design, y)
    means, counts, where, full, columns, x = grid.means, grid.counts, grid.where, grid.full, grid.columns, grid.x
    if np.linalg.matrix_rank(x) < x.shape[1]:
        raise NotEnoughData(
            f"at least {x.shape[1]} different combinations that tell two-way interactions apart (seen: {len(means)})"
        )
    variance, dof = _error(y, means, where, counts, x, ceiling)
    variance = max(variance, rounding)
    # Weighted least squares on the cell means; a full model reproduces them.
    weight = counts[:, None] * x
    inverse = np.linalg.inv(x.T @ weight)
    beta = inverse @ (weight.T @ means)
    covariance = variance * inverse
    t = float(stats.t.ppf(0.5 + level / 2, dof))
    from_replicates = full or dof == _replicates(means, counts, ceiling)
    method = "t, from replicates" if from_replicates else "t, from the model's residuals"

    def estimate(contrast: Floats) -> Estimate:
        value = float(contrast @ beta)
        half = t * math.sqrt(max(0.0, float(contrast @ covariance @ contrast)))
        return Estimate(value, value - half, value + half, n, method, level)

    # With 0/1 coding the coefficients are the game's Harsanyi dividends; each is divided equally among its factors.
    shapley = {
        name: estimate(np.array([1 / len(term) if i in term else 0.0 for term in columns]))
        for i, name in enumerate(names)
    }
    main = {
        name: estimate(np.array([0.5 ** (len(term) - 1) if i in term else 0.0 for term in columns]))
        for i, name in enumerate(names)
    }
    pairs = {
        (names[i], names[j]): estimate(
            np.array([0.5 ** (len(term) - 2) if i in term and j in term else 0.0 for term in columns])
        )
        for i, j in combinations(range(k), 2)
    }
    total = estimate(np.array([1.0 if term else 0.0 for term in columns]))
    return Attribution(shapley, main, pairs, total, full, n)


def additive_share(
    design: Floats, y: Floats, rng: np.random.Generator, rounding: float = 0.0, level: float = LEVEL
) -> Estimate:
    """Return the share of the variance between combinations that the main effects explain.

    The rest is interaction: the effect of a layer depends on which others were exchanged. The contrasts
    of the cell means are orthogonal. From each squared contrast the noise variance is subtracted,
    estimated from replicates (at least ``rounding``). The interval is a parametric bootstrap.

    Raises:
        NotEnoughData: not all combinations were run, or there are no replicates.
    """
    k = design.shape[1]
    code = (np.asarray(design) @ (2.0 ** np.arange(k))).astype(np.int64)
    counts = np.bincount(code, minlength=2**k)
    spare = len(y) - 2**k
    if counts.min() < 1 or spare < 1:
        raise NotEnoughData("all combinations of layers, with replicates")
    means = np.bincount(code, weights=y) / counts
    noise = max(float(((y - means[code]) ** 2).sum()) / spare, rounding) * float((1 / counts).mean()) / 2**k
    signs = 1 - 2.0 * ((np.arange(2**k)[:, None] >> np.arange(k)) & 1)
    terms = _full_model(k)[1:]
    single = np.array([len(term) == 1 for term in terms])
    contrasts = np.array([float(signs[:, list(term)].prod(1) @ means) / 2**k for term in terms])

    def share(squares: Floats) -> Floats:
        total = squares.sum(-1)
        return np.asarray(np.clip(squares[..., single].sum(-1) / np.where(total > 0, total, np.inf), 0, 1))

    value = float(share(contrasts**2 - noise))
    # A bootstrap draw adds the noise a second time, so it is subtracted twice.
    drawn = share((contrasts + np.sqrt(noise) * rng.normal(size=(1000, len(terms)))) ** 2 - 2 * noise)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, min(value, float(low)), max(value, float(high)), len(y), "parametric bootstrap", level)


@dataclass(frozen=True)
class Null:
    """Permutation distribution: the same outcomes, shuffled over the combinations."""

    p: dict[str, float]
    """p-value of each factor's share, corrected for their number (Holm). Empty: no share could be significant."""
    reach: float
    """95% quantile of the largest share of any factor."""
    additive: tuple[float, float, float] | None
    """Share of the variance that main effects explain: median, 2.5% and 97.5% quantile. None: a fractional design, or
    fewer than three factors."""
    additive_p: float | None
    """p-value of that share."""


def shuffled(design: Floats, y: Floats, names: list[str], rng: np.random.Generator, draws: int = 999) -> Null:
    """Return the shares under random permutations of the mean outcomes over the combinations.

    The intervals of shares measure the noise between replicates. This test asks instead whether the
    shares are larger than for outcomes that differ between combinations without any pattern. A full design with two
    or three factors has too few arrangements for a share to be significant; with two, also for the additive share.
    """
    design = np.asarray(design, dtype=np.float64)
    k = design.shape[1]
    if not k:
        return Null({}, 0.0, None, None)
    grid = _combinations_run(design, y)
    means, columns = grid.means, grid.columns
    share_of = np.array([[1 / len(term) if i in term else 0.0 for term in columns] for i in range(k)])
    weights = share_of @ np.linalg.pinv(grid.x)  # (factors, cells): shares are linear in the cell means
    tables = np.stack([means, *(rng.permutation(means) for _ in range(draws))], 1)
    shares = np.abs(weights @ tables)
    p = (1 + (shares[:, 1:] >= shares[:, :1] - FLAT).sum(1)) / (1 + draws)
    smallest = 2 / math.comb(len(means), len(means) // 2) if grid.full else 0.0
    judged = dict(zip(names, holm(p).tolist(), strict=True)) if k * smallest <= SIGNIFICANT else {}
    additive = additive_p = None
    if grid.full and k > 2:
        n, signs = len(means), 1 - 2.0 * grid.exchanged
        explained = ((signs.T @ tables) ** 2).sum(0) / n / np.maximum(n * tables.var(0), 1e-300)
        low, middle, high = (float(q) for q in np.quantile(explained[1:], [0.025, 0.5, 0.975]))
        additive = (middle, low, high)
        additive_p = float((1 + (explained[1:] >= explained[0] - FLAT).sum()) / (1 + draws))
    return Null(judged, float(np.quantile(shares[:, 1:].max(0), LEVEL)), additive, additive_p)


@dataclass(frozen=True)
class _Grid:
    """The distinct combinations that were run, and the linear model of their means."""

    means: Floats
    """Mean outcome of each combination."""
    counts: NDArray[np.intp]
    """Runs of each combination."""
    where: NDArray[np.intp]
    """Index of each run's combination."""
    exchanged: NDArray[np.int64]
    """(combinations, factors): 1 where the factor comes from the donor."""
    full: bool
    columns: list[tuple[int, ...]]
    """The model's terms, each as the indices of its factors."""
    x: Floats
    """(combinations, terms): 1 where all factors of the term come from the donor."""


def _combinations_run(design: Floats, y: Floats) -> _Grid:
    k = design.shape[1]
    code = (design @ (2.0 ** np.arange(k))).astype(np.int64)
    cells, where, counts = np.unique(code, return_inverse=True, return_counts=True)
    full = len(cells) == 2**k
    columns = _full_model(k) if full else _second_order(k)
    bits = (cells[:, None] >> np.arange(k)) & 1
    x = np.stack([bits[:, list(term)].prod(1) if term else np.ones(len(cells)) for term in columns], 1).astype(float)
    return _Grid(np.bincount(where, weights=y) / counts, counts, where, bits, full, columns, x)


def _full_model(k: int) -> list[tuple[int, ...]]:
    return [s for size in range(k + 1) for s in combinations(range(k), size)]


def _second_order(k: int) -> list[tuple[int, ...]]:
    return [s for size in range(min(k, 2) + 1) for s in combinations(range(k), size)]


def _replicates(means: Floats, counts: NDArray[np.intp], ceiling: float) -> int:
    """Return the degrees of freedom between replicates, without combinations that were all censored at ``ceiling``."""
    return int((counts - 1)[means < ceiling - FLAT].sum())


def _error(
    y: Floats, means: Floats, where: NDArray[np.intp], counts: NDArray[np.intp], x: Floats, ceiling: float
) -> tuple[float, int]:
    """Return the error variance of one run and its degrees of freedom."""
    within = _replicates(means, counts, ceiling)
    spare = len(means) - x.shape[1]
    if within < 1 and spare < 1:
        raise NotEnoughData("replicates (perturb.ulps=1 with two seeds.perturb) to tell an effect from chaos")
    noise = float(((y - means[where]) ** 2).sum()) / within if within >= 1 else 0.0
    if spare < 1:
        return noise, within
    weight = counts[:, None] * x
    fitted = x @ np.linalg.solve(x.T @ weight, weight.T @ means)
    left = float((counts * (means - fitted) ** 2).sum())
    if within < 1:
        return left / spare, spare
    # A fractional design assumes no interactions of three or more factors. If replicates show such interactions,
    # the shares of the fitted model are not the Shapley shares.
    if left / spare <= noise:
        return noise, within
    if stats.f.sf(left / spare / max(noise, 1e-300), spare, within) < UNFIT:
        spread = float((counts * (means - np.average(means, weights=counts)) ** 2).sum())
        if left - spare * noise > UNEXPLAINED * spread:
            raise NotEnoughData(
                "all combinations of layers: in this fraction three or more of them act together "
                f"({left / spread:.0%} of the spread is left over by interactions of two)"
            )
    return left / spare, spare


def shapley_values(v: dict[frozenset[int], float], k: int) -> Floats:
    """Return the Shapley values (k,) of a complete game by their definition; exponential in ``k``."""
    phi = np.zeros(k)
    for i in range(k):
        others = [j for j in range(k) if j != i]
        for size in range(k):
            weight = factorial(size) * factorial(k - size - 1) / factorial(k)
            for s in combinations(others, size):
                phi[i] += weight * (v[frozenset(s) | {i}] - v[frozenset(s)])
    return phi
