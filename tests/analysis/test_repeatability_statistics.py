"""Rank correlation between repeats: nothing where seeds are exchangeable, the truth where they are not."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import norm

from analysis.statistics.estimate import benjamini_hochberg, generator, holm
from analysis.statistics.repeatability import agreement, mean_correlation, rank_scores


def table(rng: np.random.Generator, units: int, conditions: int, share: float) -> np.ndarray:
    """Outcomes of which ``share`` of the variance belongs to the unit; conditions differ in level."""
    unit = rng.normal(0, np.sqrt(share), (units, 1))
    return unit + rng.normal(0, np.sqrt(1 - share), (units, conditions)) + np.arange(conditions)


def test_a_property_of_the_seed_is_found() -> None:
    assert agreement(table(generator("real"), 40, 6, 0.6), generator("null"), 99).value == pytest.approx(0.6, abs=0.15)
    always = agreement(np.arange(20.0)[:, None] + np.zeros(4), generator("null"), 50)
    assert always.value == pytest.approx(1)


def test_agreement_interval_covers() -> None:
    rng = generator("agreement coverage")
    truth = 6 / np.pi * np.arcsin(0.5 / 2)  # rank correlation of a normal pair with correlation 0.5
    inside = 0
    for units in (12, 60):
        for _ in range(50):
            a = agreement(table(rng, units, 4, 0.5), rng, 20)
            inside += a.low <= truth <= a.high
    assert inside >= 88  # 95 expected, 3 sd


@pytest.mark.slow
@pytest.mark.parametrize(("units", "conditions", "share"), [(10, 4, 0.0), (16, 8, 0.5), (100, 2, 0.9), (60, 6, 0.3)])
def test_agreement_interval_covers_at_its_level(units: int, conditions: int, share: float) -> None:
    rng = generator(f"agreement coverage, many {units}")
    truth = 6 / np.pi * np.arcsin(share / 2)
    found = [agreement(table(rng, units, conditions, share), rng, 40) for _ in range(400)]
    held = np.mean([a.low <= truth <= a.high for a in found])
    print(
        f"{units} seeds, {conditions} repeats, {share:.0%} of the variance the seed's: the interval holds in {held:.1%}"
    )
    assert held > 0.91


def test_holes_in_the_table_are_allowed() -> None:
    rng = generator("holes")
    values = table(rng, 30, 5, 0.5)
    values[rng.random(values.shape) < 0.2] = np.nan
    assert agreement(values, rng, 99).value > 0.2


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
    assert mean_correlation(scores) == pytest.approx(np.mean(found), abs=1e-12)
