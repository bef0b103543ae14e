"""Variance shares: known shares are recovered, intervals cover, a null stays null."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData, generator
from analysis.statistics.variance_shares import CHAOS, Cells, bounded, carried, variance_shares
from benchmarks.coverage import MIXED, PAIRS, effects_of, grid, sampled, table

TRUTH = {"split": 0.05, "init": 0.30, "order": 0.20, "init × order": 0.15, "chaos": 0.30}


def simulate(
    rng: np.random.Generator, sizes: tuple[int, int, int], replicates: int, truth: dict[str, float], keep: float = 1.0
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return outcomes and levels of a crossed grid whose components are ``truth``; ``keep`` of the cells are run."""
    names = ("split", "init", "order")
    cells = np.stack(np.meshgrid(*[np.arange(s) for s in sizes], indexing="ij"), -1).reshape(-1, 3)
    cells = cells[rng.random(len(cells)) < keep]
    levels = np.repeat(cells, replicates, axis=0)
    y = np.zeros(len(levels))
    for label, variance in truth.items():
        if label == "chaos":
            y += rng.normal(0, np.sqrt(variance), len(y))
            continue
        group = [names.index(n) for n in label.split(" × ")]
        code = np.ravel_multi_index(tuple(levels[:, group].T), tuple(np.array(sizes)[group]))
        y += rng.normal(0, np.sqrt(variance), int(np.prod(np.array(sizes)[group])))[code]
    return y, {name: levels[:, i] for i, name in enumerate(names)}


@pytest.mark.parametrize(
    ("factors", "truth"),
    [(grid(3, 4, 4), MIXED), (sampled(12, 12, 12, cells=250, again=40), PAIRS)],
    ids=["committed grid", "sampled cells"],
)
def test_intervals_cover_in_a_few_studies(factors: dict[str, np.ndarray], truth: dict[str, float]) -> None:
    rng = generator("few crosses")
    cells = Cells(factors, rng)
    inside = [
        e.low - 1e-9 <= truth.get(label, 0.0) <= e.high
        for _ in range(20)
        for label, e in cells.shares(effects_of(factors, truth, rng)).shares.items()
    ]
    assert np.mean(inside) >= 0.88  # 160 shares; those of one study depend on each other


@pytest.mark.slow
def test_intervals_cover_at_their_level() -> None:
    for line in table(1000, "crosses"):
        cells = line.split(" | ")
        assert float(cells[4]) > (0.9 if "tenth of levels" in line else 0.92), line


def test_a_level_with_most_effect_widens_the_interval_however_few_levels_there_are() -> None:
    """One init of four has the effect of all: its tail counts, and the same variance of equal steps costs little."""
    factors = grid(3, 4, 4)
    cells, noise = Cells(factors, generator("one level")), generator("one level's noise").normal(0, 0.2, 96)
    steps, one = (np.array(effect)[factors["init"]] for effect in ([-1.2, -0.4, 0.4, 1.2], [1.55, -0.52, -0.52, -0.52]))
    alike, apart = (cells.shares(y + noise).shares["init"] for y in (steps, one))
    assert apart.value == pytest.approx(alike.value, abs=0.02)
    assert apart.low < alike.low - 0.03


def reml_slopes(y: np.ndarray, factors: dict[str, np.ndarray], components: np.ndarray) -> np.ndarray:
    """Return one step of Fisher scoring for the restricted likelihood: 0 where it is largest."""
    names = list(factors)
    kernels = []
    for size in range(1, len(names) + 1):
        for group in combinations(names, size):
            codes = np.unique(np.stack([factors[name] for name in group], 1), axis=0, return_inverse=True)[1].reshape(
                -1
            )
            kernels.append((codes[:, None] == codes[None, :]).astype(float))
    kernels.append(np.eye(len(y)))
    inverse = np.linalg.inv(sum(v * k for v, k in zip(components, kernels, strict=True)))
    ones = inverse.sum(1)
    project = inverse - np.outer(ones, ones) / ones.sum()
    seen = project @ y
    parts = [project @ kernel for kernel in kernels]
    score = np.array([seen @ k @ seen - np.trace(part) for k, part in zip(kernels, parts, strict=True)])
    return np.linalg.solve([[np.sum(a * b.T) for a in parts] for b in parts], score)


def test_reml_agrees() -> None:
    """On a full grid the estimates are those of the restricted likelihood; on sampled cells they are near them."""
    rng = generator("reml")
    factors = grid(3, 4, 4)
    truth = {**PAIRS, "order": 0.2, CHAOS: 0.3}
    cells = Cells(factors, rng)
    y = effects_of(factors, truth, rng)
    while min(cells.components(y)) <= 0:
        y = effects_of(factors, truth, rng)
    assert reml_slopes(y, factors, cells.components(y)) == pytest.approx(0, abs=1e-9)
    kept = np.repeat(rng.random(216) < 0.7, 2)
    factors = {name: levels[kept] for name, levels in grid(6, 6, 6).items()}
    y = effects_of(factors, truth, rng)
    mine = Cells(factors, rng).components(y)
    best = np.maximum(mine, 0.01)
    for _ in range(6):
        best = np.maximum(best + reml_slopes(y, factors, best), 0.001)
    assert mine / mine.sum() == pytest.approx(best / best.sum(), abs=0.1)


def test_without_replicates_the_last_interaction_and_chaos_are_one() -> None:
    factors = {name: level[: len(level)] for name, level in sampled(30, 30, 30, cells=900, again=0).items()}
    y = effects_of(factors, MIXED, generator("merged"))
    with pytest.raises(NotEnoughData, match="replicates"):
        variance_shares(y, factors, generator("merged"))
    shares = variance_shares(y, factors, generator("merged"), merged=True).shares
    assert list(shares)[-1] == "split × init × order and chaos"
    assert sum(e.value for e in shares.values()) == pytest.approx(1)
    assert shares["init"].value == pytest.approx(0.3, abs=0.15)
    last = shares["split × init × order and chaos"]
    assert last.low < 0.3 < last.high


def test_a_saturated_cell_is_bounded_and_left_out() -> None:
    factors = grid(3, 4, 4)
    y = effects_of(factors, MIXED, generator("saturated"))
    cell = (factors["split"] == 0) & (factors["init"] == 0) & (factors["order"] == 1)
    y[cell] = -30.0
    assert carried(y, cell) > 0.8
    assert bounded(y, cell)[cell] == pytest.approx(y[~cell].min())
    assert np.array_equal(bounded(y, cell)[~cell], y[~cell])
    with pytest.raises(NotEnoughData, match="not at the end"):
        bounded(y, np.ones(len(y), dtype=bool))
    rng = generator("saturated")
    name = "split × init × order"
    without = variance_shares(y[~cell], {n: v[~cell] for n, v in factors.items()}, rng)
    assert not without.balanced
    assert without.shares[name].value < 0.3 < variance_shares(y, factors, rng).shares[name].value


@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_shares_are_recovered(keep: float) -> None:
    rng = generator(f"recovered {keep}")
    found = [variance_shares(*simulate(rng, (4, 10, 10), 2, TRUTH, keep), rng) for _ in range(4)]
    assert {f.balanced for f in found} == {keep == 1.0}
    for label, truth in TRUTH.items():
        assert np.mean([f.shares[label].value for f in found]) == pytest.approx(truth, abs=0.1), label
    for f in found:
        assert sum(e.value for e in f.shares.values()) == pytest.approx(1)


def test_pure_chaos_is_called_chaos() -> None:
    rng = generator("pure chaos")
    cells = Cells(simulate(rng, (3, 6, 6), 2, {})[1], rng)
    found = [cells.shares(rng.normal(size=216)).shares for _ in range(40)]
    assert np.mean([s["chaos"].high >= 0.999 or s["chaos"].low > 0.4 for s in found]) >= 0.9
    for label in found[0]:
        if label != "chaos":
            assert np.mean([s[label].low > 1e-9 for s in found]) <= 0.15, label


@pytest.mark.slow
def test_cells_that_are_unequally_chaotic_do_not_narrow_the_chaos_share() -> None:
    """Some cells with four times the spread of others: the plain chi-square held the truth in 75% of the cases."""
    rng = generator("uneven chaos")
    inside, draws, spread = 0, 80, 0.7
    for _ in range(draws):
        y, factors = simulate(rng, (6, 6, 6), 2, {"split × init": 0.04, "split × init × order": 0.11})
        sd = np.repeat(0.3 * np.exp(rng.normal(0, spread, 216) - spread**2), 2)
        share = variance_shares(y + sd * rng.normal(size=432), factors, rng).shares[CHAOS]
        inside += share.low <= 0.09 / 0.24 <= share.high
    assert inside / draws > 0.84


def test_components_of_a_full_grid_are_those_of_the_classical_table() -> None:
    rng = generator("classical")
    a, b, r = 5, 7, 3
    table = rng.normal(size=(a, 1, 1)) + rng.normal(size=(1, b, 1)) + rng.normal(size=(a, b, 1)) / 2
    table = table + rng.normal(size=(a, b, r)) / 3
    cells = table.mean(2)
    rows, columns = cells.mean(1), cells.mean(0)
    ms_a = b * r * ((rows - cells.mean()) ** 2).sum() / (a - 1)
    ms_b = a * r * ((columns - cells.mean()) ** 2).sum() / (b - 1)
    ms_ab = r * ((cells - rows[:, None] - columns + cells.mean()) ** 2).sum() / ((a - 1) * (b - 1))
    ms_e = ((table - cells[..., None]) ** 2).sum() / (a * b * (r - 1))
    levels = {"init": np.repeat(np.arange(a), b * r), "order": np.tile(np.repeat(np.arange(b), r), a)}
    found = variance_shares(table.reshape(-1), levels, rng)
    assert found.balanced
    assert found.components == pytest.approx(
        {"init": (ms_a - ms_ab) / (b * r), "order": (ms_b - ms_ab) / (a * r), "init × order": (ms_ab - ms_e) / r,
         CHAOS: ms_e}
    )  # fmt: skip


def test_an_order_that_means_something_in_its_split_only_is_found_there() -> None:
    """Every split draws its orders' effects anew: nothing belongs to an order over splits, a third to it inside one."""
    rng = generator("nested")
    truth = {"split": 0.1, "init": 0.2, "split × order": 0.35, "split × init × order": 0.1, "chaos": 0.25}
    sums = {"order": ("order", "split × order"), "both": ("split", "init", "split × init")}
    cells = Cells(simulate(rng, (8, 6, 6), 2, truth)[1], rng)
    shares = [cells.shares(simulate(rng, (8, 6, 6), 2, truth)[0], sums=sums) for _ in range(12)]
    assert np.mean([s.sums["order"].value for s in shares]) == pytest.approx(0.35, abs=0.06)
    assert np.mean([s.sums["both"].value for s in shares]) == pytest.approx(0.30, abs=0.1)
    assert np.mean([s.shares["order"].value for s in shares]) < 0.05
    assert sum(s.sums["order"].low <= 0.35 <= s.sums["order"].high for s in shares) >= 10
