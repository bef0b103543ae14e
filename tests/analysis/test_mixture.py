"""Two groups are found where there are two, and not where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.mixture import dip, log_mixture
from analysis.statistics.resampling import generator
from tests.analysis.simulate import mixture_times
from tests.analysis.test_survival import lognormal, observe


def test_two_groups_are_recovered_through_censoring_and_spacing() -> None:
    rng = generator("mixture")
    t, _ = mixture_times(1500, rng, fast_share=0.07)
    found = log_mixture(observe(t, 10_000, 250))
    assert found.share.low <= 0.07 <= found.share.high
    assert found.share.high - found.share.low < 0.05
    assert found.fast.median == pytest.approx(2200, rel=0.1)
    assert found.slow.median == pytest.approx(11_000, rel=0.05)
    assert found.bic_gain > 10


def test_the_share_interval_covers() -> None:
    rng = generator("mixture coverage")
    inside = 0
    for _ in range(40):
        t, _ = mixture_times(200, rng, fast_share=0.2)
        share = log_mixture(observe(t, 12_000, 500)).share
        inside += share.low <= 0.2 <= share.high
    assert inside >= 34  # 38 expected; below 34 has a chance of about 1 in 100


@pytest.mark.slow
def test_the_share_interval_covers_at_its_level() -> None:
    rng = generator("mixture coverage, many")
    hits = []
    for _ in range(400):
        t, _ = mixture_times(200, rng, fast_share=0.2)
        share = log_mixture(observe(t, 12_000, 500)).share
        hits.append(share.low <= 0.2 <= share.high)
    assert 0.92 < np.mean(hits) < 0.98


def test_one_group_stays_one() -> None:
    rng = generator("one group")
    alarms = [dip(observe(lognormal(rng, 200), 12_000, 250), rng).p <= 0.05 for _ in range(100)]
    assert sum(alarms) <= 12
    gains = [log_mixture(observe(lognormal(rng, 200), 12_000, 250)).bic_gain for _ in range(10)]
    assert max(gains) < 10
    t, _ = mixture_times(300, rng, fast_share=0.4)
    assert dip(observe(t, 30_000, 250), rng).p < 0.01


def test_too_few_are_refused() -> None:
    few = observe(np.full(100, 5_000.0), 1_000, 100)
    with pytest.raises(NotEnoughData, match="seen: 0"):
        log_mixture(few)
    with pytest.raises(NotEnoughData):
        dip(few, generator("few"))
