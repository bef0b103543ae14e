"""A finished store in other tools: a run there for each run here, with the same numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grok.cli.store import main as store_command
from grok.execute.export import export
from grok.execute.logged import in_tensorboard
from grok.records import RunResult
from grok.store import StoreWriter, open_store
from grok.store.testing import example_design, example_row, example_rows


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with StoreWriter("S") as writer:
        written = writer.commit(example_rows(range(3))).written
        writer.record_design(example_design(written[1:], kind="branch", parent=written[0]))
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
    assert export(content, [opened], lambda number, of: None) == (3, 3)
    runs, curves = content.runs().set_index("run_id"), content.curves()
    assert {sink.run_id for sink in sinks} == set(runs.index)
    for sink in sinks:
        assert sink.settings["seed"] == runs["seed"][sink.run_id]
        assert sink.settings["store"] == str(Path(store).resolve())
        mine = content.designs().query("run_id == @sink.run_id").to_dict("records")
        assert sink.settings["design"] == ("branch child" if mine else "unknown")
        for number, purpose in enumerate(mine):
            shown = json.loads(sink.settings[f"design.{number}"])
            assert (shown["parent_run_id"], shown["unit"]) == (purpose["parent_run_id"], purpose["unit"])
        for _, point in curves[curves["run_id"] == sink.run_id].iterrows():
            assert sink.numbers["val/loss", point["step"]] == point["val_loss"]
            if point["step"]:  # there is no mini-batch at step 0
                assert sink.numbers["train/loss", point["step"]] == point["train_loss"]


def test_an_export_to_nowhere_is_refused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert store_command(["export", store]) == 2
    assert "expected at least one of --tensorboard DIR" in capsys.readouterr().err


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard's own reader finds in a run's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_second_export_to_tensorboard_adds_only_what_is_missing(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    words = ["export", store, "--tensorboard", "tb"]
    assert store_command(words) == 0
    assert capsys.readouterr().out == "3 runs written\n"
    files = {file: file.read_bytes() for file in Path("tb").glob("*/*")}
    first, second, third = sorted(files)
    before = [scalars(file.parent) for file in (second, third)]
    assert store_command(words) == 0
    assert capsys.readouterr().out == "0 runs written, 3 were there already\n"
    assert {file: file.read_bytes() for file in Path("tb").glob("*/*")} == files
    first.unlink()
    second.write_bytes(files[second][:-3])  # as if killed within the last record
    third.write_bytes(files[third][: len(files[third]) // 2])
    assert store_command(words) == 0
    assert capsys.readouterr().out == "3 runs written\n"
    assert len(list(Path("tb").glob("*/*"))) == 3
    assert [scalars(file.parent) for file in (second, third)] == before


def test_a_folder_of_an_older_version_is_written_anew_in_its_place(store: str) -> None:
    """It has the run's name alone, and no end."""
    pytest.importorskip("tensorboard")
    run_id = min(open_store(store).run_ids())
    older = Path("tb", run_id)
    older.mkdir(parents=True)
    (older / "events.out.tfevents.1.host.1.0").write_bytes(b"of an older version")
    assert store_command(["export", store, "--tensorboard", "tb"]) == 0
    assert len(list(Path("tb").iterdir())) == 3 and not list(Path("tb").glob(f"seed=*-{run_id}"))
    curve = open_store(store).curves([run_id])
    assert [step for step, _ in scalars(older)["val/loss"]] == list(curve["step"])


def test_tensorboard_has_settings_seeds_outcome_and_the_store(store: str) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    assert store_command(["export", store, "--tensorboard", "tb"]) == 0
    for row in open_store(store).table("runs", None, None).to_pylist():
        events = EventAccumulator(f"tb/seed={row['seed']}-{row['run_id']}")
        events.Reload()
        settings = events.Tensors("run/settings/text_summary")[0].tensor_proto.string_val[0].decode()
        for name, value in (
            ("optim.lr", 0.001),
            ("seed", row["seed"]),
            ("seed_init", row["seed_init"]),
            ("store", Path(store).resolve()),
        ):
            assert f"| {name} | {value} |" in settings
        outcome = events.Tensors("run/outcome/text_summary")[0].tensor_proto.string_val[0].decode()
        assert "| status | completed |" in outcome and f"| seconds | {row['seconds']} |" in outcome
        if row["grokked_step"] is not None:
            assert events.Scalars("outcome/grokked_step")[0].value == row["grokked_step"]
        content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        shown = HParamsPluginData.FromString(content).session_start_info.hparams
        assert shown["optim.lr"].number_value == 0.001
        assert shown["seed"].number_value == row["seed"] and "seed_init" not in shown


class WandbRun:
    """A run as ``wandb.init`` takes it up from its server."""

    def __init__(self, **summary: Any) -> None:
        self.summary, self.resumed, self.closed = dict(summary), bool(summary), False
        self.steps: list[int] = []

    def log(self, values: dict[str, float]) -> None:
        self.steps.append(int(values["step"]))

    def finish(self) -> None:
        self.closed = True


def test_an_export_to_the_server_of_wandb_adds_what_it_lacks(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    whole, part, new = runs = [WandbRun(step=200, stop_reason="steps"), WandbRun(step=50), WandbRun()]
    upcoming = iter(runs)
    monkeypatch.setattr(wandb, "init", lambda **settings: next(upcoming))
    words = ["export", store, "--wandb", "seeds", "--wandb-mode", "online"]
    assert store_command(words) == 0
    assert [run.steps for run in runs] == [[], [100, 150, 200], [0, 50, 100, 150, 200]]
    assert part.summary["stop_reason"] == new.summary["stop_reason"] == "steps"
    assert whole.closed and part.closed and new.closed


def test_a_missing_package_is_named_with_what_installs_it(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert store_command(["export", store, "--mlflow", "sqlite:///m.db"]) == 2
    assert "--mlflow needs the mlflow package: pip install 'grok-lab[sinks]'\n" in capsys.readouterr().err


def test_what_a_language_model_logged_itself_stays(tmp_path: Path) -> None:
    """It has every step, and the end of an older version's log is not marked."""
    (tmp_path / "events.out.tfevents.1").write_bytes(b"train/loss")
    assert in_tensorboard(tmp_path, live=True)
    assert not in_tensorboard(tmp_path, live=False) and not list(tmp_path.iterdir())


@pytest.fixture
def language_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    settings = {"mode": "gpt", "experiment": "gpt/shakespeare_char", "data": {"path": "/data"}}
    with StoreWriter("S") as writer:
        writer.commit([example_row(seed, settings=settings) for seed in range(3)])
    return "S"


def test_a_killed_export_of_a_language_model_is_written_anew(
    language_models: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    words = ["export", language_models, "--tensorboard", "tb"]
    assert store_command(words) == 0
    first, second, third = files = sorted(Path("tb").glob("*/*"))
    before = [scalars(file.parent) for file in files]
    whole = third.read_bytes()
    first.write_bytes(first.read_bytes()[:100])  # as if killed before its settings
    second.write_bytes(second.read_bytes()[:-3])  # within the last record
    capsys.readouterr()
    assert store_command(words) == 0
    assert capsys.readouterr().out == "2 runs written, 1 were there already\n"
    assert [scalars(file.parent) for file in files] == before and third.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's own queries
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["store", "language_models"])
def test_the_logs_can_be_read_by_their_own_readers(kind: str, request: pytest.FixtureRequest) -> None:
    store = str(request.getfixturevalue(kind))
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    address = f"sqlite:///{Path.cwd()}/m.db"  # MLflow remembers a database by its address
    words = ["--tensorboard", "tb", "--mlflow", address, "--wandb", "seeds"]
    command = [sys.executable, "-m", "grok", "store", "export", store, *words]  # W&B remembers its folder by process
    for said in ("3 runs written", "0 runs written, 3 were there already"):
        environment = {**os.environ, "WANDB_DIR": str(Path.cwd())}
        ended = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
        assert said in ended.stdout and "warning:" not in ended.stderr
    from mlflow.tracking import MlflowClient

    content = open_store(store)
    last = content.runs().set_index("run_id")["val_loss"]
    client = MlflowClient(address)
    experiment = client.get_experiment_by_name("S")
    entries = client.search_runs([experiment.experiment_id])
    assert len(entries) == 3
    logged = {run.data.tags["grok.run_id"]: run for run in entries}
    assert set(logged) == set(last.index)
    for run_id, value in last.items():
        assert logged[run_id].data.metrics["val/loss"] == pytest.approx(value)
        (folder,) = Path("tb").glob(f"seed=*-{run_id}")
        assert scalars(folder)["val/loss"][-1][1] == pytest.approx(value, rel=1e-6)
    runs = sorted(Path("wandb").glob("offline-run-*"))
    assert len(runs) == 3
    # what a killed export leaves: a run of MLflow that goes on, a file of W&B without its end
    half, other = entries[:2]
    client.update_run(half.info.run_id, "RUNNING")
    (log,) = runs[0].glob("*.wandb")
    log.write_bytes(log.read_bytes()[:2000])
    Path("tb").rename("moved")
    ended = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    assert "3 runs written" in ended.stdout
    entries = client.search_runs([experiment.experiment_id])
    assert {run.data.tags["grok.run_id"] for run in entries} == set(last.index) and len(entries) == 3
    assert half.info.run_id not in {run.info.run_id for run in entries}
    assert other.info.run_id in {run.info.run_id for run in entries}
    again = sorted(Path("wandb").glob("offline-run-*"))
    assert len(again) == 3 and runs[0] not in again and runs[1] in again
