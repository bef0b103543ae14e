"""Shapley shares: they are the definition's, sum to the total, cover, and give a negative control nothing."""

from __future__ import annotations

from itertools import combinations, product
from math import factorial

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData, generator
from analysis.statistics.shapley import Additivity, additivity, attribute, p_of_no_pattern

NAMES = ["embedding", "blocks.0", "blocks.1", "head"]


def shapley_values(v: dict[frozenset[int], float], k: int) -> np.ndarray:
    """Return the Shapley values (k,) of a complete game by their definition; exponential in ``k``."""
    phi = np.zeros(k)
    for i in range(k):
        others = [j for j in range(k) if j != i]
        for size in range(k):
            weight = factorial(size) * factorial(k - size - 1) / factorial(k)
            for s in combinations(others, size):
                phi[i] += weight * (v[frozenset(s) | {i}] - v[frozenset(s)])
    return phi


def grid(k: int, replicates: int) -> np.ndarray:
    return np.repeat(np.array(list(product([0, 1], repeat=k)), dtype=float), replicates, axis=0)


def outcome(x: np.ndarray) -> np.ndarray:
    """A game with main effects, an interaction, and a factor (blocks.0) that does nothing."""
    return 9.3 - 0.5 * x[:, 0] - 0.2 * x[:, 3] - 0.4 * x[:, 0] * x[:, 2] + 0.1 * x[:, 0] * x[:, 2] * x[:, 3]


def test_shares_are_the_definitions_and_sum_to_the_total() -> None:
    rng = generator("shapley")
    x = grid(4, 2)
    y = outcome(x) + rng.normal(0, 0.1, len(x))
    found = attribute(x, y, NAMES)
    game = {
        frozenset(s): float(np.mean([v for row, v in zip(x, y, strict=True) if set(np.flatnonzero(row)) == set(s)]))
        for size in range(5)
        for s in combinations(range(4), size)
    }
    assert [found.shapley[n].value for n in NAMES] == pytest.approx(shapley_values(game, 4))
    assert sum(e.value for e in found.shapley.values()) == pytest.approx(found.total.value)
    assert found.total.value == pytest.approx(game[frozenset(range(4))] - game[frozenset()])
    assert found.full


def test_intervals_cover_and_the_idle_factor_gets_nothing() -> None:
    rng = generator("shapley coverage")
    x = grid(4, 2)
    truth = attribute(x, outcome(x), NAMES)
    inside = dict.fromkeys(NAMES, 0)
    draws = 500
    for _ in range(draws):
        found = attribute(x, outcome(x) + rng.normal(0, 0.3, len(x)), NAMES)
        for n in NAMES:
            inside[n] += found.shapley[n].low <= truth.shapley[n].value <= found.shapley[n].high
    assert truth.shapley["blocks.0"].value == pytest.approx(0, abs=1e-12)
    assert all(0.92 < hits / draws < 0.98 for hits in inside.values()), inside


def test_what_layers_explain_one_by_one_covers() -> None:
    rng = generator("additive share")
    x = grid(4, 3)
    cells = grid(4, 1)
    y = outcome(cells)
    mains = sum((y[cells[:, i] == 1].mean() - y[cells[:, i] == 0].mean()) ** 2 / 4 for i in range(4))
    truth = mains / y.var()
    assert 0.5 < truth < 0.95
    made = [additivity(x, outcome(x) + rng.normal(0, 0.1, len(x)), rng).share for _ in range(300)]
    assert 0.92 < np.mean([e.low <= truth <= e.high for e in made]) < 0.99
    assert np.mean([e.value for e in made]) == pytest.approx(truth, abs=0.01)
    lonely = x[:, 0] - x[:, 2] + rng.normal(0, 0.01, len(x))
    assert additivity(x, lonely, rng).share.low > 0.99
    with pytest.raises(NotEnoughData):
        additivity(cells, y, rng)


def transplants(k: int, recipients: int, donors: int, structure: str, rng: np.random.Generator) -> list[Additivity]:
    """Return tables of pairs of seeds with two runs a cell; a recipient's own cell is common to its donors."""
    x, tables = grid(k, 2), []
    for _ in range(recipients):
        own = 3 * rng.normal()
        for _ in range(donors):
            cells = {"none": rng.normal(size=2**k), "and": -8.0 * (np.arange(2**k) == 0) + 0.3 * rng.normal(size=2**k),
                     "sum": grid(k, 1) @ rng.choice([-1.0, 1.0], k)}[structure]  # fmt: skip
            cells[0] += own * (structure != "sum")
            tables.append(additivity(x, np.repeat(cells, 2) + 0.02 * rng.normal(size=len(x)), rng, draws=199))
    return tables


@pytest.mark.parametrize(("k", "recipients", "donors"), [(2, 4, 4), (5, 1, 1)], ids=["two halves", "five parts"])
@pytest.mark.parametrize("structure", ["none", "and", "sum"])
def test_a_pattern_is_told_from_none(k: int, recipients: int, donors: int, structure: str) -> None:
    """An outcome that needs all of a recipient's layers gave each of two halves 43 to 62%, and five parts 17 to 22%."""
    rng = generator(f"pattern {k} {structure}")
    made = [transplants(k, recipients, donors, structure, rng) for _ in range(60)]
    alarms = np.mean([p_of_no_pattern(tables) <= 0.05 for tables in made])
    assert alarms == 1 if structure == "sum" else alarms <= 0.13  # three in sixty expected, at most eight
    if structure == "sum":
        assert min(t.share.low for tables in made for t in tables) > 0.9


def test_a_fraction_recovers_a_second_order_game() -> None:
    rng = generator("fraction")
    k = 6
    everything = grid(k, 1)
    x = everything[(everything.sum(1) % 2) == 0]  # half fraction, resolution VI
    y = 1.0 - x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + rng.normal(0, 0.01, len(x))
    found = attribute(x, y, list("abcdef"))
    assert not found.full
    assert found.shapley["a"].value == pytest.approx(-1, abs=0.03)
    assert found.shapley["b"].value == pytest.approx(0.25, abs=0.03)
    assert found.shapley["f"].low <= 0 <= found.shapley["f"].high


def test_a_fraction_covers_where_two_act_together_and_is_refused_where_three_do() -> None:
    rng = generator("fraction coverage")
    everything = grid(6, 1)
    truth = dict(zip("abcdef", (-1, 0.25, 0.25, -0.3, 0, 0), strict=True))
    inside = dict.fromkeys(truth, 0)
    draws = refused = 0
    for _ in range(150):
        pick = rng.permutation(32)[:24]
        x = np.repeat(everything[np.concatenate([pick, 63 - pick])], 2, axis=0)
        y = -x[:, 0] + 0.5 * x[:, 1] * x[:, 2] - 0.3 * x[:, 3] + rng.normal(0, 0.3, len(x))
        try:
            found = attribute(x, y, list(truth))
        except NotEnoughData:
            refused += 1
            continue
        draws += 1
        for name, value in truth.items():
            inside[name] += found.shapley[name].low <= value <= found.shapley[name].high
    for _ in range(20):
        with pytest.raises(NotEnoughData, match="three or more"):
            attribute(x, 0.8 * x[:, 3] * x[:, 4] * x[:, 5] - 0.3 * x[:, 0] + rng.normal(0, 0.1, len(x)), list(truth))
    assert refused <= 5  # p below 0.01 where there is nothing: 1.5 expected
    assert min(inside.values()) / draws >= 0.90, inside


def test_combinations_cut_off_at_the_budget_do_not_narrow_the_interval() -> None:
    """With a third of the combinations at the ceiling, where replicates agree, the total was inside in 88%."""
    rng = generator("ceiling")
    x, inside, inside_naive = grid(5, 3), 0, 0
    draws = 300
    for _ in range(draws):
        mean = rng.normal(0, 0.5, 32)
        mean[rng.choice(np.arange(1, 31), 10, replace=False)] = 9.0
        y = np.repeat(mean, 3)
        y = y + np.where(y < 9.0, rng.normal(0, 0.05, 96), 0.0)
        truth = mean[31] - mean[0]
        total, naive = (attribute(x, y, list("abcde"), ceiling=c).total for c in (9.0, np.inf))
        inside += total.low <= truth <= total.high
        inside_naive += naive.low <= truth <= naive.high
    assert inside / draws > 0.92
    assert inside_naive / draws < 0.92
