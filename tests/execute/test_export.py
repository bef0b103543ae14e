"""A finished store in other tools: a run there for each run here, with the same numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grok.commands.store import main as store_command
from grok.execute.export import export
from grok.records import RunResult
from grok.store import StoreWriter, open_store
from grok.store.contract import example_design, example_rows
from tests.gpt.test_sinks import scalars


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


def test_a_second_export_to_tensorboard_adds_only_what_is_missing(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    words = ["export", store, "--tensorboard", "tb"]
    assert store_command(words) == 0
    assert capsys.readouterr().out == "3 runs written\n"
    files = {file: file.read_bytes() for file in Path("tb").glob("*/*")}
    first, *others = sorted(files)
    before = scalars(first.parent)
    assert store_command(words) == 0
    assert capsys.readouterr().out == "0 runs written, 3 were there already\n"
    assert {file: file.read_bytes() for file in Path("tb").glob("*/*")} == files
    shutil.rmtree(first.parent)
    assert store_command(words) == 0
    assert capsys.readouterr().out == "1 runs written, 2 were there already\n"
    assert scalars(first.parent) == before and all(file.read_bytes() == files[file] for file in others)


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
