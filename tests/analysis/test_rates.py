"""Shares, verdicts and correlations: intervals cover at their level, known values, silence under the null."""

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from grok.analysis.statistics.estimate import NotEnoughData, generator, holm, median_interval
from grok.analysis.statistics.modes import LARGEST, dip, p_of_one_mode
from grok.analysis.statistics.proportions import (
    at_any_time,
    clopper_pearson,
    clustered_ratio,
    confirmed_ratio,
    fisher,
    heterogeneity,
    ratio,
    share,
    unequal_rates,
)
from grok.analysis.statistics.repeatability import (
    Counts,
    Verdict,
    mean_share,
    replication,
)


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (18, 2073), (2073, 2073), (1, 1)])
def test_intervals_are_those_of_their_definitions(hits: int, n: int) -> None:
    """Wilson (1927): the shares that lie z standard errors from hits / n. Clopper and Pearson (1934): tails of 2.5%."""
    score, exact = share(hits, n, 0), clopper_pearson(hits, n)
    z = NormalDist().inv_cdf(0.975)
    middle, half = (hits + z * z / 2) / (n + z * z), z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    assert (score.low, score.high) == pytest.approx((middle - half, middle + half), abs=1e-10)
    assert exact.low == 0 if hits == 0 else stats.binom.sf(hits - 1, n, exact.low) == pytest.approx(0.025)
    assert exact.high == 1 if hits == n else stats.binom.cdf(hits, n, exact.high) == pytest.approx(0.025)
    for interval in (score, exact):
        assert interval.low <= interval.value == hits / n <= interval.high


def held(rate: float, other: float, n: int, m: int) -> float:
    """Return how often the interval of the ratio holds it, given a hit on either side."""
    weight = np.outer(stats.binom.pmf(range(n + 1), n, rate), stats.binom.pmf(range(m + 1), m, other))
    cells = [(a, b) for a, b in np.argwhere(weight > 1e-6).tolist() if a + b]
    intervals = [ratio(a, n, b, m) for a, b in cells]
    chance = np.array([weight[a, b] for a, b in cells])
    return float(chance[[e.low <= rate / other <= e.high for e in intervals]].sum() / chance.sum())


RATES = [
    *itertools.product((0.001, 0.01, 0.1, 0.3), (0.001, 0.01, 0.1, 0.3), (150,), (150,)),
    (0.01, 0.02, 40, 400), (0.009, 0.009, 2000, 2000), (0.001, 0.01, 2000, 2000),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "other", "n", "m"),
    [
        (0.1, 0.3, 20, 20),
        (0.96, 0.96, 20, 200),
        (0.85, 1, 12, 12),
        *(pytest.param(*r, marks=pytest.mark.slow) for r in RATES),
    ],
)
def test_a_ratio_of_rates_covers_counted_exactly(rate: float, other: float, n: int, m: int) -> None:
    assert held(rate, other, n, m) >= 0.94


def test_heterogeneity_is_silent_under_the_null_and_sees_a_real_difference() -> None:
    rng = generator("heterogeneity")
    groups = np.repeat(np.arange(8), 40)
    alarms = sum(heterogeneity(rng.random(320) < 0.1, groups, rng, 199).p <= 0.05 for _ in range(200))
    assert alarms <= 20  # 5% of 200 is 10; 20 is over three standard deviations away
    rate = np.where(groups == 3, 0.5, 0.05)
    assert heterogeneity(rng.random(320) < rate, groups, rng).p < 0.01
    # 16 runs of one setting, of which 8 hit; the other setting has partners of 4 that do not
    hits, setting, pair = np.repeat([1, 0, 0, 0], [8, 4, 4, 4]), np.repeat([0, 1], [16, 4]), np.r_[:16, 12:16]
    assert heterogeneity(hits, setting, rng, blocks=[pair]).p == 1
    with pytest.raises(NotEnoughData, match="agree in all else"):
        heterogeneity(hits, setting, rng, blocks=[np.arange(20)])
    # McNemar: of 16 pairs one hits on the left alone and ten on the right; then with 9 runs without a partner
    left, right = np.repeat([1, 0, 0], [1, 10, 5]), np.repeat([0, 1, 0], [1, 10, 5])
    pairs, sides = np.tile(np.arange(16), 2), np.repeat([0, 1], 16)
    for lone in (0, 9):
        hits, side = np.r_[left, right, np.arange(lone) % 2], np.r_[sides, np.zeros(lone, int)]
        found = heterogeneity(hits, side, rng, 20_000, [np.r_[pairs, 16 + np.arange(lone)]])
        assert found.p == pytest.approx(stats.binomtest(1, 11).pvalue, abs=0.003)
        assert list(found.p_of.values()) == pytest.approx([found.p] * 2, abs=0.001), "of two groups all are one test"


def crossed_hits(
    rng: np.random.Generator, main: float, interaction: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hits of an order × init grid with four splits a cell that share the order × init interaction."""
    order, init = (v.reshape(-1) for v in np.meshgrid(np.arange(8), np.arange(8), indexing="ij"))
    z = main * rng.normal(size=8)[order] + interaction * rng.normal(size=64)
    order, init, z = np.repeat(order, 4), np.repeat(init, 4), np.repeat(z, 4) + rng.normal(size=256)
    return z > np.quantile(z, 0.75), order, init


def test_an_interaction_is_not_taken_for_a_seed_of_its_own() -> None:
    rng = generator("interaction rates")
    naive = blocked = alarms = 0
    for _ in range(60):
        hit, order, init = crossed_hits(rng, 0.0, 2.0)
        naive += heterogeneity(hit, order, rng, 99).p <= 0.05
        found = heterogeneity(hit, order, rng, 99, blocks=[init])
        blocked += found.p <= 0.05
        alarms += min(found.p_of.values()) <= 0.05 / 8
    assert naive > 15  # what permuting single runs would have called an effect of the order seed
    assert blocked <= 9  # 3 expected
    assert alarms <= 9
    assert np.mean([heterogeneity(h, o, rng, 99, [i]).p for h, o, i in [crossed_hits(rng, 2.0, 0.5)] * 3]) < 0.05


def test_a_ratio_between_clusters_covers() -> None:
    rng = generator("clustered ratio")
    inside, draws = 0, 0
    for _ in range(400):
        hit, order, init = crossed_hits(rng, 0.0, 2.0)
        try:
            e = clustered_ratio(hit, order == 0, [init])  # no order seed is better than another: the ratio is 1
        except NotEnoughData:
            continue  # the first order seed had no hit at all
        draws += 1
        inside += e.low <= 1 <= e.high
    assert draws > 380
    assert inside / draws > 0.92
    with pytest.raises(NotEnoughData, match="four seeds"):
        clustered_ratio(hit, order == 0, [init % 3])
    with pytest.raises(NotEnoughData, match="spread"):  # 3.00 (3.00 to 3.00) would be certain of four seeds
        clustered_ratio((order == 0) | (order == 1), order == 0, [init])


@pytest.mark.parametrize("interaction", ["order × init", "order × split", "all three"])
def test_a_lucky_combination_is_not_confirmed_as_a_lucky_seed(interaction: str) -> None:
    rng = generator(f"confirmed {interaction}")
    split, init, order = (v.reshape(-1) for v in np.meshgrid(*[np.arange(6)] * 3, indexing="ij"))
    effect = {"order × init": order * 6 + init, "order × split": order * 6 + split, "all three": np.arange(216)}
    alarms = draws = 0
    for _ in range(200):
        z = rng.normal(size=216)[effect[interaction]] + 0.3 * rng.normal(size=216)
        try:
            e = confirmed_ratio(z > np.quantile(z, 0.75), order, [split, init])
        except NotEnoughData:
            continue
        draws += 1
        alarms += not e.low <= 1 <= e.high
    assert draws > 150
    assert alarms / draws < 0.12  # 0.05 nominal; 0.07 where all the variance is one interaction
    z = 2.0 * (order == 3) + rng.normal(size=216)
    assert confirmed_ratio(z > np.quantile(z, 0.75), order, [split, init]).low > 1


def test_the_confidence_sequence_inverts_its_martingale() -> None:
    for hits, n in ((0, 50), (19, 1984), (50, 50), (3, 4)):
        e = at_any_time(hits, n)
        assert e.low <= hits / n <= e.high
        assert e.low < share(hits, n).low or hits == 0
        assert e.high > share(hits, n).high or hits == n
        for end in {e.low, e.high} - {0.0, 1.0}:
            ratio_at = stats.betabinom.pmf(hits, n, 0.5, 0.5) / stats.binom.pmf(hits, n, end)
            assert ratio_at == pytest.approx(20, rel=1e-6)
    assert at_any_time(0, 50).low == 0 and at_any_time(50, 50).high == 1


def test_groups_with_one_rate_and_with_two() -> None:
    rng = generator("groups")
    assert unequal_rates([0, 30], [500, 500], rng).p == pytest.approx(stats.fisher_exact([[0, 500], [30, 470]]).pvalue)
    found = unequal_rates([5, 4, 6, 21], [500, 480, 520, 500], rng)
    assert found.p <= 0.01 and found.p_of[3] == found.p and min(found.p_of[:3]) > 0.05
    assert [e.n for e in found.shares] == [500, 480, 520, 500]
    with pytest.raises(NotEnoughData):
        unequal_rates([0, 0], [10, 10], rng)
    with pytest.raises(NotEnoughData):
        unequal_rates([1], [10], rng)


def test_six_super_seeds_that_always_come_back_are_a_property_of_the_seed() -> None:
    for base in ((18, 2073), None):
        found = replication([(8, 8)] * 6, [base] * 6)
        assert found.count(Verdict.MOST) == 6 and found.verdict is Verdict.MOST
        assert found.mean is not None and found.mean.low > 0.5


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([(0, 8)], Verdict.NO_SIGN),
        ([(8, 8)], Verdict.MOST),
        ([(3, 8)], Verdict.MORE),
        ([(0, 1)], Verdict.UNKNOWN),
        ([(1, 1)], Verdict.MORE),
        ([(0, 8)] * 6, Verdict.NO_SIGN),
        ([(4, 20)], Verdict.MORE),
        ([(0, 2), (0, 1)], Verdict.UNKNOWN),
        ([(1, 4)] * 4 + [(0, 4)] * 6, Verdict.MORE),  # none of them alone: 4 of 40 together
        ([(1, 4)] + [(0, 4)] * 9, Verdict.NO_SIGN),
    ],
)
def test_verdicts_at_the_diarys_rate(counts: list[Counts], said: Verdict) -> None:
    assert replication(counts, [(18, 2073)] * len(counts)).verdict is said


def test_fishers_test_has_one_side_where_asked_and_holm_multiplies_by_what_is_left() -> None:
    for (hits, n), (others, m) in (((3, 8), (18, 2073)), ((0, 8), (5, 40)), ((8, 8), (0, 12))):
        above = stats.hypergeom(n + m, hits + others, n).sf(hits - 1)
        assert fisher((hits, n), (others, m), side="greater") == pytest.approx(above)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_mean_over_seeds_is_about_seeds_and_not_about_runs() -> None:
    """Two seeds, one always and one never hits: any number of repeats of them says nothing narrower."""
    assert mean_share([(8, 8), (0, 8)]) == mean_share([(800, 800), (0, 800)])
    assert mean_share([(8, 8)] * 6).low == pytest.approx(0.025 ** (1 / 6))


def test_units_that_differ_by_chance_alone_count_by_their_runs() -> None:
    alike = mean_share([(4, 8)] * 10)
    assert alike.high - alike.low < 0.6 * (mean_share([(8, 8), (0, 8)] * 5).high - mean_share([(8, 8), (0, 8)] * 5).low)
    for runs in (4, 400):  # without a hit nothing is known of the scatter
        assert mean_share([(0, runs)] * 19).high == pytest.approx(1 - 0.025 ** (1 / 19))


def test_the_interval_of_a_median_of_few_says_its_level() -> None:
    few = median_interval(np.array([1.0, 2.0, 5.0]))
    assert (few.low, few.high) == (1.0, 5.0)
    assert few.level == pytest.approx(0.75)


def test_the_dip_of_two_points_of_mass_is_half() -> None:
    """Half of the mass at 0 and half at 1: half of it stands above any straight line between them."""
    assert dip(np.repeat([0.0, 1.0], 200)) == pytest.approx(0.5, abs=0.02)
    assert dip(np.linspace(0, 1, 400)) < 0.01 and dip(np.zeros(400)) < 0.01, "one group, spread or at one place"


def test_a_large_sample_is_judged_by_the_dips_of_smaller_ones() -> None:
    rng = generator("large dip")
    small, large = (np.median([dip(rng.random(n)) for _ in range(150)]) * np.sqrt(n) for n in (LARGEST, 4 * LARGEST))
    assert small == pytest.approx(large, rel=0.1)
    apart = np.concatenate([rng.normal(0, 1, 300), rng.normal(5, 1, 300)])
    assert p_of_one_mode(apart) == 0.002
