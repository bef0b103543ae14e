"""Shapley shares: they are the definition's, sum to the total, cover, and give a negative control nothing."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.resampling import generator
from analysis.statistics.shapley import additive_share, attribute, shapley_values, shuffled

NAMES = ["embedding", "blocks.0", "blocks.1", "head"]


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


def test_main_effects_and_interactions_are_the_contrasts() -> None:
    x = grid(4, 2)
    y = outcome(x) + generator("contrast").normal(0, 0.1, len(x))
    found = attribute(x, y, NAMES)
    by_hand = y[x[:, 0] == 1].mean() - y[x[:, 0] == 0].mean()
    assert found.main["embedding"].value == pytest.approx(by_hand)
    cell = {(a, b): y[(x[:, 0] == a) & (x[:, 2] == b)].mean() for a in (0, 1) for b in (0, 1)}
    crossed = cell[1, 1] - cell[1, 0] - cell[0, 1] + cell[0, 0]
    assert found.interactions["embedding", "blocks.1"].value == pytest.approx(crossed)


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
    found = [additive_share(x, outcome(x) + rng.normal(0, 0.1, len(x)), rng) for _ in range(300)]
    assert 0.92 < np.mean([e.low <= truth <= e.high for e in found]) < 0.99
    assert np.mean([e.value for e in found]) == pytest.approx(truth, abs=0.01)
    lonely = x[:, 0] - x[:, 2] + rng.normal(0, 0.01, len(x))
    assert additive_share(x, lonely, rng).low > 0.99
    with pytest.raises(NotEnoughData):
        additive_share(x[3:], outcome(x[3:]), rng)
    with pytest.raises(NotEnoughData):
        additive_share(cells, y, rng)


@pytest.mark.slow
def test_a_table_without_structure_is_told() -> None:
    """Outcomes that differ from combination to combination without a pattern: intervals alone call them clear."""
    rng = generator("shuffled tables")
    x, names = grid(5, 2), list("abcde")
    clear = alarms = additive = 0
    for _ in range(60):
        y = np.repeat(rng.normal(size=32), 2) + rng.normal(0, 0.02, 64)
        found = attribute(x, y, names)
        clear += sum(not e.low <= 0 <= e.high for e in found.shapley.values())
        null = shuffled(x, y, names, rng, 199)
        alarms += min(null.p.values()) < 0.05
        assert null.additive is not None and null.additive_p is not None
        additive += null.additive_p < 0.05
    assert clear / 60 > 4  # of five layers
    assert max(alarms, additive) <= 8  # 3 expected


def test_a_table_with_structure_is_told() -> None:
    rng = generator("a table with structure")
    x, names = grid(5, 2), list("abcde")
    y = -x[:, 0] + 0.3 * x[:, 1] * x[:, 2] + rng.normal(0, 0.1, 64)
    null = shuffled(x, y, names, rng)
    assert [n for n in names if null.p[n] < 0.05] == ["a"]
    assert null.reach < 1
    assert null.additive_p == pytest.approx(0.001)


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


def test_replicates_that_were_rounded_together_are_not_certain() -> None:
    x = grid(3, 2)
    found = attribute(x, 8.0 - x[:, 0], ["a", "b", "c"], rounding=0.01)
    share = found.shapley["a"]
    assert share.low < -1.05 < -0.95 < share.high


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


def test_what_cannot_be_told_is_refused() -> None:
    x = grid(3, 1)
    with pytest.raises(NotEnoughData, match="replicates"):
        attribute(x, x.sum(1), ["a", "b", "c"])
    with pytest.raises(NotEnoughData, match="c exchanged"):
        attribute(x[x[:, 2] == 0], x[x[:, 2] == 0].sum(1), ["a", "b", "c"])
    with pytest.raises(NotEnoughData, match="combinations"):
        attribute(x[[0, 3, 5, 6]], np.arange(4.0), ["a", "b", "c"])


def test_a_share_is_not_tested_where_no_arrangement_could_be_significant() -> None:
    for k, tested, additive in ((2, False, False), (3, False, True), (4, True, True)):
        design = np.array(list(product((0.0, 1.0), repeat=k)))
        null = shuffled(design, 100 * design[:, 0] + design @ np.arange(k), list("abcd"[:k]), generator("few"), 99)
        assert (bool(null.p), null.additive is not None) == (tested, additive)
