"""Simulated studies of times, rates, repeats, layers, predictions and half-fate steps, with their true values.

Each yields what `benchmarks.coverage` tabulates. Outcomes have heavy tails, runs of one seed depend on each other, and
times are known up to their evaluations and cut by budgets, as in the committed stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, Estimate, NotEnoughData, generator, median_interval
from grok.analysis.statistics.halfway import halfway
from grok.analysis.statistics.modes import p_of_one_mode
from grok.analysis.statistics.prediction import auroc, spearman
from grok.analysis.statistics.proportions import difference, ratio, share
from grok.analysis.statistics.repeatability import Verdict, replication
from grok.analysis.statistics.shapley import additivity, attribute, p_of_no_pattern
from grok.analysis.statistics.survival import Times, geometric_mean, growth, quantile, ratio_of_times
from grok.analysis.studies import conditions

Floats = NDArray[np.float64]
Seen = tuple[str, float, Estimate, float]
"""A quantity, its true value, its estimate, and the value that the study would like to exclude."""
Study = Callable[[np.random.Generator], Iterator[Seen]]

STEPS: Final = np.array([49, 98, 196, 392, 784, 1568], dtype=float)
SIGNS: Final = (Verdict.MORE, Verdict.MOST)
LARGE: Final = 400_000
"""Draws for a true value that has no formula."""


def p(value: float) -> Estimate:
    """Return a test as an interval that excludes 0 if it rejects at 5%."""
    return Estimate(value, 0.0 if value > 0.05 else 0.5, 1.0, 1, "test")


Ends = tuple[float, float]


def _shares(
    rng: np.random.Generator, n: int, steps: Floats, spread: float, width: float, ends: Ends
) -> tuple[Floats, Floats, Floats]:
    own = 300 * np.exp(spread * rng.normal(size=(n, 1)))
    low, high = (rng.beta(6 * end, 6 * (1 - end), (n, 1)) for end in ends)
    return low + (high - low) * special.expit(np.log(steps / own) / width), low[:, 0], high[:, 0]


@cache
def _half_step(spread: float, width: float, ends: Ends) -> float:
    fine = np.geomspace(50, 2000, 400)
    curve, low, high = _shares(generator("half-fate truth"), 10_000, fine, spread, width, ends)
    return float(np.interp((low + high).mean() / 2, curve.mean(0), fine))


def half_fate(
    lines: int, orders: int, spread: float, width: float, ends: Ends, rng: np.random.Generator
) -> Iterator[Seen]:
    """Lines of descent with half-way steps of their own around 300 (``spread``: standard deviation of the log).

    A line's share of super children rises by a logistic curve of ``width`` in log steps, from and to ends of its own
    (beta around ``ends``). One line in ten misses the latest step. Two controls a line.
    """

    curve, low, high = _shares(rng, lines, STEPS, spread, width, ends)
    curve, low = rng.binomial(orders, curve) / orders, rng.binomial(orders, low) / orders
    curve[rng.random(lines) < 0.1, -1] = np.nan
    end = np.repeat(rng.binomial(2, high)[:, None] / 2, len(STEPS), 1)
    yield "half-fate step", _half_step(spread, width, ends), halfway(STEPS, curve, low, end, rng).place, STEPS[0]


def _late(rng: np.random.Generator, *shape: int) -> Floats:
    """Return log times: nine in ten around 10,000 steps with Student's tails, one in ten around 3,000."""
    slow = math.log(10_000) + 0.25 * rng.standard_t(4, shape)
    return np.asarray(np.where(rng.random(shape) < 0.9, slow, math.log(3000) + 0.3 * rng.normal(size=shape)))


@cache
def _median_time() -> float:
    return float(np.median(np.exp(_late(generator("truth of times"), LARGE))))


def times(n: int, budget: int, every: int, cut: float, rng: np.random.Generator) -> Iterator[Seen]:
    """Times of ``n`` seeds, evaluated every so many steps; a share ``cut`` of them ends at a random step before."""
    median = _median_time()
    when = np.exp(_late(rng, n))
    end = np.where(rng.random(n) < cut, rng.uniform(0.3 * budget, budget, n), budget) // every * every
    right = np.ceil(when / every) * every
    seen = right <= end
    observed = Times(np.where(seen, right - every, end), np.where(seen, right, np.inf))
    yield "median time", median, quantile(observed), 1.25 * median


def few_times(n: int, rng: np.random.Generator) -> Iterator[Seen]:
    """Times of ``n`` runs a side, twice as late on one, and of ``n`` at four fractions; log-normal or heavier tails."""
    for tails, draw in (("", rng.normal), (", heavy tails", lambda size: rng.standard_t(4, size) / math.sqrt(2))):
        logs = 9.0 + 0.4 * draw(size=(3, n)) + np.array([[math.log(2)], [0.0], [0.0]])
        slow, fast, fractions = (Times(np.exp(log) - 1e-6, np.exp(log)) for log in logs)
        yield f"geometric mean{tails}", math.exp(9.0), geometric_mean(fast), 1.5 * math.exp(9.0)
        yield f"ratio of times{tails}", 2.0, ratio_of_times(slow, fast), 1.0
        at = np.resize([0.3, 0.35, 0.4, 0.5], n)
        steeper = Times(*(ends * np.exp(-10 * (at - 0.3)) for ends in (fractions.left, fractions.right)))
        yield f"growth a point{tails}", math.expm1(0.1), growth(at, steeper), 0.0
        if n >= FEWEST_OF_A_MEDIAN:
            yield f"median{tails}", 9.0, median_interval(logs[1]), 9.4


def rates(n: int, m: int, rate: float, other: float, rng: np.random.Generator) -> Iterator[Seen]:
    """Counts of two independent sets of seeds."""
    a, b = int(rng.binomial(n, rate)), int(rng.binomial(m, other))
    yield "share", rate, share(a, n), 2 * rate
    yield "difference", other - rate, difference(a, n, b, m), 0.0
    if a + b:
        yield "ratio", rate / other, ratio(a, n, b, m), 1.0


def sharing(sizes: Sequence[int], paired: bool, rng: np.random.Generator) -> Iterator[Seen]:
    """Two values of a setting on so many seeds of each split; what the setting changes depends on the split."""
    split = np.repeat(np.arange(len(sizes)), sizes)
    labels = [split if paired else np.tile(split, 2)]
    of_split, of_run = rng.normal(0, 0.5, (2, len(sizes))), 0.3 * rng.standard_t(4, (2, len(split)))
    log, log0 = of_split[:, split] + of_run
    yield "ratio of times", 1.0, conditions.ratio_of_means(log, log0, paired, labels)[0], 2.0


def repeats(candidates: int, rate: float, alike: float, rng: np.random.Generator) -> Iterator[Seen]:
    """The first super seeds of a census are repeated; ``alike``: the correlation between runs of one seed."""
    census, each = 1984, 4
    spread = (1 - alike) / alike if alike else np.inf
    own = rng.beta(rate * spread, (1 - rate) * spread, census) if alike else np.full(census, rate)
    hit = rng.random(census) < own
    chosen = own[hit][:candidates]
    if not len(chosen):
        raise NotEnoughData("a super seed")
    counts = [(int(k), each) for k in rng.binomial(each, chosen)]
    found = replication(counts, [(int(hit.sum()), census)] * len(counts))
    base = found.candidates[0].base
    yield "one candidate's repeats", float(chosen[0]), found.candidates[0].again, rate
    yield "all candidates' repeats", float(chosen.mean()), found.pooled, rate
    if base is not None:
        yield "the other seeds' rate", rate, base, 2 * rate
    if found.mean is not None:
        yield "repeats of all such seeds", rate + alike * (1 - rate), found.mean, rate
    sign = found.verdict in SIGNS or found.count(*SIGNS) > 0
    yield "any sign that it is the seed", 0.0, p(0.0 if sign else 1.0), 0.0


def layers(factors: int, single: float, noise: float, rng: np.random.Generator) -> Iterator[Seen]:
    """All combinations of exchanged layers, two runs each; ``single``: the layers' share of the variance one by one.

    A fifth of the combinations scatters four times as much as the others, and with Student's tails.
    """
    bits = np.array(list(product((0.0, 1.0), repeat=factors)))
    design, names = np.repeat(bits, 2, 0), [f"layer {i}" for i in range(factors)]

    def centred(values: Floats) -> Floats:
        return np.asarray((values - values.mean()) / values.std())

    def one(rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return true means of the combinations and what two runs of each show."""
        main = np.column_stack([np.ones(len(bits)), bits])
        alone, together = bits @ rng.normal(size=factors), rng.normal(size=len(bits))
        together = together - main @ np.linalg.lstsq(main, together, rcond=None)[0]
        true = math.sqrt(single) * centred(alone) + math.sqrt(1 - single) * centred(together)
        sd = noise * np.where(rng.random(len(bits)) < 0.2, 2.0, 0.5)
        return true, np.repeat(true, 2) + np.repeat(sd, 2) * rng.standard_t(5, 2 * len(bits)) / math.sqrt(5 / 3)

    true, seen = one(rng)
    exact, found = attribute(design, np.repeat(true, 2), names), attribute(design, seen, names)
    yield "a layer's share", exact.shapley[names[0]].value, found.shapley[names[0]], 0.0
    yield "all layers", exact.total.value, found.total, 0.0
    tables = [(true, seen), *(one(rng) for _ in range(4))]
    adding = [additivity(design, seen, rng, draws=199) for _, seen in tables]
    yield "explained one by one", single, adding[0].share, 1.0
    yield "five tables have a pattern", 0.0, p(p_of_no_pattern(adding)), 0.0


@cache
def _auroc_of(gap: float) -> float:
    drawn = generator("truth of scores").standard_t(4, (2, LARGE))
    return float((drawn[0] + gap > drawn[1]).mean())


def predictions(n: int, hits: int, gap: float, levels: int, rng: np.random.Generator) -> Iterator[Seen]:
    """Scores of seeds with Student's tails; those of the sought ones are larger by ``gap``.

    Rank correlations are those of cells of three streams with so many ``levels`` each, which have three sevenths of the
    variance; 0: nothing is shared.
    """
    # The rank correlation of two normal variables with correlation 0.6.
    correlation = 6 / math.pi * math.asin(0.3)
    labels = np.arange(n) < hits
    yield "AUROC", _auroc_of(gap), auroc(rng.standard_t(4, n) + gap * labels, labels), 0.5
    cells = list(rng.integers(0, levels, (3, n))) if levels else []
    x, y = (rng.normal(size=n) + sum(0.5 * rng.normal(size=levels)[of] for of in cells) for _ in range(2))
    yield "rank correlation", correlation, spearman(x, 0.6 * x + 0.8 * y, shared=cells), 0.0


def modes(n: int, gap: float, rng: np.random.Generator) -> Iterator[Seen]:
    """A test of one continuum against groups: ``gap`` standard deviations between two groups, of 40% and 60%."""
    shapes = {"normal": rng.normal(size=n), "heavy tails": rng.standard_t(2, n), "skewed": rng.exponential(size=n)}
    if gap:
        shapes = {"normal": shapes["normal"] + gap * (rng.random(n) < 0.4)}
    for name, values in shapes.items():
        yield f"two groups, {name}", 0.0, p(p_of_one_mode(values)), 0.0


def cases() -> Iterator[tuple[str, str, Study]]:
    """Yield the section, the case and its simulated study."""
    for lines, orders in ((8, 1), (15, 1), (8, 4), (22, 8)):
        for spread, width, ends in ((0.0, 0.2, (0.1, 0.95)), (0.5, 0.3, (0.1, 0.95)), (1.0, 0.3, (0.3, 0.9))):
            case = f"{lines} lines × {orders}, spread {spread:g}, ends {ends[0]:.0%} and {ends[1]:.0%}"
            yield "half-fate", case, partial(half_fate, lines, orders, spread, width, ends)
    for n, every, cut in ((24, 500, 0.0), (80, 250, 0.3), (264, 250, 0.3)):
        yield "times", f"{n} seeds, {cut:.0%} cut before 20,000 steps", partial(times, n, 20_000, every, cut)
    for n in (4, 10, 24):
        yield "few times", f"{n} runs a side", partial(few_times, n)
    for n, m, rate, other in (
        (1984, 500, 0.01, 0.01),
        (1984, 500, 0.01, 0.04),
        (264, 264, 0.1, 0.3),
        (20, 200, 0.96, 0.96),
    ):
        yield "rates", f"{rate:.0%} of {n:,} and {other:.0%} of {m}", partial(rates, n, m, rate, other)
    for sizes, paired in product(((20,) * 5, (10,) * 10, (40, 20, 10, 5, 3, 2)), (True, False)):
        case = f"{len(sizes)} splits, {max(sizes)} to {min(sizes)} runs each, {'pairs' if paired else 'two groups'}"
        yield "shared seeds", case, partial(sharing, sizes, paired)
    for candidates, alike in product((6, 19), (0.0, 0.2, 0.9)):
        case = f"{candidates} super seeds × 4, runs of a seed {alike:.0%} alike"
        yield "repeats", case, partial(repeats, candidates, 0.01, alike)
    for factors, single, noise in ((5, 0.0, 0.3), (5, 0.3, 0.3), (5, 0.7, 0.3), (5, 0.7, 1.0), (2, 2 / 3, 0.3)):
        case = f"{factors} layers, {single:.0%} one by one, noise {noise:g}"
        yield "layers", case, partial(layers, factors, single, noise)
    for n, hits, gap in ((1984, 19, 0.0), (1984, 19, 1.0), (1984, 19, 4.0), (500, 10, 3.0)):
        yield "prediction", f"{hits} of {n:,}, {gap:g} apart", partial(predictions, n, hits, gap, 0)
    yield "prediction", "32 of 600 cells of 50 × 50 × 50, 2 apart", partial(predictions, 600, 32, 2.0, 50)
    for n, gap in product((13, 24, 100), (0.0, 4.0, 7.0)):
        yield "groups of times", f"{n} seeds, {gap:g} apart", partial(modes, n, gap)
