"""A finished store in other tools: a run there for each run here, with the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grok.cli.store import main as store_command
from grok.execute.export import export
from grok.records import RunResult
from grok.store import StoreWriter, open_store
from grok.store.testing import example_rows


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with StoreWriter("S") as writer:
        writer.commit(example_rows(range(3)))
    return "S"


class Memory:
    """A sink that remembers."""

    def __init__(self, run_id: str, settings: Mapping[str, Any]) -> None:
        self.run_id, self.settings = run_id, settings
        self.numbers: dict[tuple[str, int], float] = {}
        self.ended: RunResult | None = None

    def write(self, values: dict[str, float], step: int) -> None:
        self.numbers |= {(name, step): value for name, value in values.items()}

    def finish(self, result: RunResult) -> None:
        self.ended = result

    def close(self) -> None:
        assert self.ended is not None


def test_every_run_is_written_with_its_curve_and_its_outcome(store: str) -> None:
    sinks: list[Memory] = []

    def opened(run_id: str, settings: Mapping[str, Any]) -> Memory:
        sinks.append(Memory(run_id, settings))
        return sinks[-1]

    content = open_store(store)
    assert export(content, [opened], lambda number, of: None) == 3
    runs, curves = content.runs().set_index("run_id"), content.curves()
    assert {sink.run_id for sink in sinks} == set(runs.index)
    for sink in sinks:
        assert sink.settings["seed"] == runs["seed"][sink.run_id]
        assert sink.settings["store"] == str(Path(store).resolve())
        for _, point in curves[curves["run_id"] == sink.run_id].iterrows():
            assert sink.numbers["val/loss", point["step"]] == point["val_loss"]
            if point["step"]:  # there is no mini-batch at step 0
                assert sink.numbers["train/loss", point["step"]] == point["train_loss"]


def test_an_export_to_nowhere_is_refused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert store_command(["export", store]) == 2
    assert "expected at least one of --tensorboard DIR" in capsys.readouterr().err


@pytest.mark.slow
def test_the_logs_can_be_read_by_their_own_readers(store: str) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    words = ["--tensorboard", "tb", "--mlflow", "sqlite:///m.db", "--wandb", "seeds"]
    command = [sys.executable, "-m", "grok", "store", "export", store, *words]  # W&B remembers its folder by process
    subprocess.run(command, check=True, env={**os.environ, "WANDB_DIR": str(Path.cwd())})
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    content = open_store(store)
    last = content.runs().set_index("run_id")["val_loss"]
    client = MlflowClient("sqlite:///m.db")
    experiment = client.get_experiment_by_name("S")
    logged = {run.data.tags["grok.run_id"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(logged) == set(last.index)
    for run_id, value in last.items():
        assert logged[run_id].data.metrics["val/loss"] == pytest.approx(value)
        events = EventAccumulator(f"tb/{run_id}")
        events.Reload()
        assert events.Scalars("val/loss")[-1].value == pytest.approx(value, rel=1e-6)
    assert len(list(Path("wandb").glob("offline-run-*"))) == 3
