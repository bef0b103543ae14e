"""Which layers change the outcome? Effects and Shapley shares of a two-level factorial design.

Each run takes every factor (a layer's initial tensors) from one of two seeds: 0 is the recipient, 1
the donor. ``v(S)`` is the mean outcome of runs with exactly the factors in S from the donor. A
factor's Shapley share is its average contribution over all orders of exchanging the factors. The
shares sum to ``v(all) - v(none)``.

Sources: Shapley 1953; Box, Hunter and Hunter 2005 (factorial effects); Fieller 1954 (ratios).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from grok.analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]
FLAT: Final = 1e-9
"""Differences below this are rounding of a mean."""


@dataclass(frozen=True)
class Attribution:
    """Shares by factor name, in units of the outcome."""

    shapley: dict[str, Estimate]
    total: Estimate
    """v(all) - v(none): the effect of exchanging all factors."""
    parts: dict[str, Estimate]
    """Each share as a part of the total, if the interval of the total excludes 0: Fieller's intervals."""
    n: int


def attribute(
    design: Floats,
    y: Floats,
    names: list[str],
    rounding: float = 0.0,
    ceiling: float = math.inf,
) -> Attribution:
    """Return the attribution of outcomes ``y`` (n,) to the factors of ``design`` (n, k), entries 0 and 1.

    The error variance comes from replicates (equal rows). It is at least ``rounding``, because replicates can agree
    only by being rounded to the same evaluation. Replicates that were all censored at ``ceiling`` do not count, because
    they agree for that reason.

    Raises:
        NotEnoughData: there are no replicates, or not all combinations were run.
    """
    n, k = design.shape
    grid = _combinations_run(design, y)
    columns = [s for size in range(k + 1) for s in combinations(range(k), size)]
    bits = grid.exchanged
    x = np.stack([bits[:, list(term)].prod(1) if term else np.ones(len(bits)) for term in columns], 1).astype(float)
    variance, dof = _error(y, grid, ceiling)
    inverse = np.linalg.inv(x.T @ (grid.counts[:, None] * x))
    beta = np.linalg.solve(x, grid.means)
    covariance = max(variance, rounding) * inverse
    t = float(stats.t.ppf(0.5 + LEVEL / 2, dof))

    def estimate(contrast: Floats) -> Estimate:
        value = float(contrast @ beta)
        half = t * math.sqrt(max(0.0, float(contrast @ covariance @ contrast)))
        return Estimate(value, value - half, value + half, n, "t, from replicates")

    # With 0/1 coding the coefficients are the game's Harsanyi dividends; each is divided equally among its factors.
    shares = {name: np.array([1 / len(term) if i in term else 0.0 for term in columns]) for i, name in enumerate(names)}
    whole = np.array([1.0 if term else 0.0 for term in columns])
    shapley, total = {name: estimate(share) for name, share in shares.items()}, estimate(whole)

    def part(share: Floats) -> Estimate:
        """Return the parts r for which share - r whole is not told from 0: the total has an error, too."""
        both = np.stack([share, whole])
        (ss, sw), (_, ww) = np.outer(both @ beta, both @ beta) - t**2 * (both @ covariance @ both.T)
        half = math.sqrt(max(0.0, sw**2 - ss * ww))
        return Estimate(float(share @ beta) / total.value, (sw - half) / ww, (sw + half) / ww, n, "Fieller")

    known = total.low > 0 or total.high < 0
    return Attribution(shapley, total, {name: part(share) for name, share in shares.items()} if known else {}, n)


@dataclass(frozen=True)
class Additivity:
    """How far the effects of single factors add up, against the same outcomes shuffled over the combinations."""

    share: Estimate
    """Share of the variance between combinations that the main effects explain; the rest is interaction."""
    chance: Floats
    """The same share in shuffled tables (draws,)."""
    differ: float
    """p-value that the combinations differ by no more than replicates do."""
    interact: float
    """p-value that they differ from what the main effects give by no more than that."""


def additivity(
    design: Floats,
    y: Floats,
    rng: np.random.Generator,
    rounding: float = 0.0,
    ceiling: float = math.inf,
    draws: int = 999,
) -> Additivity:
    """Return the share of the variance between combinations that the main effects explain.

    The noise of the cell means, from replicates as in `attribute`, is subtracted. The interval, a parametric
    bootstrap, is about this noise only; it is the whole range if the combinations are not seen to differ (F test).
    Two factors explain two thirds of a table without any pattern, and as much if either of them alone does all: so
    the share is to be compared with ``chance``.

    Raises:
        NotEnoughData: as `attribute`, or the combinations do not differ.
    """
    grid = _combinations_run(design, y)
    seen, freedom = _error(y, grid, ceiling)
    variance = max(seen, rounding)
    main = np.column_stack([np.ones(len(grid.means)), grid.exchanged])
    project, k = main @ np.linalg.pinv(main), np.linalg.matrix_rank(main) - 1
    noise = variance * float((1 / grid.counts).mean())

    def exceeds(squares: float, many: int) -> float:
        if 2 * (grid.counts > 1).sum() < len(grid.counts):
            return 1.0  # nobody knows how the others scatter
        return float(stats.f.sf(squares / many / max(noise, FLAT**2), many, freedom))

    def explained(tables: Floats, noise: float | Floats) -> Floats:
        """Return the share for each column; ``noise``: the variance of what is not the table's own."""
        centred = tables - tables.mean(0)
        total = (centred**2).sum(0) - (len(tables) - 1) * noise
        single = ((project @ centred) ** 2).sum(0) - k * noise
        return np.asarray(np.clip(single / np.where(total > FLAT, total, np.inf), 0, 1))

    value = float(explained(grid.means[:, None], noise)[0])
    if not float(np.ptp(grid.means)):
        raise NotEnoughData("outcomes that differ between combinations")
    likely = noise * freedom / rng.chisquare(freedom, draws)
    drawn = grid.means[:, None] + np.sqrt(likely) * rng.normal(size=(len(grid.means), draws))
    centred, cells = grid.means - grid.means.mean(), len(grid.means) - 1
    rest = centred - project @ centred
    differ = exceeds(float(centred @ centred), cells)
    interact = exceeds(float(rest @ rest), cells - k) if cells > k else 1.0
    low, high = np.quantile(explained(drawn, noise + likely), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = (low, high) if differ <= 1 - LEVEL else (0.0, 1.0)
    share = Estimate(value, min(value, float(low)), max(value, float(high)), len(y), "parametric bootstrap")
    chance = explained(rng.permuted(np.repeat(grid.means[:, None], draws, 1), axis=0), noise)
    return Additivity(share, chance, differ, interact)


def p_of_no_pattern(tables: Sequence[Additivity]) -> float:
    """Return the p-value that the factors explain no more, in the mean over tables, than in shuffled ones."""
    seen, chance = np.mean([t.share.value for t in tables]), np.mean([t.chance for t in tables], 0)
    return float((1 + (chance >= seen - FLAT).sum()) / (1 + len(chance)))


@dataclass(frozen=True)
class _Grid:
    """The combinations that were run, which are all."""

    means: Floats
    """Mean outcome of each combination."""
    counts: NDArray[np.intp]
    """Runs of each combination."""
    where: NDArray[np.intp]
    """Index of each run's combination."""
    exchanged: NDArray[np.int64]
    """(combinations, factors): 1 where the factor comes from the donor."""


def _combinations_run(design: Floats, y: Floats) -> _Grid:
    k = design.shape[1]
    code = (design @ (2.0 ** np.arange(k))).astype(np.int64)
    cells, where, counts = np.unique(code, return_inverse=True, return_counts=True)
    if len(cells) < 2**k:
        raise NotEnoughData(f"all {2**k:,} combinations of what is exchanged (seen: {len(cells):,})")
    bits = (cells[:, None] >> np.arange(k)) & 1
    return _Grid(np.bincount(where, weights=y) / counts, counts, where, bits)


def _error(y: Floats, grid: _Grid, ceiling: float) -> tuple[float, float]:
    """Return the error variance of one run and its degrees of freedom, both from replicates.

    Combinations that were all censored at ``ceiling`` have none. Where some combinations scatter more than others, the
    variance is known less well: the degrees of freedom are fewer (Satterthwaite 1946, with the seen variances).
    """
    freedom = (grid.counts - 1) * (grid.means < ceiling - FLAT)
    if (within := int(freedom.sum())) < 1:
        raise NotEnoughData("replicates (perturb.ulps=1 with two seeds.perturb) to tell an effect from chaos")
    squares = np.bincount(grid.where, weights=(y - grid.means[grid.where]) ** 2)
    # The mean over combinations, so that many repeats of a quiet one do not make all look quiet.
    variances = squares[freedom > 0] / freedom[freedom > 0]
    # With f + 2 for f + 1 this would estimate the sum of v^2 / f without bias, but four combinations then hold in 91%.
    total, spread = float(variances.sum()), float((variances**2 / (freedom[freedom > 0] + 1)).sum())
    return total / len(variances), min(max(1.0, total**2 / spread), within) if spread else within
