"""Importance against settings whose part is known; intervals of medians that cover."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData, generator
from analysis.statistics.prediction import explained, explained_by_groups, median_interval


def test_a_setting_with_an_inner_best_matters_and_an_idle_one_does_not() -> None:
    rng = generator("importance")
    inner, idle = rng.uniform(0, 1, 80), rng.uniform(0, 1, 80)
    y = (inner - 0.5) ** 2 + rng.normal(0, 0.02, 80)
    found = explained(inner, y, rng)
    assert found.low > 0.5
    assert explained(idle, y, rng).value < 0.1
    codes = np.floor(3 * inner)
    assert explained_by_groups(codes, (codes == 1) + rng.normal(0, 0.1, 80), rng).low > 0.3
    with pytest.raises(NotEnoughData):
        explained(inner[:5], y[:5], rng)


def test_the_interval_of_a_median_covers() -> None:
    rng = generator("medians")
    for n in (8, 9, 15, 30):
        inside = 0
        for _ in range(500):
            e = median_interval(rng.exponential(1.0, n))
            inside += e.low <= np.log(2) <= e.high
            assert e.low <= e.value <= e.high
        assert inside / 500 >= 0.93
        assert e.level <= 0.95
    few = median_interval(np.array([1.0, 2.0, 5.0]))
    assert (few.low, few.high) == (1.0, 5.0)
    assert few.level == pytest.approx(0.75)
