"""Variance shares of crossed streams, and the crossed designs of a store.

The outcome y of a run is a sum of independent random effects, one for each set of crossed
factors and one for the replicate (chaos):
``y = mean + sum over sets A of effect_A(levels of A) + chaos``.

Two runs that share exactly the levels of the factors A differ by the effects of all other sets. So half the mean
squared difference of such pairs is the total variance without that of A and its subsets, and differences between
these means give each component. Sums over pairs are sums over groups, so thousands of cells take seconds. On a full
grid with equal numbers of replicates the components are those of the classical analysis of variance.

Intervals invert a simulated test: a share is inside if normal effects of this share, on the same cells, give an
estimate as far from it as the one seen often enough. Effects with heavier tails than the normal distribution widen it,
by three times the excess kurtosis that is seen: few levels show only a part of their tails.

Sources: Searle, Casella and McCulloch 1992; Sobol 1993 (pairs that share a set of inputs); Carpenter 1999 (test
inversion by simulation).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from grok.analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHAOS: Final = "chaos"
SIMULATED: Final = 1000
"""Number of simulated outcomes."""
MOST_VALUES: Final = 500_000
"""Effects that are simulated at a time."""
LEAST: Final = 0.02
"""Smallest simulated estimate of a component with variance 1 whose logarithm is taken."""
LEVELS: Final = 4
"""Smallest number of levels, or of cells with replicates, whose tails are estimated."""
ROUNDING: Final = 1e-20
"""Share of the variance of all runs up to which that of means is rounding."""
TAILS: Final = 3.0
"""How many times the excess kurtosis that is seen counts."""
SURE: Final = 0.995
"""Level of the interval of a share by which that of another one is cut. Ten such intervals hold at once at ``LEVEL``
(Bonferroni), so that of the largest of ten shares does, too."""
POWER: Final = 0.8
SHARES: Final = np.sin(np.linspace(0, np.pi / 2, 61)) ** 2
"""Shares that are held against the estimate."""


@dataclass(frozen=True)
class VarianceShares:
    """Share of the total variance by component: ``"init"``, ``"init × order"``, ..., ``"chaos"``."""

    shares: dict[str, Estimate]
    together: Estimate | None
    """Share of all interactions; None with a single factor."""
    sums: dict[str, Estimate]
    """Shares of the requested sums of components, by name."""
    largest: Estimate
    """The largest share, with an interval that allows for its choice."""
    components: dict[str, float]
    total: Estimate
    """The total variance: that of runs whose seeds are all drawn anew."""
    levels: dict[str, int]
    replicates: float
    n: int
    balanced: bool
    """A full grid with equally many replicates in each cell."""


def variance_shares(
    y: Floats,
    factors: Mapping[str, Ints],
    rng: np.random.Generator,
    sums: Mapping[str, Collection[str]] | None = None,
    merged: bool = False,
) -> VarianceShares:
    """Return the variance shares of outcome ``y`` (n,) over crossed ``factors`` (name: level of each run).

    Factors with a single level are left out. ``sums`` names sums of components. Example: an order nested in its
    split is the crossed model with the sum of ``order`` and ``split × order``.

    ``merged``: the interaction of all factors counts as chaos, so that no cell needs two replicates.

    Raises:
        NotEnoughData: no factor has two levels; no cell has two replicates, so interaction and chaos cannot
            be separated, and they are not ``merged``; no two runs share exactly one of the sets of factors; or all
            outcomes are equal.
    """
    return Cells(factors, rng, merged).shares(y, sums)


def carried(y: Floats, rows: NDArray[np.bool_]) -> float:
    """Return the share of the sum of squares of ``y`` (n,) about its mean that ``rows`` (n,) carry."""
    squares = (y - y.mean()) ** 2
    return float(squares[rows].sum() / squares.sum()) if squares.any() else 0.0


def bounded(y: Floats, saturated: NDArray[np.bool_]) -> Floats:
    """Return ``y`` (n,) with the ``saturated`` runs (n,) moved to the nearest value of the others.

    A run at the end of its scale, such as one without a wrong answer, has a value that says how many examples there
    are. Beside this, give the shares without these runs, which are those of a sampled grid.

    Raises:
        NotEnoughData: all runs are saturated.
    """
    if saturated.all():
        raise NotEnoughData("runs that are not at the end of the scale")
    return np.asarray(np.clip(y, y[~saturated].min(), y[~saturated].max()))


def _name(names: Sequence[str], subset: Iterable[int]) -> str:
    return " × ".join(names[i] for i in subset)


class Cells:
    """The cells of one design: its pairs of runs by the factors whose levels they share, and simulated effects."""

    def __init__(self, factors: Mapping[str, Ints], rng: np.random.Generator, merged: bool = False) -> None:
        """Count the pairs, and simulate effects with variance 1. Arguments and errors: `variance_shares`."""
        names = [name for name, values in factors.items() if len(np.unique(values)) > 1]
        if not names:
            raise NotEnoughData("at least two levels of one source of randomness")
        codes = np.stack([np.unique(factors[name], return_inverse=True)[1] for name in names], 1)
        n, k = codes.shape
        sets = [s for size in range(k + 1) for s in combinations(range(k), size)]
        self._subsets = sets[1:-1] if merged else sets[1:]
        self.labels = [_name(names, s) for s in self._subsets]
        self.labels.append(f"{_name(names, range(k))} and {CHAOS}" if merged else CHAOS)
        self._groups = [np.unique(codes[:, list(s)], axis=0, return_inverse=True)[1].reshape(-1) for s in sets]
        sizes = [np.bincount(group) for group in self._groups]
        self._counts, self._merged = sizes[-1], merged
        if not merged and self._counts.max() < 2:
            raise NotEnoughData(
                "at least two replicates of a cell (perturb.ulps=1 with two seeds.perturb): with one deterministic run "
                "a cell, interaction and chaos look the same"
            )
        self._member = [sparse.csr_array((np.ones(n), (group, np.arange(n)))) for group in self._groups]
        self._own = np.stack([size[group] for size, group in zip(sizes, self._groups, strict=True)], 1).astype(float)
        # From pairs that share at least a set to those that share exactly it.
        exactly = np.array([[(-1.0) ** (len(b) - len(a)) * (set(a) <= set(b)) for b in sets] for a in sets])
        pairs = exactly @ (self._own.sum(0) - n)
        used = 1 + len(self._subsets)
        missing = [label for label, number in zip(self.labels, pairs[1:used], strict=False) if number < 1]
        if missing or pairs[0] < 1:
            raise NotEnoughData(
                f"seeds crossed more fully to tell {', '.join(missing)} from the rest (a grid, full or sampled)"
            )
        self.levels = dict(zip(names, (int(size) for size in codes.max(0) + 1), strict=True))
        self.balanced = bool(len(self._counts) == np.prod(codes.max(0) + 1) and np.ptp(self._counts) == 0)
        apart = exactly[:used] / pairs[:used, None]  # half the mean squared difference, from sums over groups
        upper = [[(-1.0) ** (len(a) - len(b)) * (set(b) <= set(a)) for b in self._subsets] for a in self._subsets]
        single = np.array(upper).reshape(used - 1, used - 1) @ (apart[0] - apart[1:])
        self._solve = np.concatenate([single, (apart[0] - single.sum(0))[None]])
        self._simulated = self._simulate(rng)
        self._others = rng.permutation(SIMULATED)

    def components(self, y: Floats) -> Floats:
        """Return the estimated components (components,) of outcome ``y`` (n,), chaos last; they may be negative."""
        y = y - y.mean()
        sums = np.array([float(((member @ y) ** 2).sum()) for member in self._member])
        return np.asarray(self._solve @ (self._own.T @ y**2 - sums))

    def shares(self, y: Floats, sums: Mapping[str, Collection[str]] | None = None) -> VarianceShares:
        """Return the variance shares of outcome ``y`` (n,). Arguments: `variance_shares`.

        Raises:
            NotEnoughData: all outcomes are equal.
        """
        if float(np.ptp(y)) == 0:
            raise NotEnoughData("outcomes that differ")
        point = self.components(y)
        parts = np.maximum(point, 0)
        simulated, times = self._with_tails(y, parts)
        sd = np.tile(np.sqrt(parts), (SIMULATED, 1))
        # The other components are not known: each simulated outcome has those of another one's estimate.
        others = np.maximum(_quadratic(simulated, sd, sd), 0)[self._others]
        method = "pairs of runs, full grid" if self.balanced else "pairs of runs, sampled grid"
        total = simulated.sum(1)

        def estimates(of: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Estimate, Estimate]:
            value = float(parts[of].sum() / parts.sum())
            forms = simulated[:, of].sum(1) - float(point[of].sum() / point.sum()) * total
            usual, sure = (
                Estimate(value, min(low, value), max(high, value), len(y), method, level)
                for level, (low, high) in _inverted(forms, others, of, LEVEL, SURE).items()
            )
            return of, usual, sure

        labels = np.array(self.labels)
        members = [labels == label for label in self.labels]
        summed = {name: np.isin(labels, list(m)) for name, m in (sums or {}).items() if set(m) <= set(self.labels)}
        together = np.array([len(s) > 1 for s in self._subsets] + [False])
        made = [estimates(of) for of in [*members, *summed.values(), together] if of.any()]
        own = _consistent(made)
        of_all = own.pop() if together.any() else None
        most = int(np.argmax(parts))
        sure = made[most][2]
        largest = replace(sure, low=min(sure.low, own[most].low), high=max(sure.high, own[most].high), level=LEVEL)
        return VarianceShares(
            dict(zip(self.labels, own, strict=False)),
            of_all,
            dict(zip(summed, own[len(labels) :], strict=True)),
            largest,
            dict(zip(self.labels, parts.tolist(), strict=True)),
            self._total(others, float(point.sum()), float(1 + (times - 1) @ parts / parts.sum()), len(y)),
            self.levels,
            len(y) / len(self._counts),
            len(y),
            self.balanced,
        )

    def _total(self, others: Floats, value: float, times: float, n: int) -> Estimate:
        """Return the total variance, half the mean squared difference of runs that share no seed.

        Its estimate over the true one is as in the simulation, whatever the scale; with heavier tails than the normal
        its logarithm has ``times`` the variance.
        """
        varied = others.sum(1) > 0
        sd = np.sqrt(others[varied])
        ratio = np.maximum(_quadratic(self._simulated[varied], sd, sd).sum(1) / others[varied].sum(1), LEAST)
        ratio **= math.sqrt(times)
        ratio /= ratio.mean()
        low, high = value / np.quantile(ratio, [(1 + LEVEL) / 2, (1 - LEVEL) / 2])
        return Estimate(value, min(float(low), value), max(float(high), value), n, "simulated pairs of runs")

    def _with_tails(self, y: Floats, components: Floats) -> tuple[Floats, Floats]:
        """Return the simulated estimates, those of effects with heavier tails than the normal further apart.

        With them, how many times its variance the estimate of each component has.
        """
        simulated, times = self._simulated.copy(), np.ones(len(components))
        for i, s in enumerate(self._subsets):
            group = self._groups[1 + i]
            size = np.bincount(group)
            # A mean over few runs of a sampled grid shows the tails of all other effects.
            if len(size) < LEVELS or components[i] <= 0 or (len(s) > 1 and not self.balanced):
                continue
            means = np.bincount(group, weights=y) / size
            if float(means.var()) <= ROUNDING * float(y.var()):
                continue
            excess = TAILS * float(stats.kurtosis(means, bias=False)) * (float(means.var()) / components[i]) ** 2
            times[i] = max(1.0, 1 + min(excess, float(len(size))) / 2)
        repeated = self._counts > 1
        if not self._merged and repeated.sum() >= LEVELS:
            where = self._groups[-1]
            means = np.bincount(where, weights=y) / self._counts
            squares = np.bincount(where, weights=(y - means[where]) ** 2)[repeated]
            freedom = (self._counts[repeated] - 1).astype(np.float64)
            if float(squares.sum()) > 0:
                expected = squares.sum() / freedom.sum() * freedom
                spread = float(((squares - expected) ** 2).sum() / (2 * expected**2 / freedom).sum())
                times[-1] = max(1.0, 1 + TAILS * (spread - 1))
        for i in np.flatnonzero(times > 1).tolist():
            # the estimate is a variance: stretched in its logarithm, it stays above 0
            stretch = math.sqrt(float(times[i]))
            simulated[:, :, i, i] *= stretch
            own = np.maximum(simulated[:, i, i, i] / stretch, LEAST) ** stretch
            simulated[:, i, i, i] = own / own.mean()
        return simulated, times

    def _simulate(self, rng: np.random.Generator) -> Floats:
        """Return the estimates of simulated outcomes (draws, estimates, components, components), as quadratic forms.

        The outcome of a draw is the sum of normal effects, each with its standard deviation. The estimates are
        quadratic in these, so one simulation serves all components.
        """
        n, c = len(self._own), len(self._solve)
        groups = [*self._groups[1:c], np.arange(n)]
        out, size = [], max(1, MOST_VALUES // (n * c))
        for start in range(0, SIMULATED, size):
            draws = min(size, SIMULATED - start)
            effects = np.stack([rng.normal(size=(int(g.max()) + 1, draws))[g] for g in groups], 2)  # (n, draws, c)
            forms = np.zeros((draws, c, c * c))
            for i, member in enumerate(self._member):
                weighted = (effects * self._own[:, i, None, None]).transpose(1, 2, 0) @ effects.transpose(1, 0, 2)
                sums = np.asarray(member @ effects.reshape(n, -1)).reshape(-1, draws, c)
                weighted -= sums.transpose(1, 2, 0) @ sums.transpose(1, 0, 2)
                forms += self._solve[:, i, None] * weighted.reshape(draws, 1, c * c)
            out.append(forms.reshape(draws, c, c, c))
        return np.concatenate(out)


def _consistent(shares: Sequence[tuple[NDArray[np.bool_], Estimate, Estimate]]) -> list[Estimate]:
    """Return the shares of sets of components, their intervals without what the others rule out at the level ``SURE``.

    A set has at least what a part of it has, at most what a larger one has, and not what a set apart has. The second
    estimate of a share is that at ``SURE``: ends at the own level would rule out too much. An interval is never widened
    to hold that of a part: a part that is seen would be no longer.
    """
    made = []
    for mine, e, _ in shares:
        low = max([e.low, *(sure.low for of, _, sure in shares if not (of & ~mine).any())])
        high = min([e.high, *(sure.high for of, _, sure in shares if not (mine & ~of).any())])
        rest = max((sure.low for of, _, sure in shares if not (mine & of).any()), default=0.0)
        made.append(replace(e, low=min(low, e.value), high=max(min(high, 1 - rest), e.value)))
    return made


def _quadratic(forms: Floats, left: Floats, right: Floats) -> Floats:
    """Return ``forms`` (draws, ..., c, c) between the vectors ``left`` and ``right`` (draws, c): (draws, ...)."""
    middle = (1,) * (forms.ndim - 3)
    half = forms @ right.reshape(len(right), *middle, -1, 1)
    return np.asarray((left.reshape(len(left), *middle, -1) * half[..., 0]).sum(-1))


def _inverted(
    forms: Floats, others: Floats, members: NDArray[np.bool_], *levels: float
) -> dict[float, tuple[float, float]]:
    """Return the ends of the interval of the share of ``members`` (components,) by level.

    ``forms`` (draws, c, c): what is simulated for the members, less the share seen of that for all.
    """
    sds = []
    for mine in (members, ~members):
        parts = others * mine
        parts[parts.sum(1) == 0] = mine
        sds.append(np.sqrt(parts / parts.sum(1, keepdims=True)))
    # The outcome is sqrt(s) times an effect inside and sqrt(1 - s) times one outside.
    inside, outside = sds
    own, mixed, rest = (
        _quadratic(forms, *pair)[:, None] for pair in ((inside, inside), (inside, outside), (outside, outside))
    )
    gap = SHARES * own + 2 * np.sqrt(SHARES * (1 - SHARES)) * mixed + (1 - SHARES) * rest
    above, below = (np.maximum.accumulate(share) for share in ((gap >= 0).mean(0), (gap <= 0).mean(0)[::-1]))
    ends = {}
    for level in levels:
        tail = (1 - level) / 2
        low = float(np.interp(tail, above, SHARES)) if above[0] < tail else 0.0
        ends[level] = low, 1 - float(np.interp(tail, below, SHARES)) if below[0] < tail else 1.0
    return ends


def seeds_needed(sd: float, difference: float) -> int:
    """Return how many runs of each of two settings show a ``difference`` of their means with probability ``POWER``.

    The two-sided t test of two samples with standard deviation ``sd`` and no common seeds, at ``1 - LEVEL``.
    """
    quantiles = stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER)
    n = max(2, math.floor(2 * (quantiles * sd / difference) ** 2))  # the t test needs more
    while True:
        limit, away = stats.t.ppf((1 + LEVEL) / 2, 2 * n - 2), difference / sd * math.sqrt(n / 2)
        if stats.nct.sf(limit, 2 * n - 2, away) >= POWER:
            return n
        n += 1


# Which runs of a store form a crossed design: each seed of one stream is combined with several of the others.
#
# Source: Shin, Hooi and Faloutsos 2016 (densest block of a sparse tensor by peeling).

Flags = NDArray[np.bool_]


def crossed(codes: Ints) -> Flags:
    """Return the largest set of rows of ``codes`` (n, factors), as flags (n,), that is crossed.

    In a crossed set each level of a factor is combined with two or more levels of every other factor. Rows
    that break this are removed until none does.
    """
    kept = np.ones(len(codes), dtype=bool)
    while kept.any():
        bad = np.zeros(len(codes), dtype=bool)
        for a, b in permutations(range(codes.shape[1]), 2):
            pairs = np.unique(codes[kept][:, [a, b]], axis=0)
            levels, met = np.unique(pairs[:, 0], return_counts=True)
            bad |= kept & np.isin(codes[:, a], levels[met < 2])
        if not bad.any():
            break
        kept &= ~bad
    return kept


def densest(codes: Ints) -> Flags:
    """Return the rows of ``codes`` (n, factors), as flags (n,), of the crossed design with most cells per level.

    A store can have a grid and other runs that share some of its levels; a mean over both would mix
    two designs. So the levels with the smallest share of their possible cells are removed one by one.
    Of the designs on the way, the one with most different cells per level is returned (of equal ones
    the largest). All flags are False if no rows are crossed.
    """
    cells, where = np.unique(codes, axis=0, return_inverse=True)
    where = where.reshape(-1)
    kept = crossed(cells)
    best, most = np.zeros(len(cells), dtype=bool), 0.0
    while kept.any():
        levels = [np.unique(column, return_counts=True) for column in cells[kept].T]
        sizes = np.array([len(values) for values, _ in levels])
        density = float(kept.sum() / sizes.sum())
        if density > most + 1e-9:
            best, most = kept.copy(), density
        filled = [counts.min() / (np.prod(sizes) / size) for (_, counts), size in zip(levels, sizes, strict=True)]
        thin = int(np.argmin(filled))
        if filled[thin] == 1:
            break  # a full grid: removing a level would lower its cells per level
        values, counts = levels[thin]
        kept &= ~np.isin(cells[:, thin], values[counts == counts.min()])
        kept[kept] = crossed(cells[kept])
    return np.asarray(best[where])


def filled(codes: Ints) -> tuple[int, int]:
    """Return the number of different cells in ``codes`` (n, factors), and that of the full grid of their levels."""
    return len(np.unique(codes, axis=0)), int(np.prod([len(np.unique(column)) for column in codes.T]))
