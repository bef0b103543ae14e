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
        found = repeatability(values, rng, 199)
        discoveries += bool((found.q <= 0.05).any())
        agreement += found.agreement_p <= 0.05
        confirmed += confirm(values, 5, rng, 199).p <= 0.05
    assert max(discoveries, agreement, confirmed) <= 9  # 3 expected, 9 is over 3 sd


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


def test_agreement_interval_covers() -> None:
    rng = generator("agreement coverage")
    truth = 6 / np.pi * np.arcsin(0.5 / 2)  # rank correlation of a normal pair with correlation 0.5
    inside = 0
    for _ in range(60):
        a = repeatability(table(rng, 60, 4, 0.5), rng, 200).agreement
        inside += a.low <= truth <= a.high
    assert inside >= 51


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
