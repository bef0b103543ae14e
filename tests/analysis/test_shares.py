"""What decides: shares of variance, of layers and of parents are recovered, and their intervals cover."""

import itertools
from itertools import combinations, product
from math import factorial

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import ADDITIVE, MIXED, PAIRS, TENTH, WORLDS, World, effects_of, grid, redraws, sampled
from grok.analysis.statistics import variance_shares as vs
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, generator
from grok.analysis.statistics.repeatability import between_parents, kept_distance, normal_scores
from grok.analysis.statistics.shapley import Additivity, additivity, attribute, p_of_no_pattern


@pytest.mark.slow
def test_the_spread_over_seeds_covers_and_so_does_the_number_of_seeds() -> None:
    factors, rng = grid(6, 6, 2), generator("noise floor")
    cells = vs.Cells(factors, rng)
    names = list(factors)
    for truth in (
        {names[0]: 0.7, names[1]: 0.2, vs.CHAOS: 0.1},
        {names[1]: 0.3, f"{names[0]} × {names[1]}": 0.5, vs.CHAOS: 0.2},
        {names[0]: 0.05, vs.CHAOS: 0.95},
    ):
        found = [cells.shares(effects_of(factors, truth, rng)).total for _ in range(300)]
        assert np.mean([e.low <= 1 <= e.high for e in found]) >= 0.9
        assert np.mean([e.value for e in found]) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("sd", "difference"), [(0.1, 0.05), (0.03, 0.05), (1.0, 2.0)])
def test_the_number_of_seeds_is_that_of_simulated_studies(sd: float, difference: float) -> None:
    n, rng = vs.seeds_needed(sd, difference), np.random.default_rng(5)

    def seen(n: int) -> float:
        a, b = rng.normal(0, sd, (2, 20_000, n))
        return float((stats.ttest_ind(a, b + difference, axis=1).pvalue < 0.05).mean())

    assert seen(n) > 0.79 and seen(n - 1) < 0.81


def test_a_level_with_most_effect_widens_the_interval_however_few_levels_there_are() -> None:
    factors = grid(3, 4, 4)
    cells, noise = vs.Cells(factors, generator("one level")), generator("one level's noise").normal(0, 0.2, 96)
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
    rng = generator("reml")
    factors = grid(3, 4, 4)
    truth = {**PAIRS, "order": 0.2, vs.CHAOS: 0.3}
    cells = vs.Cells(factors, rng)
    y = effects_of(factors, truth, rng)
    while min(cells.components(y)) <= 0:
        y = effects_of(factors, truth, rng)
    assert reml_slopes(y, factors, cells.components(y)) == pytest.approx(0, abs=1e-9)
    kept = np.repeat(rng.random(216) < 0.7, 2)
    factors = {name: levels[kept] for name, levels in grid(6, 6, 6).items()}
    y = effects_of(factors, truth, rng)
    mine = vs.Cells(factors, rng).components(y)
    best = np.maximum(mine, 0.01)
    for _ in range(6):
        best = np.maximum(best + reml_slopes(y, factors, best), 0.001)
    assert mine / mine.sum() == pytest.approx(best / best.sum(), abs=0.1)


def test_without_replicates_the_last_interaction_and_chaos_are_one() -> None:
    factors = {name: level[: len(level)] for name, level in sampled(30, 30, 30, cells=900, again=0).items()}
    y = effects_of(factors, MIXED, generator("merged"))
    with pytest.raises(NotEnoughData, match="replicates"):
        vs.variance_shares(y, factors, generator("merged"))
    shares = vs.variance_shares(y, factors, generator("merged"), merged=True).shares
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
    assert vs.carried(y, cell) > 0.8
    assert vs.bounded(y, cell)[cell] == pytest.approx(y[~cell].min())
    assert np.array_equal(vs.bounded(y, cell)[~cell], y[~cell])
    with pytest.raises(NotEnoughData, match="not at the end"):
        vs.bounded(y, np.ones(len(y), dtype=bool))
    rng = generator("saturated")
    name = "split × init × order"
    without = vs.variance_shares(y[~cell], {n: v[~cell] for n, v in factors.items()}, rng)
    assert not without.balanced
    assert without.shares[name].value < 0.3 < vs.variance_shares(y, factors, rng).shares[name].value


def test_pure_chaos_is_called_chaos() -> None:
    rng = generator("pure chaos")
    cells = vs.Cells(grid(3, 6, 6), rng)
    found = [cells.shares(rng.normal(size=216)).shares for _ in range(40)]
    assert np.mean([s["chaos"].high >= 0.999 or s["chaos"].low > 0.4 for s in found]) >= 0.9
    for label in found[0]:
        if label != "chaos":
            assert np.mean([s[label].low > 1e-9 for s in found]) <= 0.15, label


@pytest.mark.slow
def test_the_interval_of_the_largest_share_allows_for_its_choice() -> None:
    """Eight equal shares: one of them is estimated as the largest."""
    factors, rng, inside = grid(3, 4, 4), generator("largest"), 0
    cells = vs.Cells(factors, rng)
    for _ in range(100):
        found = cells.shares(effects_of(factors, dict.fromkeys(cells.labels, 1 / 8), rng))
        assert found.largest.value == max(e.value for e in found.shares.values())
        inside += found.largest.low <= 1 / 8 <= found.largest.high
    assert inside >= 95


@pytest.mark.slow
def test_cells_that_are_unequally_chaotic_do_not_narrow_the_chaos_share() -> None:
    rng = generator("uneven chaos")
    inside, draws, spread, factors = 0, 80, 0.7, grid(6, 6, 6)
    for _ in range(draws):
        y = effects_of(factors, {"split × init": 0.04, "split × init × order": 0.11, vs.CHAOS: 0.0}, rng)
        sd = np.repeat(0.3 * np.exp(rng.normal(0, spread, 216) - spread**2), 2)
        share = vs.variance_shares(y + sd * rng.normal(size=432), factors, rng).shares[vs.CHAOS]
        inside += share.low <= 0.09 / 0.24 <= share.high
    assert inside / draws > 0.84


def test_an_order_that_means_something_in_its_split_only_is_found_there() -> None:
    """Every split draws its orders' effects anew: nothing belongs to an order over splits, a third to it inside one."""
    rng = generator("nested")
    truth = {"split": 0.1, "init": 0.2, "split × order": 0.35, "split × init × order": 0.1, "chaos": 0.25}
    sums = {"order": ("order", "split × order"), "both": ("split", "init", "split × init")}
    factors = grid(8, 6, 6)
    cells = vs.Cells(factors, rng)
    shares = [cells.shares(effects_of(factors, truth, rng), sums=sums) for _ in range(12)]
    assert np.mean([s.sums["order"].value for s in shares]) == pytest.approx(0.35, abs=0.06)
    assert np.mean([s.sums["both"].value for s in shares]) == pytest.approx(0.30, abs=0.1)
    assert np.mean([s.shares["order"].value for s in shares]) < 0.05
    assert sum(s.sums["order"].low <= 0.35 <= s.sums["order"].high for s in shares) >= 10


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


def layer_grid(k: int, replicates: int) -> np.ndarray:
    return np.repeat(np.array(list(product([0, 1], repeat=k)), dtype=float), replicates, axis=0)


def outcome(x: np.ndarray) -> np.ndarray:
    return 9.3 - 0.5 * x[:, 0] - 0.2 * x[:, 3] - 0.4 * x[:, 0] * x[:, 2] + 0.1 * x[:, 0] * x[:, 2] * x[:, 3]


def test_shares_are_the_definitions_and_sum_to_the_total() -> None:
    rng = generator("shapley")
    x = layer_grid(4, 2)
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


def test_a_part_of_a_change_allows_for_the_error_of_the_change() -> None:
    rng, x = generator("parts"), layer_grid(4, 3)
    drawn = rng.normal(0, 0.35, (300, len(x))) - x[:, 3]  # the head does all
    found = [parts for y in drawn if (parts := attribute(x, y, NAMES).parts)]
    held = [(of["head"].low <= 1 <= of["head"].high, of["embedding"].low <= 0 <= of["embedding"].high) for of in found]
    assert len(found) > 250 and min(np.mean(held, 0)) > 0.92


def test_layers_whose_effects_add_up_explain_all_one_by_one() -> None:
    rng, x, cells = generator("additive share"), layer_grid(4, 3), layer_grid(4, 1)
    lonely = x[:, 0] - x[:, 2] + rng.normal(0, 0.01, len(x))
    assert additivity(x, lonely, rng).share.low > 0.99
    with pytest.raises(NotEnoughData):
        additivity(cells, outcome(cells), rng)
    nothing = [additivity(x, rng.normal(size=len(x)), rng, draws=199) for _ in range(60)]
    assert all((t.share.low, t.share.high) == (0, 1) for t in nothing if t.differ > 0.05)
    assert np.mean([(t.differ <= 0.05, t.interact <= 0.05) for t in nothing], 0).max() <= 0.13  # as above, of sixty


def transplants(k: int, recipients: int, donors: int, structure: str, rng: np.random.Generator) -> list[Additivity]:
    """Return tables of pairs of seeds with two runs a cell; a recipient's own cell is common to its donors."""
    x, tables = layer_grid(k, 2), []
    for _ in range(recipients):
        own = 3 * rng.normal()
        for _ in range(donors):
            cells = {"none": rng.normal(size=2**k), "and": -8.0 * (np.arange(2**k) == 0) + 0.3 * rng.normal(size=2**k),
                     "sum": layer_grid(k, 1) @ rng.choice([-1.0, 1.0], k)}[structure]  # fmt: skip
            cells[0] += own * (structure != "sum")
            tables.append(additivity(x, np.repeat(cells, 2) + 0.02 * rng.normal(size=len(x)), rng, draws=199))
    return tables


@pytest.mark.parametrize(("k", "recipients", "donors"), [(2, 4, 4), (5, 1, 1)], ids=["two halves", "five parts"])
@pytest.mark.parametrize("structure", ["none", "and", "sum"])
def test_a_pattern_is_told_from_none(k: int, recipients: int, donors: int, structure: str) -> None:
    rng = generator(f"pattern {k} {structure}")
    made = [transplants(k, recipients, donors, structure, rng) for _ in range(60)]
    alarms = np.mean([p_of_no_pattern(tables) <= 0.05 for tables in made])
    assert alarms == 1 if structure == "sum" else alarms <= 0.13  # three in sixty expected, at most eight
    if structure == "sum":
        assert min(t.share.low for tables in made for t in tables) > 0.9


def test_combinations_cut_off_at_the_budget_do_not_narrow_the_interval() -> None:
    rng = generator("ceiling")
    x, inside, inside_naive = layer_grid(5, 3), 0, 0
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


def families(parents: int, children: int, share: float, seed: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores of children, their parents, and the parents' own scores, of unchosen parents."""
    rng = generator(seed)
    kept = rng.normal(0, np.sqrt(share), parents)
    own = kept + rng.normal(0, np.sqrt(1 - share), parents)
    parent = np.repeat(np.arange(parents), children)
    return kept[parent] + rng.normal(0, np.sqrt(1 - share), len(parent)), parent, own[parent]


def test_scores_have_no_scale_and_ties_share_their_middle() -> None:
    census = generator("scores").exponential(size=1000)
    score = normal_scores(census, census)
    assert score.mean() == pytest.approx(0) and score.var() == pytest.approx(1)
    assert np.array_equal(normal_scores(np.log(census), np.log(census)), score)
    assert normal_scores(np.array([1e9]), census)[0] == score.max()
    assert normal_scores(np.array([0.0]), census)[0] == score.min()
    cut = np.maximum(census, np.median(census))
    tied = normal_scores(cut, cut)
    assert np.ptp(tied[cut == cut.min()]) == 0
    assert tied.mean() == pytest.approx(0) and tied.var() == pytest.approx(1)
    with pytest.raises(NotEnoughData, match="differ"):
        normal_scores(census, np.ones(10))


def test_the_covariance_is_that_of_pairs_of_one_parent_less_pairs_of_two_lines() -> None:
    rng = generator("pairs by hand")
    parent = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6])
    line = np.array([0, 1, 1, 3, 4, 5, 6])[parent]
    child, order = rng.normal(size=len(parent)), np.full(len(parent), "order")
    value = between_parents(child, order, parent, line).shares["order"].value
    mean = [child[parent == p].mean() for p in range(6)]  # the last parent has no two children
    within = [np.mean([a * b for i, a in enumerate(c) for j, b in enumerate(c) if i != j])
              for c in (child[parent == p] for p in range(6))]  # fmt: skip
    lines = [0, 1, 1, 3, 4, 5]
    between = [mean[a] * mean[b] for a in range(6) for b in range(6) if lines[a] != lines[b]]
    assert value == pytest.approx(np.mean(within) - np.mean(between))


@pytest.mark.parametrize("share", [0.0, 0.15, 0.4, 0.6])
def test_the_share_of_unchosen_parents_is_the_kept_variance(share: float) -> None:
    child, parent, _ = families(4000, 4, share, f"unchosen {share}")
    e = between_parents(child, np.full(len(child), "order"), parent, parent).shares["order"]
    assert e.value == pytest.approx(share, abs=0.04)


def test_chosen_families_keep_what_is_true_whatever_the_scale() -> None:
    rng, kept = generator("a line misses"), []
    for _ in range(30):
        found = redraws(World("", ADDITIVE), rng)
        kept.append(kept_distance(found.children, found.redrawn, found.parents, found.lines, found.own))
    assert 0.36 < np.mean([k.shares["order"].value for k in kept]) < 0.6  # 0.4, and the early loss adds to it


def test_siblings_that_are_opposites_tell_no_more_variance_than_there_can_be() -> None:
    scores = np.array([[d, -d] for d in (0.1, 0.2, 0.9, 1.5, 2.5)])
    family = np.repeat(np.arange(5), 2)
    found = between_parents(scores.ravel(), np.full(10, "order"), family, family).shares["order"]
    assert found.value < 0 and found.high <= 12.1, "half of the parents at each end of a census of 2,000"


def test_a_contrast_is_the_difference_on_common_lines() -> None:
    found = redraws(WORLDS[0], generator("contrast"))
    data = (found.children, found.redrawn, found.parents, found.lines)
    for kept in (between_parents(*data), kept_distance(*data, found.own)):
        assert set(kept.contrasts) == {(a, b) for a in kept.shares for b in kept.shares if a != b}
        e, back = kept.contrasts["order", "split"], kept.contrasts["split", "order"]
        assert e.value == pytest.approx(kept.shares["order"].value - kept.shares["split"].value)
        assert (e.low, e.high) == pytest.approx((-back.high, -back.low))
        assert e.n == len(np.unique(found.lines))
    apart = np.where(found.redrawn == "order", found.lines, found.lines + 1000)
    assert ("order", "split") not in between_parents(*data[:3], apart).contrasts


def test_a_tenth_of_parents_that_few_families_may_not_show_is_inside() -> None:
    rng, inside = generator("rare parents"), []
    rest = stats.truncnorm(-np.inf, TENTH)
    tail = float(stats.norm.expect(lambda z: z**2, lb=TENTH))  # of the best tenth, which keeps itself
    truth = 0.9 * (tail + 0.9 * rest.mean() ** 2)  # the mean of all is 0
    parent, order = np.repeat(np.arange(19), 4), np.full(76, "order")
    for _ in range(200):
        pair, own = rng.normal(size=19)[parent], rest.ppf(rng.random(76))
        child = np.sqrt(0.9) * np.where(pair > TENTH, pair, own) + np.sqrt(0.1) * rng.normal(size=76)
        e = between_parents(child, order, parent, parent).shares["order"]
        inside.append(e.low <= truth <= e.high)
    assert np.mean(inside) >= 0.93


def code_grid(*levels: range) -> np.ndarray:
    return np.array(list(itertools.product(*levels)), dtype=np.int64)


def test_a_grid_is_found_among_random_seeds_and_scans() -> None:
    cells = np.repeat(code_grid(range(6), range(6), range(6)), 2, axis=0)
    random = np.arange(100, 160)[:, None] * np.ones(3, dtype=np.int64)
    scan = np.array([[0, 0, 1000 + i] for i in range(300)])
    codes = np.concatenate([random, cells, scan])
    found = vs.densest(codes)
    assert found.tolist() == [False] * 60 + [True] * len(cells) + [False] * 300
    assert vs.filled(codes[found]) == (216, 216)


@pytest.mark.parametrize("keep", [0.15, 0.5])
def test_a_sampled_grid_stays_whole(keep: float) -> None:
    rng = generator(f"sampled cross {keep}")
    cells = code_grid(range(12), range(12), range(12))
    cells = cells[rng.random(len(cells)) < keep]
    assert vs.densest(cells).all()


def test_a_share_ends_where_the_others_leave_nothing_for_it() -> None:
    parts = {"init": [1, 0, 0], "init and order": [1, 1, 0], "chaos": [0, 0, 1]}
    seen = {"init": (0.01, 0, 0.9), "init and order": (0.02, 0, 0.6), "chaos": (0.9, 0.8, 1)}
    ends_of = {name: Estimate(*numbers, 9, "") for name, numbers in seen.items()}
    shares = [(np.array(of, dtype=bool), ends_of[name], ends_of[name]) for name, of in parts.items()]
    found = dict(zip(parts, vs._consistent(shares), strict=True))
    ends = {name: (e.low, round(e.high, 9)) for name, e in found.items()}
    assert ends == {"init": (0, 0.2), "init and order": (0, 0.2), "chaos": (0.8, 1)}
