"""How often the intervals of the report hold: ``python -m benchmarks.coverage``.

Every estimator of the seeds' studies is applied to simulated studies of the committed stores' size with a known
truth: outcomes have heavy tails, runs of one seed depend on each other, and times are known up to their evaluations and
cut by budgets. `results/coverage/README.md` gets the table. ``--studies`` is the number of simulated studies of each
case.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, product
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, Estimate, NotEnoughData, generator, median_interval
from grok.analysis.statistics.halfway import halfway
from grok.analysis.statistics.modes import p_of_one_mode
from grok.analysis.statistics.prediction import auroc, spearman
from grok.analysis.statistics.proportions import at_any_time, difference, heterogeneity, ratio, share, unequal_rates
from grok.analysis.statistics.repeatability import (
    Verdict,
    between_parents,
    kept_distance,
    mean_share,
    normal_scores,
    replication,
)
from grok.analysis.statistics.shapley import additivity, attribute, p_of_no_pattern
from grok.analysis.statistics.survival import Times, geometric_mean, growth, quantile, ratio_of_times
from grok.analysis.statistics.variance_shares import CHAOS, Cells
from grok.analysis.studies import conditions
from grok.streams import RUN_STREAMS as STREAMS

Floats = NDArray[np.float64]
Effects = dict[tuple[str, ...], Floats]
Factors = dict[str, NDArray[np.int64]]
Seen = tuple[str, float, Estimate, float]
"""A quantity, its true value, its estimate, and the value that the study would like to exclude."""
Study = Callable[[np.random.Generator], Iterator[Seen]]

STUDIES: Final = 1000
PAGE: Final = Path("results/coverage/README.md")
START: Final = "<!-- table of python -m benchmarks.coverage -->"
END: Final = "<!-- end of the table -->"
SUBSETS: Final = [s for size in (1, 2, 3) for s in combinations(STREAMS, size)]
CENSUS, BLOCK, BLOCKS, TOP, TENTH = 1984, 50, 19, 19, float(special.ndtri(0.9))


@dataclass(frozen=True)
class World:
    """What decides a run's outcome, a standard normal number. ``variance``: of each set of streams."""

    name: str
    variance: tuple[tuple[tuple[str, ...], float], ...]
    tail: str = ""
    """``some``: split and init decide nine tenths of the outcome of every tenth pair, and nothing of the others'.
    ``best``: they decide it for the tenth pair that is best by it."""
    floor: float = -np.inf
    """Outcomes below it are equal: the runs are at chance level."""

    def effects(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Effects:
        return {s: rng.normal(size=shape) for s in [*SUBSETS, ("flag",)]}

    def redrawn(self, rng: np.random.Generator, parents: Effects, stream: str, times: int) -> Effects:
        """Return the effects of ``times`` children of each parent (parents, times)."""
        shape = (len(parents["split",]), times)
        new = self.effects(rng, shape)
        kept = {s: v for s, v in parents.items() if stream not in s and (s != ("flag",) or stream == "order")}
        return new | {s: np.broadcast_to(v[:, None], shape) for s, v in kept.items()}

    def outcome(self, e: Effects) -> Floats:
        if not self.tail:
            y = sum(np.sqrt(v) * e[s] for s, v in self.variance)
        else:
            pair, own = e["split", "init"], e[STREAMS]
            decided = pair > TENTH if self.tail == "best" else e["flag",] > TENTH
            rest = special.ndtri(0.9 * special.ndtr(own)) if self.tail == "best" else own
            y = np.sqrt(0.9) * np.where(decided, pair, rest) + np.sqrt(0.1) * e["split", "order"]
        return np.asarray(np.maximum(y, self.floor), dtype=np.float64)

    def early(self, rng: np.random.Generator, e: Effects) -> Floats:
        """Return an early measure, by which parents are chosen: it tells more about split and init than the outcome."""
        told = 0.7 * (e["split",] + e["split", "init"]) + rng.normal(0, 0.3, e["split",].shape)
        return np.asarray(self.outcome(e) + told)


ADDITIVE: Final = (
    (("split",), 0.1), (("init",), 0.05), (("split", "init"), 0.25), (("order",), 0.03), (("split", "order"), 0.07),
    (("init", "order"), 0.05), (STREAMS, 0.45),
)  # fmt: skip
WORLDS: Final = (
    World("additive", ADDITIVE),
    World("additive, 40% of runs at chance", ADDITIVE, floor=-0.25),
    World("nothing kept", ((STREAMS, 1.0),)),
    World("a tenth of pairs hands on", (), "some"),
    World("the best tenth hands on", (), "best"),
)


def redraws(world: World, rng: np.random.Generator, times: int = 4) -> pd.DataFrame:
    """Return single redraws as the committed ones: 19 best, 19 random and the other super parents, and one line.

    A row per child: its score (``children``), what is ``redrawn``, its parent (``parents``), line (``lines``) and
    parent's score (``own``), and whether the parent was ``chosen`` by its early loss or its outcome; others are random.

    Of each 50 seeds the best by an early loss and a random one are parents. So are the best of the census by their
    outcome. The line: the best of 40 other seeds, with twice as many children, the best three of which are parents.
    """
    census = world.effects(rng, (CENSUS,))
    y, early = world.outcome(census), world.early(rng, census)
    first = np.arange(BLOCKS) * BLOCK
    best = first + early[: BLOCKS * BLOCK].reshape(BLOCKS, BLOCK).argmax(1)
    random = first + (best - first + rng.integers(1, BLOCK, BLOCKS)) % BLOCK
    top = np.setdiff1d(np.argsort(y)[-TOP:], np.concatenate([best, random]))
    rows = np.concatenate([best, random, top])
    named = world.effects(rng, (40,))
    founder = np.array([world.outcome(named).argmax()])
    groups = [(_take(census, rows), times), (_take(named, founder), 2 * times)]
    grandchildren = [world.redrawn(rng, groups[1][0], stream, 8) for stream in STREAMS]
    flat = {s: np.concatenate([g[s].reshape(-1) for g in grandchildren]) for s in census}
    groups.append((_take(flat, np.argsort(world.outcome(flat))[-3:]), times))
    out, start = [], 0
    for effects, number in groups:
        parent = np.arange(len(effects["split",])) + start
        start += len(parent)
        chosen = ~np.isin(parent, np.arange(BLOCKS, 2 * BLOCKS))
        line, own = np.minimum(parent, len(rows)), normal_scores(world.outcome(effects), y)
        family = pd.DataFrame({"parents": parent, "lines": line, "own": own, "chosen": chosen})
        for stream in STREAMS:
            kids = world.outcome(world.redrawn(rng, effects, stream, number)).reshape(-1)
            each = family.loc[family.index.repeat(number)]
            out.append(each.assign(children=normal_scores(kids, y), redrawn=stream))
    return pd.concat(out, ignore_index=True)


def _take(effects: Effects, rows: NDArray[np.int64]) -> Effects:
    return {s: v[rows] for s, v in effects.items()}


@cache
def _truths(world: World) -> dict[tuple[str, str], float]:
    """Return the true values by quantity and redraw, from 300 censuses with 40 children of each parent and redraw."""
    rng = generator(f"coverage truth {world.name}")
    sums: dict[tuple[str, str], Floats] = {}
    for _ in range(300):
        found = redraws(world, rng, 40)
        for stream in STREAMS:
            for kind, of_kind in _kinds(found).items():
                rows = found[of_kind & (found["redrawn"] == stream)]
                families = rows.groupby("parents")["children"]
                size, total = families.size(), families.sum()
                products = (total**2 - (rows["children"] ** 2).groupby(rows["parents"]).sum()) / (size * (size - 1))
                column = [len(size), products.sum(), (total / size).sum(), total.sum(), rows["own"].sum()]
                sums[kind, stream] = sums.get((kind, stream), np.zeros(5)) + column
    truths = {}
    for (kind, stream), (n, products, means, total, own) in sums.items():
        truths[kind, stream] = total / own if kind == "chosen" else products / n - (means / n) ** 2
    return truths


def _kinds(found: pd.DataFrame) -> dict[str, pd.Series]:
    every, chosen = found["parents"] >= 0, found["chosen"]
    return {"siblings, all parents": every, "siblings, random parents": ~chosen, "chosen": chosen}


def _offspring(world: World, rng: np.random.Generator) -> Iterator[Seen]:
    every = redraws(world, rng)
    truths = _truths(world)
    for kind, rows in _kinds(every).items():
        data = [every.loc[rows, c].to_numpy() for c in ("children", "redrawn", "parents", "lines", "own")]
        kept = kept_distance(*data) if kind == "chosen" else between_parents(*data[:4])
        name = "distance kept, chosen parents" if kind == "chosen" else kind
        for stream in ("order", "split"):
            yield f"{name}: {stream} redrawn", truths[kind, stream], kept.shares[stream], 0.0
        truth = truths[kind, "order"] - truths[kind, "split"]
        yield f"{name}: order minus split", truth, kept.contrasts["order", "split"], 0.0


def grid(*sizes: int) -> Factors:
    """Return the levels of a full grid with two runs a cell."""
    levels = np.meshgrid(*map(np.arange, sizes), np.arange(2), indexing="ij")
    return {stream: level.reshape(-1) for stream, level in zip(STREAMS, levels, strict=False)}


def sampled(*sizes: int, cells: int, again: int) -> Factors:
    """Return the levels of ``cells`` random cells, of which ``again`` are run twice."""
    rng = generator(f"coverage cells {sizes} {cells}")
    codes = np.unique(np.stack([rng.integers(0, size, cells) for size in sizes], 1), axis=0)
    codes = np.concatenate([codes, rng.permutation(codes)[:again]])
    return dict(zip(STREAMS, codes.T, strict=True))


MIXED: Final = {"split": 0.05, "init": 0.3, "order": 0.2, "init × order": 0.15, CHAOS: 0.3}
PAIRS: Final = {
    "split": 0.1, "init": 0.05, "split × init": 0.25, "split × order": 0.07, "init × order": 0.05,
    "split × init × order": 0.46, CHAOS: 0.02,
}  # fmt: skip


ONCE: Final = {"split": 0.02, "init": 0.12, "split × init": 0.12, "split × init × order": 0.74, CHAOS: 0.0}
"""Of cells with one run each: shares of normal scores, with chaos in the last one."""


def effects_of(factors: Factors, truth: dict[str, float], rng: np.random.Generator, rare: bool = False) -> Floats:
    """Return outcomes (n,) with the variance components ``truth``; ``rare``: a tenth of all levels has most effect."""
    n = len(factors["split"])
    y = rng.normal(0, np.sqrt(truth[CHAOS]), n)
    for name, variance in truth.items():
        if name != CHAOS:
            codes = np.stack([factors[stream] for stream in name.split(" × ")], 1)
            level = np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)
            effect = rng.normal(size=int(level.max()) + 1)
            if rare:
                effect *= np.sqrt(np.where(rng.random(len(effect)) < 0.1, 5.5, 0.5))
            y += np.sqrt(variance) * effect[level]
    return y


def _crossed(
    cells: Callable[[], Cells], factors: Factors, truth: dict[str, float], rare: bool, rng: np.random.Generator
) -> Iterator[Seen]:
    y = effects_of(factors, truth, rng, rare)
    found = cells().shares(normal_scores(y, y) if truth is ONCE else y)
    for name, e in found.shares.items():
        yield name, truth.get(name.removesuffix(f" and {CHAOS}"), 0.0), e, 0.0
    assert found.together is not None
    sums = (v for name, v in truth.items() if "×" in name and f"{name} and {CHAOS}" not in found.shares)
    yield "all interactions", sum(sums), found.together, 0.0


def _families(parents: int, handing: float, high: float, low: float, rng: np.random.Generator) -> Iterator[Seen]:
    """Four children of each parent; the share ``handing`` of parents has super children at the rate ``high``."""
    rates = np.where(rng.random(parents) < handing, high, low)
    counts = [(int(k), 4) for k in rng.binomial(4, rates)]
    yield "super children of all such parents", handing * high + (1 - handing) * low, mean_share(counts), 0.0096


def _growing(rate: float, rng: np.random.Generator) -> Iterator[Seen]:
    """A store of 2,000 seeds that is looked at after every 50, until its interval excludes the true rate."""
    hits = np.cumsum(rng.random(2000) < rate)
    for name, interval in (("one look's interval", share), ("at any time", at_any_time)):
        looks = [interval(int(hits[n - 1]), n) for n in range(50, 2001, 50)]
        wrong = [e for e in looks if not e.low <= rate <= e.high]
        yield name, rate, wrong[0] if wrong else looks[-1], 2 * rate


def _levels(init: float, interaction: float, rng: np.random.Generator) -> Iterator[Seen]:
    factors = grid(3, 4, 4)
    truth = {"init": init, "split × init": interaction, "init × order": interaction, CHAOS: 0.02}
    truth["split × init × order"] = 1 - sum(truth.values())
    first = np.arange(96) % 2 == 0
    y = effects_of(factors, truth, rng)[first]
    split, order, levels = (factors[name][first] for name in ("split", "order", "init"))
    quarter = y < np.quantile(y, 0.25)
    for name, values, blocks in (
        ("by itself, by the top quarter", quarter, [split, order]),
        ("by itself, by ranks", y, [split, order]),
        ("at all, by ranks", y, [4 * split + order]),
    ):
        yield name, 0.0, p(heterogeneity(values, levels, rng, 199, blocks).p), 0.0


def _groups(rates: tuple[float, ...], rng: np.random.Generator) -> Iterator[Seen]:
    found = unequal_rates(rng.binomial(500, rates).tolist(), [500] * len(rates), rng, 999)
    yield "any group differs", 0.0, p(found.p), 0.0


# Times, rates, repeats, layers, predictions and half-fate steps.

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
    for world in WORLDS:
        yield "redraws", world.name, partial(_offspring, world)

    def crossed(factors: Factors, merged: bool = False) -> Callable[[dict[str, float], bool], Study]:
        cells = cache(lambda: Cells(factors, generator("coverage crossed"), merged))

        def study(truth: dict[str, float], rare: bool) -> Study:
            return partial(_crossed, cells, factors, truth, rare)

        return study

    for name, study in (
        ("3 × 4 × 4, twice", crossed(grid(3, 4, 4))),
        ("600 of 40 × 40 × 40, 60 twice", crossed(sampled(40, 40, 40, cells=600, again=60))),
    ):
        yield "crosses", f"{name}; mostly single seeds", study(MIXED, False)
        yield "crosses", f"{name}; mostly pairs and triples", study(PAIRS, False)
        yield "crosses", f"{name}; a tenth of levels has most effect", study(MIXED, True)
    once = crossed(sampled(50, 50, 50, cells=600, again=0), merged=True)
    for rare, most in ((False, "mostly triples"), (True, "a tenth of levels has most effect")):
        yield "crosses", f"600 of 50 × 50 × 50, once, by ranks; {most}", once(ONCE, rare)
    for parents in (13, 19, 51):
        yield "families", f"{parents} parents, a tenth hands on in 9 of 10", partial(_families, parents, 0.1, 0.9, 0.01)
        yield "families", f"{parents} parents, a tenth hands on in half", partial(_families, parents, 0.1, 0.5, 0.005)
        yield "families", f"{parents} parents, all alike", partial(_families, parents, 1.0, 0.1, 0.0)
    for rate in (0.01, 0.1):
        yield "growing", f"rate {rate:.0%}, 40 looks", partial(_growing, rate)
    for init, interaction in ((0.0, 0.0), (0.0, 0.25), (0.25, 0.0), (0.5, 0.0)):
        yield "levels", f"init {init:.0%}, its two pairs {interaction:.0%} each", partial(_levels, init, interaction)
    for several in ((0.01,) * 4, (0.01, 0.01, 0.01, 0.03), (0.0, 0.06)):
        yield "groups", " and ".join(f"{r:.0%}" for r in several) + " of 500", partial(_groups, several)
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
    worlds = ((5, 0.0, 0.3), (5, 0.3, 0.3), (5, 0.7, 0.3), (5, 0.7, 1.0), (2, 2 / 3, 0.3), (5, 1.0, 0.3), (5, 1.0, 1.0))
    for exchanged, single, noise in worlds:
        case = f"{exchanged} layers, {single:.0%} one by one, noise {noise:g}"
        yield "layers", case, partial(layers, exchanged, single, noise)
    for n, hits, gap in ((1984, 19, 0.0), (1984, 19, 1.0), (1984, 19, 4.0), (500, 10, 3.0)):
        yield "prediction", f"{hits} of {n:,}, {gap:g} apart", partial(predictions, n, hits, gap, 0)
    yield "prediction", "32 of 600 cells of 50 × 50 × 50, 2 apart", partial(predictions, 600, 32, 2.0, 50)
    for n, gap in product((13, 24, 100), (0.0, 4.0, 7.0)):
        yield "groups of times", f"{n} seeds, {gap:g} apart", partial(modes, n, gap)


SECTIONS: Final = tuple(dict.fromkeys(section for section, _, _ in cases()))

HEAD: Final = (
    "| of | simulated study | estimate | truth | holds | truth below | truth above | mean width | says so | studies |\n"
    "|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
)


def row(section: str, case: str, quantity: str, seen: list[Seen]) -> str:
    """Return one line of the table: the share of studies whose interval holds the truth, and how wide it is."""
    truth = np.array([t for _, t, _, _ in seen])
    low, high = (np.array([getattr(e, end) for _, _, e, _ in seen]) for end in ("low", "high"))
    null = np.array([n for _, _, _, n in seen])
    below, above = truth < low - 1e-9, truth > high + 1e-9
    said = (low > null + 1e-9) | (high < null - 1e-9)
    test = all(e.method == "test" for _, _, e, _ in seen)
    shares = truth.mean(), 1 - below.mean() - above.mean(), below.mean(), above.mean()
    cells = [""] * 5 if test else [*(f"{v:.3f}" for v in shares), f"{(high - low).mean():.2f}"]
    return f"| {section} | {case} | {quantity} | {' | '.join(cells)} | {said.mean():.3f} | {len(seen):,} |"


def table(studies: int, wanted: str = "") -> list[str]:
    """Return the lines of the table of ``studies`` simulated studies a case, of one section where it is ``wanted``."""
    lines = []
    for section, case, study in cases():
        if wanted not in ("", section):
            continue
        rng = generator(f"coverage {section} {case}")
        found: dict[str, list[Seen]] = {}
        for _ in range(studies):
            with suppress(NotEnoughData):  # such a study says so, and has no interval to hold anything
                for seen in study(rng):
                    found.setdefault(seen[0], []).append(seen)
        for quantity, all_seen in found.items():
            lines.append(row(section, case, quantity, all_seen))
            print(lines[-1], flush=True)
    return lines


def summary(lines: list[str]) -> str:
    """Return how many intervals hold as often as they say, of those for a size that was fixed beforehand."""
    rows = [line.split(" | ") for line in lines if "one look's interval" not in line]
    held = np.array([float(cells[4]) for cells in rows if cells[4].strip()])
    wide, narrow = int((held > 0.97).sum()), int((held < 0.93).sum())
    return (
        f"Of {len(held)} intervals {len(held) - wide - narrow} hold in 93 to 97% of the studies, {wide} in more, and "
        f"{narrow} in less (at least {held.min():.1%})."
    )


def main() -> None:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=STUDIES)
    parser.add_argument("--only", default="", choices=SECTIONS, help="print this section only, and leave the page")
    arguments = parser.parse_args()
    lines = table(arguments.studies, arguments.only)
    if not arguments.only:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text[: text.index(START)], text[text.index(END) :]
        PAGE.write_text("\n".join([before + START, "", summary(lines), "", HEAD, *lines, "", after]), encoding="utf-8")


if __name__ == "__main__":
    main()
