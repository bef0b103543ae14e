"""What only a CUDA device can show of language models: bits that repeat, numbers near the processor's."""

from typing import Any

import pytest

from grok.config.gpt import GptConfig
from grok.gpt.training.engine import train
from grok.records import Checkpoint, Event, Job
from tests.gpt.conftest import RUN, Build, differences, result_of, run

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]

PATHS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "compiled": {"precision": "bf16", "numerics__compile": True},
    "dropout": {"precision": "bf16", "model__dropout": 0.2},
    "dropout, compiled": {"precision": "bf16", "model__dropout": 0.2, "numerics__compile": True},
}


def on_gpu(config: GptConfig, resume: Checkpoint | None = None) -> list[Event]:
    return list(train([Job(run_id=RUN, config=config, resume=resume)], device="cuda"))


@pytest.mark.parametrize("path", PATHS)
def test_a_second_run_has_the_bits_of_the_first(path: str, settings: Build) -> None:
    config = settings(**PATHS[path])
    first, second = (result_of(on_gpu(config)) for _ in range(2))
    assert first.status == "completed" and differences(first, second) == []
    assert ("dropout=fused" in first.numerics) == ("dropout" in path)


@pytest.mark.parametrize("path", ["float32", "dropout"])
def test_a_checkpoint_goes_on_with_the_same_bits(path: str, settings: Build) -> None:
    events = on_gpu(settings(checkpoint__every=5, **PATHS[path]))
    saved = [event for event in events if isinstance(event, Checkpoint) and event.step == 5]
    resumed = result_of(on_gpu(settings(**PATHS[path]), saved[0]))
    assert differences(result_of(events), resumed) == []


def test_float64_on_the_device_is_the_processors(settings: Build) -> None:
    config = settings(precision="float64")
    ours, reference = result_of(on_gpu(config)), result_of(run(config))
    for value, expected in zip(ours.curve, reference.curve, strict=True):
        assert value.val_loss == pytest.approx(expected.val_loss, rel=1e-9)
        assert value.weight_norm_all == pytest.approx(expected.weight_norm_all, rel=1e-9)
    for step, at in zip(ours.step_log, reference.step_log, strict=True):
        assert (step.adam_v_l1, step.zeros_in_grads) == pytest.approx((at.adam_v_l1, at.zeros_in_grads), rel=1e-6)
