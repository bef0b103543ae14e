"""Times of a few runs: intervals hold the truth as often as they say, and cut runs give bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.few_times import geometric_mean, growth, ratio_of_times
from analysis.statistics.survival import Times


def at(*steps: float) -> Times:
    right = np.array(steps, dtype=float)
    return Times(right - 1e-6, right)


def cut(*steps: float) -> Times:
    left = np.array(steps, dtype=float)
    return Times(left, np.full(len(left), np.inf))


def held(rng: np.random.Generator, draws: int, one_more: bool) -> float:
    """Return how often the interval of four runs holds the truth: the mean, or a fifth run."""
    hits = 0
    for _ in range(draws):
        *four, fifth = np.exp(rng.normal(7.0, 0.4, 5))
        e = geometric_mean(at(*four), one_more=one_more)
        hits += e.low <= (fifth if one_more else math.exp(7.0)) <= e.high
    return hits / draws


@pytest.mark.parametrize("one_more", [False, True])
def test_intervals_of_four_runs_hold_the_truth_as_often_as_they_say(one_more: bool) -> None:
    assert 0.925 <= held(np.random.default_rng(4), 1000, one_more) <= 0.975


def test_a_ratio_of_times_and_its_bound() -> None:
    fast = at(900, 1000, 1100)
    e = ratio_of_times(at(9_000, 10_000, 11_000), fast)
    assert e.value == pytest.approx(10) and 7 < e.low < 10 < e.high < 14
    bound = ratio_of_times(cut(5_000, 6_000), fast)
    assert bound.high == math.inf and bound.low == pytest.approx(5_000 / geometric_mean(fast).high)
    assert ratio_of_times(Times(np.array([9e3, 5e3]), np.array([9e3 + 1, math.inf])), fast).high == math.inf


def test_growth_is_the_slope_of_log_time() -> None:
    share = np.repeat([0.3, 0.4, 0.5, 0.6], 2)
    noise = np.tile([0.98, 1.02], 4)
    e = growth(share, at(*(1000 * 1.05 ** (100 * (0.6 - share)) * noise)))
    assert e.low < 0.05 < e.high and e.value == pytest.approx(0.05, abs=0.003)
    assert growth(share, cut(*np.full(8, 500.0))).high == math.inf


def test_too_few_runs_have_no_number() -> None:
    for few in (at(100), cut(100, 200)):
        with pytest.raises(NotEnoughData):
            geometric_mean(few)
    with pytest.raises(NotEnoughData):
        ratio_of_times(at(1000), at(10, 11))
    with pytest.raises(NotEnoughData):
        growth(np.array([0.3, 0.3, 0.3, 0.3]), at(9, 8, 7, 6))
