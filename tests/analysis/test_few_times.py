"""Times of a few runs: intervals hold the truth as often as they say, and cut runs give bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.survival import Times, geometric_mean, least_ratio, ratio_of_times


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
    high = geometric_mean(fast).high
    assert least_ratio(cut(5_000, 6_000), fast) == pytest.approx(math.sqrt(5_000 * 6_000) / high)
    partly = Times(np.array([9e3, 5e3]), np.array([9e3 + 1, math.inf]))
    assert least_ratio(partly, fast) == pytest.approx(math.sqrt(9e3 * 5e3) / high)
    with pytest.raises(NotEnoughData):
        ratio_of_times(partly, fast)


@pytest.mark.parametrize("spread", [0.02, 2.0])
def test_the_bound_of_cut_runs_is_one(spread: float) -> None:
    """Truth: the times of the slow runs without the cut, and the mean from which the fast ones are drawn."""
    rng = np.random.default_rng(5)
    misses = partly = 0
    for _ in range(1000):
        times, fast = np.exp(rng.normal(8.0, spread, 3)), np.exp(rng.normal(7.0, 0.2, 3))
        seen = times <= math.exp(8.0 + spread)
        slow = Times(np.where(seen, times - 1e-6, math.exp(8.0 + spread)), np.where(seen, times, math.inf))
        misses += least_ratio(slow, at(*fast)) > math.exp(np.log(times).mean() - 7.0)
        partly += 0 < seen.sum() < 3
    assert partly > 300
    assert misses <= 38, "2.5% of 1,000 and 2.6 standard errors"
