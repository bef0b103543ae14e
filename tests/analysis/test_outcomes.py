"""The outcome that causes are sought in is a scale on which they add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import special

from analysis.criteria import DIARY, FEW_CUT_OFF, outcome, wrong_log_odds
from analysis.statistics.estimate import generator
from analysis.statistics.variance_shares import Cells, variance_shares
from tests.analysis.simulate import Truth, simulate

INIT, ORDER, CHAOS = 0.7, 0.2, 0.1


def additive(rng: np.random.Generator, levels: int = 10) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Log times of a cross in which weights and order add up."""
    init, order = np.repeat(np.arange(levels), 2 * levels), np.tile(np.repeat(np.arange(levels), 2), levels)
    y = rng.normal(0, np.sqrt(INIT), levels)[init] + rng.normal(0, np.sqrt(ORDER), levels)[order]
    return y + rng.normal(0, np.sqrt(CHAOS), len(y)), {"init": init, "order": order}


def test_accuracy_invents_an_interaction_and_its_log_odds_do_not() -> None:
    rng = generator("additive cross")
    raw, odds = [], []
    for _ in range(12):
        y, factors = additive(rng)
        accuracy = special.expit(-4 * y - 3)  # most of them slow
        raw.append(variance_shares(-accuracy, factors, rng).shares["init × order"].value)
        odds.append(variance_shares(-special.logit(accuracy), factors, rng).shares["init × order"].value)
    assert np.mean(raw) > 0.08
    assert np.mean(odds) < 0.02


@pytest.mark.parametrize("cut_off", [0.1, FEW_CUT_OFF])
def test_a_few_times_at_the_horizon_do_little_harm(cut_off: float) -> None:
    rng = generator(f"cut off {cut_off}")
    cells = Cells(additive(rng)[1], rng)
    found = []
    for _ in range(100):
        y = additive(rng)[0]
        parts = cells.components(np.minimum(y, np.quantile(y, 1 - cut_off))).clip(0)
        found.append(parts[cells.labels.index("init × order")] / parts.sum())
    assert np.mean(found) < 0.03


def runs(times: np.ndarray, steps: int) -> list[Truth]:
    return [Truth({"seed": i, "train.steps": steps, "eval.every": 50}, float(t)) for i, t in enumerate(times)]


def test_which_scale_is_taken() -> None:
    times = np.exp(generator("scale").normal(np.log(2500), 0.25, 60))
    ended, cut = simulate(runs(times, 20_000)), simulate(runs(times, 2500))
    assert outcome(ended, ended.arithmetic).is_time
    seen = outcome(cut, cut.arithmetic)
    assert not seen.is_time and seen.name == "log odds of a wrong answer at step 2,500"
    assert seen.censored <= FEW_CUT_OFF
    order = np.argsort(times[cut.arithmetic["seed"].to_numpy(dtype=int)])
    assert (np.diff(seen.values[order]) >= 0).all()  # later is worse
    assert np.corrcoef(seen.values[order], np.log(np.sort(times)))[0, 1] > 0.97


def test_accuracy_is_read_at_the_step_of_the_classes_also_in_longer_runs() -> None:
    truths = [Truth({"seed": s, "train.steps": 20_000, "eval.every": 500}, 2500.0 + 200 * s) for s in range(10)]
    observations = simulate(truths)
    assert wrong_log_odds(observations, observations.arithmetic).horizon == DIARY.horizon == 3000
    guide = (Path(__file__).parents[2] / "docs/reading-the-report.md").read_text(encoding="utf-8")
    assert "log odds of a wrong answer at the step of the classes (3,000, or earlier" in guide
