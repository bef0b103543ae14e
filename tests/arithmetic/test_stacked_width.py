"""How many lanes a device is given, and the memory that they take."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import profile

from grok.arithmetic.gpu.engine import memory_of, width_on
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import EvaluationPass, TrainingStep
from tests.arithmetic.cases import FEW, VARIANTS, default_config, tiny


@pytest.mark.slow
def test_the_width_follows_the_model_of_the_device_and_the_size_of_the_run() -> None:
    h200 = 141 * 10**9
    default = default_config()
    assert width_on(default, "NVIDIA H200", h200) == 264
    assert width_on(default, "NVIDIA H200 NVL", h200) == 264
    assert width_on(default, "NVIDIA GH200 480GB", 96 * 10**9) == 264
    assert width_on(default, "Some other device", h200) == 64
    wider = width_on(default_config(model={"d_model": 64, "d_ff": 256}), "NVIDIA H200", h200)
    narrower = width_on(default_config(model={"d_model": 256, "d_ff": 1024}), "NVIDIA H200", h200)
    assert narrower < 264 < wider <= 1056
    assert width_on(default, "NVIDIA H200", h200, 3) == 3


@pytest.mark.parametrize("variant", FEW)
def test_the_memory_estimate_is_what_a_step_takes(variant: str) -> None:
    config = tiny(**{**VARIANTS[variant], "precision": "float32"})
    expected = memory_of(config, 8)
    state = LaneState(config, 8, torch.device("cpu"))
    assert expected.state == sum(t.untyped_storage().nbytes() for _, t in state.tensors())
    for function, estimate in (
        (TrainingStep(state, compile=False), expected.step),
        (EvaluationPass(state, compile=False), expected.evaluation),
    ):
        function()
        with profile(profile_memory=True) as taken:
            function()
        live = peak = 0
        for event in taken.profiler.kineto_results.events():  # type: ignore[union-attr]
            if event.name() == "[memory]":
                live += event.nbytes()
                peak = max(peak, live)
        # what an operation takes inside itself is not seen by the estimate
        assert estimate <= peak * 1.01 + 4096 and peak <= 1.25 * estimate + 65536
