"""A block of stacked lanes as one operation: its mathematics, the steps that use it, and where it is refused."""

from typing import Any

import pytest

from grok.arithmetic.gpu.engine import memory_of
from grok.arithmetic.gpu.step import TrainingStep
from grok.errors import ConfigError
from grok.execute import refusals
from tests.arithmetic.cases import curve, default_config, results, stacked, tiny
from tests.arithmetic.test_stacked_step import seated

FUSED: dict[str, Any] = {"numerics": {"compile": False, "kernels": "fused"}}


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"model": {"activation": "relu", "bias": False}},
        {"model": {"layers": 1, "final_norm": False, "tied": True}},
        {"train": {"loss": "stablemax"}},
        {"model": {"layers": 3}, "task": {"sequence": "a b ="}},
    ],
)
def test_a_fused_step_has_the_numbers_of_the_plain_one(over: dict[str, Any]) -> None:
    ends = []
    for how in ({}, FUSED):
        state = seated(2, precision="float64", **over, **how)
        step = TrainingStep(state, compile=False)
        ends.append(step.gradients(*step.inputs())[: 2 + len(state.names)])
    for plain, fused in zip(*ends, strict=True):
        assert (fused - plain).abs().max() <= 1e-12 * max(1.0, plain.abs().max().item())
    assert memory_of(tiny(model={"d_ff": 512}, **FUSED), 8).step < 0.8 * memory_of(tiny(model={"d_ff": 512}), 8).step


def test_a_fused_run_is_the_plain_one_alone_or_in_a_crowd_and_its_tag_says_fused() -> None:
    (plain,) = results(tiny(precision="float64"), engine=stacked)
    (alone,) = results(tiny(precision="float64", **FUSED), engine=stacked)
    others = [tiny(seed=s, precision="float64", train={"steps": 9 + s}, **FUSED) for s in (4, 5, 6)]
    crowded = results(*others, tiny(precision="float64", **FUSED), engine=stacked)[3]
    for step, point in curve(plain).items():
        assert curve(alone)[step] == pytest.approx(point, rel=1e-9)
    assert alone.weights_hash == crowded.weights_hash and alone.curve == crowded.curve
    assert alone.numerics == plain.numerics.replace(";precision", ";kernels=fused;precision") != plain.numerics


@pytest.mark.parametrize("over", [{"norm": "pre"}, {"dropout": 0.1}, {"d_model": 512}, "bf16", "cpu", None])
def test_fused_kernels_are_refused_where_there_are_none(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"bf16": {"precision": "bf16"}, "cpu": {"device": "cpu"}, None: {}}
    settings = {"model": over} if isinstance(over, dict) else how[over]
    monkeypatch.setattr(refusals, "visible_gpus", lambda: 1)
    refusals.refuse_missing_device(fine := default_config(**FUSED), [fine])
    monkeypatch.setattr(refusals, "visible_gpus", lambda: int(over is not None))
    config = default_config(**settings, **FUSED)
    with pytest.raises(ConfigError, match=r"numerics\.kernels=fused is for stacked lanes on a GPU"):
        refusals.refuse_missing_device(config, [config])
