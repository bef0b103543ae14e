"""Figures of the evidence pages on simulated seeds: the numbers behind them are the truth's."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from analysis.figures import evidence
from analysis.figures.style import RC
from analysis.statistics.survival import Times, fit
from tests.analysis.simulate import census, simulate

EXAMPLES = 24_753


@pytest.fixture(autouse=True)
def common_style() -> Iterator[None]:
    with mpl.rc_context(RC):
        yield


def test_the_iconic_figure_picks_out_the_chosen_and_keeps_all_others() -> None:
    store = simulate(census(24, np.random.default_rng(1), steps=20_000, every=500))
    curves = store.curves_of(store.arithmetic.index)
    times = store.arithmetic["grokked_step"].astype(float).sort_values()
    chosen = {str(times.index[0]): "super", str(times.index[3]): "fast"}
    drawing = evidence.iconic(curves, chosen)
    assert drawing.png().startswith(b"\x89PNG")
    assert drawing.data["run_id"].nunique() == 24
    assert set(drawing.data["name"]) == {"super", "fast", "other"}
    assert (drawing.data["step"] > 0).all()
    assert drawing.figure.axes[0].get_xscale() == "log"
    assert "n = 24 seeds" in drawing.figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")
    with pytest.raises(ValueError, match="without a curve"):
        evidence.iconic(curves, {"nobody": "nobody"})


def test_strips_count_the_super_children_of_each_parent() -> None:
    rng = np.random.default_rng(2)
    seeds = pd.Series(1 / (1 + np.exp(-rng.normal(-4, 1.5, 2000))))
    rows = [("seed 7", "order", a) for a in [0.99, 0.995, 0.5, 0.1, 0.999]]
    rows += [("seed 7", "init", a) for a in [0.01, 0.02, 0.3]]
    children = pd.DataFrame(rows, columns=["parent", "redrawn", "val_acc"])
    drawing = evidence.redraw_strips(children, seeds, EXAMPLES)
    labels = [text.get_text() for text in drawing.figure.axes[0].get_yticklabels()]
    assert labels[1:] == ["seed 7: order\n3 super of 5", "seed 7: init\n0 super of 3"]
    assert f"{int((seeds > 0.98).sum())} super of 2,000" in labels[0]
    assert len(drawing.data) == 2008
    assert np.isfinite(drawing.data["logit"]).all()


def test_logit_is_finite_and_symmetric() -> None:
    a = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    x = evidence.logit(a, 1000)
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x, -x[::-1])
    np.testing.assert_allclose(evidence.logit(np.array([0.3]), 10**9), np.log(0.3 / 0.7), atol=1e-6)


def outside(times: np.ndarray, budget: float | np.ndarray) -> float:
    """Return the share of points outside the band, times being seen to the step and cut off at ``budget``."""
    seen = times <= budget
    known = Times(np.where(seen, times - 1e-3, budget), np.where(seen, times, np.inf))
    drawing = evidence.qq_log_time(fit(known))
    assert drawing is not None
    data = drawing.data
    return float(((data["step"] < data["low"]) | (data["step"] > data["high"])).mean())


@pytest.mark.parametrize("budget", [np.inf, pytest.param(12_000.0, marks=pytest.mark.slow)])
def test_one_log_normal_stays_in_its_band_and_two_do_not(budget: float) -> None:
    rng = np.random.default_rng(3)
    one = [outside(np.exp(rng.normal(9.2, 0.4, 150)), budget) for _ in range(20)]
    assert np.mean(one) < 0.06
    two = np.where(rng.random(150) < 0.15, rng.normal(7.4, 0.1, 150), rng.normal(9.4, 0.1, 150))
    assert outside(np.exp(two), budget) > 0.3


def test_a_few_longer_runs_do_not_leave_the_band_of_one_log_normal() -> None:
    """Of 1,000 seeds 8 were trained past step 3,000: their ranks are not those of 1,000 watched seeds."""
    rng = np.random.default_rng(5)
    budget = np.where(np.arange(1000) < 8, 20_000.0, 3000.0)
    assert np.mean([outside(np.exp(rng.normal(9, 0.5, 1000)), budget) for _ in range(20)]) < 0.08


def test_the_histogram_counts_every_seed_in_its_class() -> None:
    rng = np.random.default_rng(4)
    accuracy = pd.Series(1 / (1 + np.exp(-rng.normal(-3, 3, 500))))
    accuracy.iloc[:2] = [0.0, 1.0]
    data = evidence.logit_histogram(accuracy, EXAMPLES).data
    assert data["super"].sum() == (accuracy > 0.98).sum()
    assert data["normal"].sum() == (accuracy < 0.25).sum()
    assert data[["normal", "fast", "super"]].to_numpy().sum() == 500
    assert ((data[["normal", "fast", "super"]] > 0).sum(axis=1) <= 1).all(), "a bar has one class"
