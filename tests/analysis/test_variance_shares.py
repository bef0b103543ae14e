"""Variance shares: known shares are recovered, intervals cover, a null stays null."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.resampling import generator
from analysis.statistics.variance_shares import variance_shares

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


def coverage(draws: int, sizes: tuple[int, int, int], keep: float, purpose: str) -> dict[str, float]:
    rng = generator(purpose)
    inside: dict[str, int] = {}
    for _ in range(draws):
        y, factors = simulate(rng, sizes, 2, TRUTH, keep)
        for label, e in variance_shares(y, factors, rng).shares.items():
            inside[label] = inside.get(label, 0) + (e.low - 1e-9 <= TRUTH.get(label, 0.0) <= e.high)
    return {label: hits / draws for label, hits in inside.items()}


def test_balanced_intervals_cover() -> None:
    assert min(coverage(150, (4, 8, 8), 1.0, "balanced").values()) >= 0.88  # 3 sd below 0.95 at 150 draws


@pytest.mark.slow
def test_balanced_intervals_cover_at_their_level() -> None:
    found = coverage(1000, (4, 8, 8), 1.0, "balanced, many")
    assert min(found.values()) >= 0.93, found


@pytest.mark.slow
def test_sampled_intervals_cover_roughly() -> None:
    found = coverage(200, (4, 8, 8), 0.5, "sampled")
    assert min(found.values()) >= 0.80, found


@pytest.mark.parametrize("keep", [1.0, 0.5])
def test_shares_are_recovered(keep: float) -> None:
    rng = generator(f"recovered {keep}")
    found = [variance_shares(*simulate(rng, (4, 14, 14), 2, TRUTH, keep), rng) for _ in range(4)]
    assert {f.balanced for f in found} == {keep == 1.0}
    for label, truth in TRUTH.items():
        assert np.mean([f.shares[label].value for f in found]) == pytest.approx(truth, abs=0.1), label
    for f in found:
        assert sum(e.value for e in f.shares.values()) == pytest.approx(1)


def test_pure_chaos_is_called_chaos() -> None:
    rng = generator("pure chaos")
    found = [variance_shares(*simulate(rng, (3, 6, 6), 2, {"chaos": 1.0}), rng).shares for _ in range(40)]
    assert np.mean([s["chaos"].high >= 0.999 or s["chaos"].low > 0.4 for s in found]) >= 0.9
    for label in found[0]:
        if label != "chaos":
            assert np.mean([s[label].low > 1e-9 for s in found]) <= 0.15, label


def test_both_methods_agree_on_a_full_grid() -> None:
    from analysis.statistics.variance_shares import _pairs

    rng = generator("agree")
    y, factors = simulate(rng, (3, 7, 7), 2, TRUTH)
    codes = np.stack(list(factors.values()), 1)
    grid = variance_shares(y, factors, rng).components
    pairs = _pairs(y, list(factors), codes, rng, 0.95).components
    for label in grid:
        assert grid[label] == pytest.approx(pairs[label], abs=1e-9), label


def test_without_replicates_interaction_and_chaos_are_not_told_apart() -> None:
    rng = generator("no replicates")
    y, factors = simulate(rng, (2, 5, 5), 1, TRUTH)
    with pytest.raises(NotEnoughData, match="replicates"):
        variance_shares(y, factors, rng)
    with pytest.raises(NotEnoughData, match="two levels"):
        variance_shares(y, {"init": np.zeros(len(y), dtype=int)}, rng)
    with pytest.raises(NotEnoughData, match="differ"):
        variance_shares(np.ones(20), {"init": np.repeat(np.arange(5), 4)}, rng)
