"""The dip test: at most its level where there is one mode, whatever its shape, and its power where there are two."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.estimate import generator
from analysis.statistics.modes import LARGEST, dip, p_of_one_mode


def test_the_dip_of_two_points_of_mass_is_half() -> None:
    """Half of the mass at 0 and half at 1: half of it stands above any straight line between them."""
    spread = np.linspace(0, 1e-6, 200)
    assert dip(np.concatenate([spread, 1 + spread])) == pytest.approx(0.5, abs=0.02)
    assert dip(np.linspace(0, 1, 400)) < 0.01


@pytest.mark.parametrize("n", [pytest.param(13, marks=pytest.mark.slow), 24, pytest.param(100, marks=pytest.mark.slow)])
def test_one_mode_is_called_two_in_at_most_five_percent(n: int) -> None:
    rng, studies = generator(f"dip {n}"), 1000
    chance = np.sort([dip(rng.random(n)) for _ in range(2000)])
    limit = chance[int(0.95 * len(chance))]
    shapes = {
        "uniform": rng.random((studies, n)),
        "normal": rng.normal(size=(studies, n)),
        "exponential": rng.exponential(size=(studies, n)),
        "heavy tails": rng.standard_t(2, size=(studies, n)),
    }
    alarms = {name: np.mean([dip(x) > limit for x in values]) for name, values in shapes.items()}
    assert max(alarms.values()) < 0.07, alarms
    apart = np.where(rng.random((200, n)) < 0.4, -8.0, 0.0) + rng.normal(size=(200, n))
    assert np.mean([dip(x) > limit for x in apart]) > {13: 0.3, 24: 0.6, 100: 0.95}[n]


def test_a_large_sample_is_judged_by_the_dips_of_smaller_ones() -> None:
    rng = generator("large dip")
    small, large = (np.median([dip(rng.random(n)) for _ in range(150)]) * np.sqrt(n) for n in (LARGEST, 4 * LARGEST))
    assert small == pytest.approx(large, rel=0.1)
    apart = np.concatenate([rng.normal(0, 1, 300), rng.normal(5, 1, 300)])
    assert p_of_one_mode(apart, rng, 99) == 0.01
