"""A step's log that is completed by the next step, as on a GPU: the same records, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grok.gpt.training.trainer as trainer_module
from grok.config.gpt import GptConfig
from grok.gpt.log import Log
from grok.records import Checkpoint, StepPoint
from tests.gpt.conftest import differences, result_of, run

Build = Callable[..., GptConfig]
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"precision": "fp16"},
    "rolls back": {
        "optim__lr": 0.5,
        "train__steps": 20,
        "stability__policy": "new_data_seed",
        "stability__snapshot_every": 2,
        "stability__spike": 0.05,
        "stability__window": 4,
        "stability__sigma": 0.1,
        "stability__margin": 1,
    },
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool, str | None]]:
    """Return what sinks are told of steps: the step, whether its log is whole, its event."""
    steps: list[tuple[int, bool, str | None]] = []

    def tell(self: Log, what: str, *record: Any) -> None:
        if what == "step":
            (point,) = record
            assert isinstance(point, StepPoint)
            steps.append((point.step, point.param_norm == point.param_norm, point.event))

    monkeypatch.setattr(Log, "_tell", tell)
    return steps


@pytest.mark.parametrize("name", RUNS)
def test_late_numbers_are_the_same_numbers(
    name: str, settings: Build, monkeypatch: pytest.MonkeyPatch, told: list[tuple[int, bool, str | None]]
) -> None:
    config = settings(eval__every=7, **RUNS[name])
    at_once = run(config)
    first = [*told]
    told.clear()
    monkeypatch.setattr(trainer_module, "logs_late", lambda numerics: True)
    late = run(config)
    assert differences(result_of(at_once), result_of(late)) == []
    assert told == first and all(whole for _, whole, _ in told)
    assert name != "rolls back" or any(event for _, _, event in told)


def test_a_checkpoint_holds_a_whole_log(settings: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = result_of(run(settings()))
    monkeypatch.setattr(trainer_module, "logs_late", lambda numerics: True)
    checkpoint = run(settings(), stop_at=4)[-1]
    assert isinstance(checkpoint, Checkpoint)
    assert differences(whole, result_of(run(settings(), checkpoint))) == []
