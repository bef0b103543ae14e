"""The search space: what it accepts, what it refuses and in which words, what it asks Optuna for."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.commands.compose import apply
from grok.config import flatten, load_config
from grok.errors import ConfigError
from sweeps.search.space import Dimension, read_space

CONDITIONAL = {
    "optim": {
        "grokfast_lamb": {"low": 0.5, "high": 5.0, "when": {"optim.grokfast": ["ema", "ma"]}},
        "grokfast": {"choices": ["none", "ema", "ma"]},
        "warmup_steps": {"low": 0, "high": 20, "step": 5},
    },
    "model.d_model": {"choices": [32, 64]},
}


def test_conditions_numbers_and_order() -> None:
    space = read_space(CONDITIONAL, "arithmetic")
    names = [d.name for d in space.dimensions]
    assert names.index("optim.grokfast") < names.index("optim.grokfast_lamb")
    base = flatten(load_config({}))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    seen = set()
    for _ in range(40):
        chosen = space.suggest(study.ask(), base)
        seen.add(chosen["optim.grokfast"])
        assert ("optim.grokfast_lamb" in chosen) == (chosen["optim.grokfast"] != "none")
        assert chosen["optim.warmup_steps"] in (0, 5, 10, 15, 20)
        assert isinstance(chosen["optim.warmup_steps"], int)
        load_config(apply({}, {**chosen, "seed": 3}))
    assert seen == {"none", "ema", "ma"}


def test_the_default_is_a_point_only_where_the_space_holds_it() -> None:
    base = flatten(load_config({}))
    inside = read_space({"optim.lr": {"low": 1e-4, "high": 1e-2}, **CONDITIONAL}, "arithmetic")
    assert inside.default(base) is None  # d_model=128 is no choice
    inside = read_space({"optim.lr": {"low": 1e-4, "high": 1e-2}}, "arithmetic")
    assert inside.default(base) == {"optim.lr": 1e-3}
    assert read_space({"optim.lr": {"low": 2e-3, "high": 1e-2}}, "arithmetic").default(base) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "is empty"),
        ({"optim": {"lrr": {"low": 1, "high": 2}}}, "did you mean 'optim.lr'"),
        ({"optim": {"lr": 3}}, "expected {low"),
        ({"optim": {"lr": {"low": -1, "high": 2}}}, "optim.lr=-1"),
        ({"optim": {"lr": {"low": 2e-3, "high": 1e-3}}}, "low < high"),
        ({"optim": {"weight_decay": {"low": 0.0, "high": 1.0, "log": True}}}, "low above 0"),
        ({"seed": {"choices": [1, 2]}}, "a seed is a replicate"),
        ({"train": {"steps": {"low": 10, "high": 20}}}, "the same for all trials"),
        ({"model": {"norm": {"choices": ["post", "prae"]}}}, "model.norm='prae'"),
        ({"model": {"norm": {"low": 1, "high": 2}}}, "not a number"),
        ({"optim": {"lr": {"low": 1e-3, "high": 1e-2, "when": {"optim.grokfst": "ema"}}}}, "did you mean"),
        (
            {
                "optim.grokfast": {"choices": ["ema"]},
                "optim.lr": {"low": 1e-3, "high": 1e-2, "when": {"optim.grokfast": "ma"}},
            },
            "among the choices",
        ),
    ],
)
def test_refusals(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_space(raw, "arithmetic")
    assert said in str(refusal.value)


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(1e-6, 1.0),
    factor=st.floats(1.5, 1e4),
    points=st.integers(2, 9),
    log=st.booleans(),
    whole=st.booleans(),
)
def test_grids_stay_inside(low: float, factor: float, points: int, log: bool, whole: bool) -> None:
    ends = (max(1, int(low * 100)), max(2, int(low * 100 * factor)) + 1) if whole else (low, low * factor)
    dimension = Dimension("x", low=ends[0], high=ends[1], log=log, whole=whole)
    grid = dimension.grid(points)
    assert 1 <= len(grid) <= points
    assert all(dimension.holds(value) for value in grid)
    assert grid[0] == ends[0]
    assert grid[-1] == pytest.approx(ends[1])
