"""Onsets and outliers of made-up logs whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.config.gpt import EVENTS, StabilityConfig
from grok.gpt.training.stability import Signal, Watch, onset
from grok.records import StepPoint
from grok.streams import Stream


def log_of(losses: np.ndarray) -> list[StepPoint]:
    return [StepPoint(step=k + 1, train_loss=float(x), grad_norm=1.0) for k, x in enumerate(losses)]


def falling(steps: int, seed: int, noise: float) -> np.ndarray:
    """A loss that falls from 11 to 6.4, with noise."""
    k = np.arange(steps)
    return 6.4 + 4.6 * np.exp(-k / 100) + noise * Stream("eval", seed).normal(steps)


@pytest.mark.parametrize("seed", range(5))
def test_the_onset_of_a_slow_rise_is_found(seed: int) -> None:
    """It rises for 100 steps and then stays 0.8 above: the chronicle's 7.2 after 6.4."""
    losses = falling(1500, seed, noise=0.1)
    losses[1000:] += np.minimum(1, np.arange(500) / 100) * 0.8
    begun = onset(log_of(losses), ("train_loss", "grad_norm"), window=50, steps=None)
    assert 980 <= begun <= 1060


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), noise=st.floats(0.01, 0.5))
def test_calm_has_no_onset(seed: int, noise: float) -> None:
    losses = falling(600, seed, noise)
    losses[-1] = np.median(losses[-50:])
    assert onset(log_of(losses), ("train_loss", "grad_norm"), window=50, steps=200) > 600 - 200


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 2**31))
@settings(max_examples=30)
def test_an_outlier_does_not_depend_on_the_scale(scale: float, seed: int) -> None:
    """Lognormal noise is none; a value a hundred times the median is one."""
    signal = Signal(50)
    for x in Stream("eval", seed).normal(50):
        signal.remember(scale * math.exp(0.2 * float(x)))
    assert not signal.outlier(2 * scale, factor=10, sigma=10)
    assert signal.outlier(100 * scale, factor=10, sigma=10)


def test_only_the_loss_is_acted_on_unless_all_is_asked_for() -> None:
    assert {e for e in EVENTS if StabilityConfig().acts_on(e)} == {"not_finite", "spike", "rising"}
    assert all(StabilityConfig(signals="all").acts_on(e) for e in EVENTS)
    assert {e for e in EVENTS if StabilityConfig(policy="log", signals="all").acts_on(e)} == {"not_finite", "rising"}


def test_a_watch_goes_on_as_if_it_had_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state at any step, loaded, gives the same events."""
    for name, value in {"stuck": 0.2, "stuck_steps": 10, "growth": 2.0}.items():
        monkeypatch.setattr(StabilityConfig, name, value)
    config = StabilityConfig(policy="log", window=8)
    noise = Stream("eval", 9).normal(300)

    def feed(watch: Watch, k: int) -> str | None:
        event = watch.see(4 + 0.1 * noise[k] + (k > 150), math.exp(0.02 * k + 0.1 * noise[k]), k % 7 if k > 250 else k)
        watch.after(param_norm=1.0 + 0.01 * k, adam_v_l1=1.0, adam_v_max=math.exp(5 * (k == 77)), adam_steps=k)
        return event

    whole, broken = Watch(config), Watch(config)
    events = []
    for k in range(300):
        events.append(feed(whole, k))
        fresh = Watch(config)
        fresh.load(broken.state())
        broken = fresh
        assert feed(broken, k) == events[-1], k
    assert {"adam_v", "grad_growth", "stuck", "repeated"} <= set(events)
