"""What a run in flight has shown is in the store and in the report before it ends, and gone from there afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from analysis.answers import compile_report
from analysis.observations import Observations
from analysis.writing import write_report
from grok.execute import worker
from grok.processes import Owner
from grok.records import Checkpoint, Progress
from grok.store import StoreWriter, open_store
from grok.store.reader import OWNER, write_in_flight
from tests.doors.conftest import Door
from tests.gpt.conftest import prepare_text, text_of


def test_curves_of_a_run_in_flight(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    corpus = prepare_text(tmp_path / "text", text_of(600))
    monkeypatch.setattr(worker, "CURVES", 0.0)
    pages: list[str] = []
    curves: list[list[int]] = []
    steps: list[list[int]] = []

    def look(store: str, checkpoint: Checkpoint, config: object) -> None:
        opened = open_store(store)
        curves.append(opened.in_flight("curves")["step"].astype(int).tolist())
        steps.append(opened.in_flight("steps")["step"].astype(int).tolist())
        report = compile_report(Observations.read(store))
        pages.append(write_report(report, tmp_path / "R").read_text(encoding="utf-8"))

    monkeypatch.setattr(worker, "keep_checkpoint", look)
    ended = door(
        "mode=gpt", "experiment=gpt/shakespeare_char", f"data.path={corpus.path}", "store.path=S", "model.layers=1",
        "model.d_model=16", "model.heads=2", "model.context=16", "train.steps=8", "train.batch_size=2",
        "train.threads=1", "eval.every=2", "eval.windows=2", "eval.sample_tokens=4", "eval.prompt='the cat'",
        "checkpoint.every=6", "numerics.compile=false", "log.quiet=true", "executor=inline",
    )  # fmt: skip
    assert ended.status == 0, ended
    assert curves == [[2, 4]] and steps[0][:4] == [1, 2, 3, 4]
    assert "Runs in flight" in pages[0] and "the cat" in pages[0]
    store = open_store("S")
    assert store.in_flight().empty and len(store.runs()) == 1
    assert not list((tmp_path / "S").glob("live/*/*.run"))
    assert "Runs in flight" not in [s.title for s in compile_report(Observations.read("S")).studies]


def test_runs_of_a_killed_sweep_are_not_in_flight(tmp_path: Path) -> None:
    """Of a sweep on another machine nobody here knows whether it lives."""
    StoreWriter(tmp_path / "S").close()
    mine = Owner.this_process()
    owners = {"lives": mine, "killed": replace(mine, started="0"), "far": replace(mine, machine="another")}
    for name, owner in owners.items():
        folder = tmp_path / "S" / "live" / name
        folder.mkdir(parents=True)
        (folder / OWNER).write_text(json.dumps(asdict(owner)))
        write_in_flight(folder, Progress(run_id=f"run-{name}", step=1, steps=2))
    assert sorted(open_store(tmp_path / "S").in_flight()["run_id"]) == ["run-far", "run-lives"]
