"""Prediction: AUROC covers, cross-validation does not flatter, the screen's miss rate is the true one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from analysis.statistics import prediction
from analysis.statistics.estimate import generator
from analysis.statistics.prediction import (
    OutOfFold,
    auroc,
    cross_validated,
    cross_validated_auroc,
    cross_validation_noise,
    screen,
    spearman,
)


def sample(rng: np.random.Generator, n: int, shift: float, rate: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.random(n) < rate
    return rng.normal(0, 1, n) + shift * labels, labels


def test_auroc_covers_the_truth() -> None:
    rng = generator("auroc")
    truth = norm.cdf(1.0 / np.sqrt(2))
    inside, draws = 0, 500
    for _ in range(draws):
        e = auroc(*sample(rng, 200, 1.0))
        inside += e.low <= truth <= e.high
    assert 0.92 < inside / draws < 0.98


def test_auroc_of_a_known_table() -> None:
    scores = np.concatenate([np.arange(10.0), np.arange(5.0, 15.0)])
    labels = np.repeat([False, True], 10)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[10:] for b in scores[:10]]
    assert auroc(scores, labels).value == pytest.approx(np.mean(pairs))


def test_learnt_noise_is_called_noise_at_the_stated_rate() -> None:
    """DeLong's interval alone misses the noise of the models that were learnt: it was off chance too often."""
    rng = generator("learnt noise")
    labels = np.arange(60) < 12
    ratios, above, below = [], 0, 0
    for _ in range(16):
        x = rng.normal(0, 1, (60, 5))
        noise = cross_validation_noise(x, labels, rng, 6)
        ratios.append(noise.mean())
        e = cross_validated_auroc(cross_validated(x, labels, rng), labels, float(np.sqrt(max(1.0, noise.mean()))))
        above, below = above + (e.low > 0.5), below + (e.high < 0.5)
    assert above <= 2 and below <= 2  # 2.5% of 16 expected
    assert 1.2 < np.mean(ratios) < 4


def test_labels_that_luck_has_separated_have_a_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Perfect separation shows DeLong no variance to divide by; Mann and Whitney's is (m + n + 1) / 12mn."""
    labels = np.arange(40) < 10
    monkeypatch.setattr(prediction, "cross_validated", lambda x, shuffled, rng, k: OutOfFold(1.0 * shuffled, 1.0))
    noise = cross_validation_noise(np.zeros((40, 1)), labels, generator("separated"), 3)
    assert noise == pytest.approx(0.25 * 12 * 10 * 30 / 41)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "hits"), [(40, 10), (75, 15), (200, 20)])
def test_meaningless_labels_are_off_chance_as_often_as_said(n: int, hits: int) -> None:
    rng = generator(f"null {n}")
    labels = np.arange(n) < hits
    above = below = 0
    draws = 300
    for _ in range(draws):
        x = rng.normal(0, 1, (n, 8))
        widen = float(np.sqrt(max(1.0, cross_validation_noise(x, labels, rng, 12).mean())))
        e = cross_validated_auroc(cross_validated(x, labels, rng), labels, widen, shuffles=12)
        above, below = above + (e.low > 0.5), below + (e.high < 0.5)
    print(f"n = {n}, {hits} hits: interval under chance {below / draws:.1%}, over {above / draws:.1%} (2.5% each)")
    assert max(above, below) / draws < 0.05
    assert (above + below) / draws < 0.075  # 5% and two standard deviations


def test_a_signal_is_predicted_and_the_screen_misses_what_theory_says() -> None:
    rng = generator("signal")
    signal, labels = sample(rng, 20_000, 2.0, 0.1)
    x = np.column_stack([signal, rng.normal(0, 1, 20_000)])
    out = cross_validated(x, labels, rng)
    assert cross_validated_auroc(out, labels).value == pytest.approx(norm.cdf(2 / np.sqrt(2)), abs=0.01)
    scores = out.scores
    found = screen(scores, labels, 0.2, 500, np.full(len(labels), 3000.0))
    # The cut that keeps a fifth: 0.1 norm.sf(c - 2) + 0.9 norm.sf(c) = 0.2
    cuts = np.linspace(-3, 5, 4001)
    cut = cuts[np.argmin(np.abs(0.1 * norm.sf(cuts - 2) + 0.9 * norm.sf(cuts) - 0.2))]
    assert found.missed.value == pytest.approx(norm.cdf(cut - 2), abs=0.03)
    assert found.cost == pytest.approx(500 / 3000 + 0.2 * 2500 / 3000, abs=1e-3)


def test_spearman_covers() -> None:
    rng = generator("spearman")
    truth = 6 / np.pi * np.arcsin(0.6 / 2)
    inside, draws = 0, 500
    for _ in range(draws):
        x = rng.normal(0, 1, 60)
        e = spearman(x, 0.6 * x + 0.8 * rng.normal(0, 1, 60))
        inside += e.low <= truth <= e.high
    assert 0.92 < inside / draws < 0.98
