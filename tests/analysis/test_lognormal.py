"""One log-normal population: recovered through censoring and spacing."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.estimate import generator
from analysis.statistics.survival import Times, fit
from tests.analysis.test_survival import lognormal, observe


def test_mean_and_spread_are_scipys_and_are_recovered() -> None:
    rng = generator("log-normal")
    t = lognormal(rng, 400)
    exact = fit(Times(t - 1e-3, t + 1e-3))
    assert (exact.mean, exact.sd) == pytest.approx((np.log(t).mean(), np.log(t).std()), rel=1e-4)
    censored = stats.CensoredData.right_censored(np.minimum(np.log(t), np.log(9_000)), t > 9_000)
    cut = fit(Times(np.where(t > 9_000, 9_000, t - 1e-3), np.where(t > 9_000, np.inf, t + 1e-3)))
    assert (cut.mean, cut.sd) == pytest.approx(stats.norm.fit(censored), rel=1e-2)
    seen = fit(observe(t, 12_000, 500))
    assert seen.median == pytest.approx(10_000, rel=0.06)
    assert seen.sd == pytest.approx(0.4, rel=0.12)
