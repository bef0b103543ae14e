"""Schedules equal their closed forms and never jump."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grok.config import load_config
from grok.config.gpt import OptimConfig
from grok.gpt.training import schedules
from grok.gpt.training.optimizer import learning_rate
from grok.gpt.training.schedules import Ramp


def test_cosine_equals_its_closed_form_at_the_ends_and_in_the_middle() -> None:
    assert schedules.cosine(100, 100, 1100, 0.1) == 1.0
    assert schedules.cosine(600, 100, 1100, 0.1) == pytest.approx(0.55)
    assert schedules.cosine(1100, 100, 1100, 0.1) == schedules.cosine(5000, 100, 1100, 0.1) == pytest.approx(0.1)


def test_linear_equals_its_closed_form_and_starts_after_the_warmup() -> None:
    optim = {"lr": 2.0, "schedule": "linear", "warmup_steps": 10, "min_lr": 0.1}
    config = load_config({"mode": "gpt", "experiment": "t", "optim": optim, "train": {"steps": 110}})
    assert [learning_rate(config, k) for k in (1, 5, 10, 60, 85, 110)] == pytest.approx([0.2, 1.0, 2.0, 1.1, 0.65, 0.2])


def test_one_cycle_equals_pytorch() -> None:
    # PyTorch counts from 0 and puts its peak at pct_start * total - 1
    total, rise, lr = 200, 0.3, 0.01
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=total, pct_start=rise, div_factor=25, final_div_factor=1e4
    )
    for k in range(1, total + 1):
        mine = lr * schedules.one_cycle(k, total, rise, 1 / 25, 1 / 25e4)
        assert mine == pytest.approx(reference.get_last_lr()[0], rel=1e-9, abs=1e-15), k
        optimizer.step()
        if k < total:
            reference.step()


def test_wsd_is_flat_then_falls_in_a_line() -> None:
    shares = [schedules.wsd(k, 10, 1000, 0.2, 0.0) for k in (1, 800, 900, 1000)]
    assert shares == pytest.approx([1, 1, 0.5, 0])


settings = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(["constant", "linear", "cosine", "wsd", "one_cycle"]),
        "warmup_steps": st.integers(0, 60),
        "min_lr": st.floats(0, 1),
    }
)


@given(settings, st.integers(150, 500))
def test_the_rate_never_jumps(optim: dict, steps: int) -> None:
    if optim["schedule"] == "one_cycle":
        del optim["warmup_steps"]  # its rise is its warm-up
    config = load_config({"mode": "gpt", "experiment": "t", "optim": {**optim, "lr": 1.0}, "train": {"steps": steps}})
    rates = [learning_rate(config, k) for k in range(1, steps + 20)]
    assert all(0 <= r <= 1 + 1e-12 for r in rates)
    if optim["schedule"] != "one_cycle":
        assert 1 - 2 / (OptimConfig.wsd_decay * steps) <= max(rates) <= 1
        steepest = max(1 / max(1, optim["warmup_steps"]), math.pi / 2 / (steps - optim["warmup_steps"]))
        steepest = max(steepest, 1.6 / (OptimConfig.wsd_decay * steps))
    else:
        steepest = math.pi / 2 / (0.3 * steps - 1)
    jumps = [abs(b - a) for a, b in pairwise(rates)]
    assert max(jumps) <= steepest * 1.01


def test_warmup_may_be_counted_in_samples() -> None:
    config = load_config(
        {
            "mode": "gpt",
            "experiment": "t",
            "optim": {"lr": 1.0, "warmup_samples": 120, "schedule": "constant"},
            "train": {"batch_size": 12},
        }
    )
    assert [learning_rate(config, k) for k in (1, 5, 10, 11)] == pytest.approx([0.1, 0.5, 1.0, 1.0])


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 6), st.integers(1, 4000), st.integers(0, 400))
def test_ramp_adds_up_step_by_step(first: int, increment: int, increments: int, samples: int, steps: int) -> None:
    ramp = Ramp(first, increment, samples, first + increment * increments)
    seen = 0
    for k in range(steps):
        assert ramp.consumed(k) == seen
        seen += ramp.size_at(seen)
    assert ramp.consumed(steps) == seen
