"""Two processes that share each batch equal one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grok.config.gpt import GptConfig
from grok.records import Checkpoint
from tests.gpt.conftest import differences, result_of, run

Build = Callable[..., GptConfig]


def test_two_devices_equal_one_to_the_bit(settings: Build) -> None:
    """Two micro-batches a step: a sum of two terms has one value, whoever adds. With dropout, clip and a resume."""
    common: dict[str, Any] = {"train__micro_batch": 3, "model__dropout": 0.1, "optim__clip": 0.3}
    alone = result_of(run(settings(**common)))
    both = settings(**common, train__devices=2)
    checkpoint = run(both, stop_at=5)[-1]
    assert isinstance(checkpoint, Checkpoint)
    together = result_of(run(both, checkpoint))
    assert differences(alone, together) == []
    assert together.numerics == alone.numerics.replace("micro=3", "micro=3;devices=2")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"train__micro_batch": 1}, {"precision": "fp16", "train__micro_batch": 2}])
def test_two_devices_equal_one_to_rounding(settings: Build, changes: dict[str, Any]) -> None:
    alone = result_of(run(settings(**changes)))
    together = result_of(run(settings(**changes, train__devices=2)))
    for p, q in zip(alone.step_log, together.step_log, strict=True):
        assert q.train_loss == pytest.approx(p.train_loss, rel=1e-3)
        assert q.event == p.event
