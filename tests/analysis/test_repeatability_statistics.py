"""Repeatability: silent where seeds are exchangeable, honest about the winner's curse, right where they are not."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.multiplicity import benjamini_hochberg, holm
from analysis.statistics.repeatability import _agreement, confirm, rank_scores, repeatability
from analysis.statistics.resampling import generator


def table(rng: np.random.Generator, units: int, conditions: int, share: float) -> np.ndarray:
    """Outcomes of which ``share`` of the variance belongs to the unit; conditions differ in level."""
    unit = rng.normal(0, np.sqrt(share), (units, 1))
    return unit + rng.normal(0, np.sqrt(1 - share), (units, conditions)) + np.arange(conditions)


def test_a_null_study_finds_nothing_at_the_stated_rate() -> None:
    rng = generator("null repeatability")
    discoveries = agreement = confirmed = 0
    for _ in range(60):
        values = table(rng, 30, 6, 0.0)
        found = repeatability(values, rng, 99)
        discoveries += bool((found.q <= 0.05).any())
        agreement += found.agreement_p <= 0.05
        confirmed += confirm(values, 5, rng, 99).p <= 0.05
    assert max(discoveries, agreement, confirmed) <= 9  # 3 expected, 9 is over 3 sd


@pytest.mark.parametrize(("units", "conditions", "share"), [(230, 2, 0.97), (230, 2, 0.7), (16, 9, 0.7)])
def test_a_strong_property_is_found_and_what_is_found_is_true(units: int, conditions: int, share: float) -> None:
    """Also with two repeats of each of many candidates, where shuffles could never have found one of them."""
    rng = generator(f"strong {units} {share}")
    found, wrong = [], []
    for _ in range(20):
        unit = rng.normal(0, np.sqrt(share), units)
        values = unit[:, None] + rng.normal(0, np.sqrt(1 - share), (units, conditions))
        called = repeatability(values, rng, 1).q <= 0.05
        found.append(called.mean())
        wrong.append((unit[called] > 0).sum() / max(1, called.sum()))
    assert np.mean(found) > 0.15
    assert np.mean(wrong) <= 0.05


def test_repeats_that_agree_to_the_last_rank_are_not_called_certain() -> None:
    rng = generator("deterministic")
    found = repeatability(np.arange(20.0)[:, None] + np.zeros(4), rng, 50)
    assert found.agreement.value == pytest.approx(1)
    assert found.agreement_p == pytest.approx(1 / 51)
    called = found.q <= 0.05
    assert called[:9].all()
    assert not called[10:].any()
    assert found.per_unit == 4
    assert found.chance[0] == pytest.approx(0.8, abs=0.1)


def test_units_that_share_a_seed_do_not_narrow_the_interval() -> None:
    """36 pairs of weights and order under six splits; only weights and split together matter."""
    rng = generator("shared seeds")
    weights, order = np.repeat(np.arange(6), 6), np.tile(np.arange(6), 6)
    naive = inside = 0
    for _ in range(60):
        values = rng.normal(size=(6, 6))[weights] + rng.normal(size=(36, 6)) / 2
        plain = repeatability(values, rng, 1).agreement
        found = repeatability(values, rng, 1, clusters=[weights, order]).agreement
        naive += plain.low <= 0 <= plain.high
        inside += found.low <= 0 <= found.high
    assert naive < 40
    assert inside >= 51


def crossed_conditions(
    rng: np.random.Generator, units: int, main: float, interaction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes of units under 5 × 5 conditions, and which of these have a seed in common."""
    a, b = (v.reshape(-1) for v in np.meshgrid(np.arange(5), np.arange(5)))
    unit = rng.normal(0, np.sqrt(main), (units, 1))
    together = rng.normal(0, np.sqrt(interaction), (units, 5))[:, a]
    values = unit + together + rng.normal(0, np.sqrt(1 - main - interaction), (units, 25))
    related = (a[:, None] == a) | (b[:, None] == b)
    np.fill_diagonal(related, False)
    return values, related


def test_an_interaction_is_no_property_of_the_seed() -> None:
    rng = generator("interaction")
    naive = careful = inside = 0
    for _ in range(60):
        values, related = crossed_conditions(rng, 15, 0.0, 0.5)
        naive += bool((repeatability(values, rng, 1).q <= 0.05).any())
        found = repeatability(values, rng, 1, related=related)
        careful += bool((found.q <= 0.05).any())
        inside += found.agreement.low <= 0 <= found.agreement.high
    assert naive > 20  # what counting every condition as a witness would have found
    assert careful <= 9
    assert inside >= 50
    values, related = crossed_conditions(rng, 15, 0.6, 0.2)
    assert (repeatability(values, rng, 1, related=related).q <= 0.05).any()


def test_the_winners_curse_is_seen_and_taken_back() -> None:
    rng = generator("curse")
    results = [confirm(table(rng, 40, 6, 0.0), 4, rng, 50) for _ in range(40)]
    assert np.mean([r.found for r in results]) > 0.75
    assert np.mean([r.confirmed.value for r in results]) == pytest.approx(0.5, abs=0.03)


def test_a_property_of_the_seed_is_found() -> None:
    rng = generator("real")
    values = table(rng, 40, 6, 0.6)
    found = repeatability(values, rng, 499)
    assert found.agreement.value == pytest.approx(0.6, abs=0.15)
    assert found.agreement_p < 0.01
    truth = -values.mean(1)
    assert np.corrcoef(found.scores, truth)[0, 1] > 0.95
    assert confirm(values, 5, rng, 499).confirmed.value > 0.7


@pytest.mark.parametrize(("units", "conditions", "share", "top"), [(30, 6, 0.0, 6), (16, 8, 0.3, 3), (40, 6, 0.5, 8)])
def test_the_confirmed_score_covers(units: int, conditions: int, share: float, top: int) -> None:
    rng = generator(f"confirmed {units}")
    found = [confirm(table(rng, units, conditions, share), top, rng, 1).confirmed for _ in range(150)]
    truth = np.mean([e.value for e in found])
    assert np.mean([e.low <= truth <= e.high for e in found]) >= 0.93


def test_agreement_interval_covers() -> None:
    rng = generator("agreement coverage")
    truth = 6 / np.pi * np.arcsin(0.5 / 2)  # rank correlation of a normal pair with correlation 0.5
    inside = 0
    for units in (12, 60):
        for _ in range(50):
            a = repeatability(table(rng, units, 4, 0.5), rng, 20).agreement
            inside += a.low <= truth <= a.high
    assert inside >= 88  # 95 expected, 3 sd


@pytest.mark.slow
@pytest.mark.parametrize(("units", "conditions", "share"), [(10, 4, 0.0), (16, 8, 0.5), (100, 2, 0.9), (60, 6, 0.3)])
def test_agreement_interval_covers_at_its_level(units: int, conditions: int, share: float) -> None:
    rng = generator(f"agreement coverage, many {units}")
    truth = 6 / np.pi * np.arcsin(share / 2)
    found = [repeatability(table(rng, units, conditions, share), rng, 40).agreement for _ in range(400)]
    assert np.mean([a.low <= truth <= a.high for a in found]) > 0.91


def test_holes_in_the_table_are_allowed() -> None:
    rng = generator("holes")
    values = table(rng, 30, 5, 0.5)
    values[rng.random(values.shape) < 0.2] = np.nan
    assert repeatability(values, rng, 99).agreement.value > 0.2


def test_too_little_is_refused() -> None:
    rng = generator("little")
    with pytest.raises(NotEnoughData):
        repeatability(table(rng, 4, 5, 0.5), rng)
    with pytest.raises(NotEnoughData):
        repeatability(table(rng, 20, 1, 0.5), rng)
    with pytest.raises(NotEnoughData):
        confirm(table(rng, 5, 4, 0.5), 5, rng)


def test_corrections_equal_the_published_steps() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    assert benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_false_discoveries_stay_below_the_rate() -> None:
    rng = generator("fdr")
    shares = []
    for _ in range(300):
        z = rng.normal(0, 1, 100)
        z[:20] += 3
        from scipy.stats import norm

        called = benjamini_hochberg(norm.sf(z)) <= 0.1
        shares.append(called[20:].sum() / max(1, called.sum()))
    assert np.mean(shares) <= 0.1


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_agreement_is_the_mean_of_the_pairs_own_correlations(missing: float) -> None:
    rng = generator("pairs of conditions")
    values = rng.normal(size=(12, 6)) + rng.normal(size=(12, 1))
    values[rng.random(values.shape) < missing] = np.nan
    values[:, 5] = np.where(np.isfinite(values[:, 5]), 1.0, np.nan)  # all tied: correlates with nothing
    scores = rank_scores(values)
    found = []
    for a, b in combinations(range(6), 2):
        both = np.isfinite(scores[:, a]) & np.isfinite(scores[:, b])
        if both.sum() >= 3 and np.ptp(scores[both, a]) > 0 and np.ptp(scores[both, b]) > 0:
            found.append(np.corrcoef(scores[both, a], scores[both, b])[0, 1])
    assert 0 < len(found) <= 10
    assert _agreement(scores) == pytest.approx(np.mean(found), abs=1e-12)
