"""A CUDA error stays in its process: that process ends, and the sweep goes on with another or says it once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grok.execute import worker
from grok.execute.executors.base import InlineExecutor
from grok.execute.groups import Group, prepare_runs
from grok.execute.worker import WorkerSettings, run_group_in_worker
from grok.runs import is_device_error
from grok.store import StoreWriter
from grok.store.contract import MACHINE
from tests.execute.conftest import tiny

GROUP = Group(tuple(prepare_runs([tiny(0), tiny(1)])))


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    with StoreWriter(tmp_path / "S"):  # a worker makes no store: the sweep has
        pass
    return WorkerSettings(
        store_path=str(tmp_path / "S"), live_path=str(tmp_path / "live"), flush_seconds=30.0, device="cpu", lanes=None,
        retry_failed=False, provenance=MACHINE, parent=None,
    )  # fmt: skip


def failing(message: str) -> Any:
    def train(*jobs: Any, **options: Any) -> Iterator[Any]:
        raise RuntimeError(message)

    return train


def test_only_errors_that_stay_in_the_process_are_the_device_s() -> None:
    assert is_device_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert is_device_error(torch.AcceleratorError("device-side assert triggered"))
    assert not is_device_error(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_device_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_worker_ends_with_its_device_and_only_then(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(worker, "train", failing("CUDA error: unspecified launch failure"))
    run_group_in_worker(GROUP, settings)
    assert ends == [1] and "unspecified launch failure" in capsys.readouterr().err
    monkeypatch.setattr(worker, "train", failing("boom"))
    report = run_group_in_worker(GROUP, settings)
    assert ends == [1] and report.error is not None and "boom" in report.error


def test_the_sweep_s_own_process_stops_instead(settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "train", failing("CUDA error: unspecified launch failure"))
    executor = InlineExecutor(settings)
    report = executor.result(executor.submit(GROUP, 0))
    assert report.fatal is not None and "can no longer use its GPU" in report.fatal
