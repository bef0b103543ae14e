"""The documented commands, end to end, with the real engine and the real store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from grok.config import RunConfig
from grok.execute import Outcome
from grok.store import open_store
from tests.doors.conftest import TINY, Door

INLINE = "executor=inline"
FACTS = ["run_id", "trajectory_id", "config_id", "seed", "seed_init", "status", "steps", "weights_hash", "val_loss"]
"""Columns of a run that do not depend on where and when it was trained."""


def runs(store: Path) -> pd.DataFrame:
    return open_store(store).runs()


def rows(store: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return what the store says about its runs, times and hosts aside, and all curves."""
    opened = open_store(store)
    curves = opened.curves().drop(columns=["seconds"], errors="ignore")
    return opened.runs()[FACTS].to_dict("records"), json.loads(curves.to_json(orient="records", double_precision=15))


def raw_run_ids(store: Path) -> list[str]:
    """Return run_ids as any parquet reader sees them."""
    return [r for file in (store / "runs").glob("*.parquet") for r in pq.read_table(file)["run_id"].to_pylist()]


def test_a_single_run_is_stored(door: Door, tmp_path: Path) -> None:
    ended = door(*TINY, "seed=3")
    assert ended.status == 0, ended
    assert ended.last == "1 run stored in results/store (1 new). Report: grok report results/store"
    (row,) = runs(tmp_path / "results" / "store").to_dict("records")
    assert (row["seed"], row["status"], row["steps"]) == (3, "completed", 6)
    curve = open_store(tmp_path / "results" / "store").curves()
    assert curve["step"].tolist() == [3, 6]
    assert {entry.name for entry in tmp_path.iterdir()} == {"results"}, "no outputs/, no multirun/, no logs"


def test_a_sweep_twice_trains_once(door: Door, tmp_path: Path) -> None:
    words = ["-m", "seed=range(0,5)", *TINY, INLINE, "store.path=S"]
    first, before = door(*words), runs(tmp_path / "S")
    files = sorted((tmp_path / "S").rglob("*"))
    second = door(*words)
    assert (first.status, second.status) == (0, 0)
    assert first.out.startswith("5 planned, 0 stored, 0 duplicates, 5 to train")
    assert second.out.startswith("5 planned, 5 stored, 0 duplicates, 0 to train")
    assert second.last.startswith("5 runs stored in S (0 new).")
    pd.testing.assert_frame_equal(runs(tmp_path / "S"), before)
    assert sorted((tmp_path / "S").rglob("*")) == files, "a command that trains nothing writes nothing"
    assert sorted(raw_run_ids(tmp_path / "S")) == sorted(set(before["run_id"]))


@pytest.mark.parametrize("how", [(INLINE, "lanes=3"), pytest.param(("workers=2",), marks=pytest.mark.slow)])
def test_where_and_how_runs_are_trained_changes_nothing(door: Door, tmp_path: Path, how: tuple[str, ...]) -> None:
    """A pool beside the command's own process is compared by the fast test of a killed parent, too."""
    sweep = ["-m", "seed=range(0,4)", *TINY]
    assert door(*sweep, *how, "store.path=S").status == 0
    assert door(*sweep, INLINE, "store.path=inline").status == 0
    assert rows(tmp_path / "S") == rows(tmp_path / "inline")


def test_a_run_alone_equals_the_run_in_a_sweep(door: Door, tmp_path: Path) -> None:
    door("-m", "seed=range(0,3)", *TINY, INLINE, "store.path=sweep")
    door("seed=1", *TINY, "eval.every=1", "store.path=alone")
    inside = runs(tmp_path / "sweep").set_index("seed").loc[1]
    alone = runs(tmp_path / "alone").set_index("seed").loc[1]
    assert inside["weights_hash"] == alone["weights_hash"]
    assert inside["trajectory_id"] == alone["trajectory_id"]
    assert inside["run_id"] != alone["run_id"], "another evaluation schedule is another run of the trajectory"


def test_saved_weights_are_those_of_the_run(door: Door, tmp_path: Path) -> None:
    from grok.checkpoints import load_weights, run_folder
    from grok.runs import weights_hash

    assert door("seed=2", *TINY, "save=init,final", "store.path=S").status == 0
    row = runs(tmp_path / "S").iloc[0]
    folder = run_folder(tmp_path / "S", row["run_id"])
    assert weights_hash(load_weights(folder, "final")) == row["weights_hash"]
    assert weights_hash(load_weights(folder, "init")) != row["weights_hash"]


@pytest.mark.parametrize(
    ("words", "maps"),
    [
        (["seeds.layers.head=range(0,16)"], [{"head": i} for i in range(16)]),
        (["seeds.layers.blocks.0.mlp=3,4"], [{"blocks.0.mlp": i} for i in (3, 4)]),
        (["seeds.layers.head=1,2", "seeds.layers.blocks.0=5"], [{"head": i, "blocks.0": 5} for i in (1, 2)]),
    ],
)
def test_a_layers_seed_is_ranged_by_its_name(
    door: Door, monkeypatch: pytest.MonkeyPatch, words: list[str], maps: list[dict[str, int]]
) -> None:
    asked: list[RunConfig] = []

    def take(configs: Sequence[RunConfig], *, argv: Sequence[str]) -> Outcome:
        asked.extend(configs)
        return Outcome(("run",) * len(configs), {}, {}, 0)

    monkeypatch.setattr("grok.execute.execute", take)
    assert door("-m", *TINY, *words).status == 0
    assert [config.seeds.layers for config in asked] == maps


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["seeds.layers.heed=range(0,3)"], "'heed' names no tensor, did you mean 'head'?"),
        (["seeds.layers.head=-1,2"], "seeds.layers.head=-1 is out of range"),
        (["seeds.layers.head=9223372036854775808"], "seeds.layers.head=9223372036854775808 is out of range"),
        (["seeds.layers.head=1", "seeds.layers.head.weight=x"], "seeds.layers"),
        (["seeds.layers={blocks.0.mlp:4}", "seeds.layers.blocks.0.mlp=5"], "seeds.layers.blocks.0.mlp is given twice"),
    ],
)
def test_an_impossible_layers_seed_is_refused(door: Door, words: list[str], says: str) -> None:
    ended = door("-m", *TINY, *words, "dry_run=true")
    assert ended.status == 2 and says in ended.err and ended.err.count("\n") == 1, ended


def test_a_finished_run_is_extended_from_its_checkpoint(door: Door, tmp_path: Path) -> None:
    tiny = [word for word in TINY if not word.startswith("train.steps")]
    door(*tiny, "train.steps=6", "checkpoint.keep=true", "store.path=S")
    ended = door(*tiny, "train.steps=12", "store.path=S")
    assert "1 to train (1 from the end of a shorter run)" in ended.out
    folders = [folder.name for folder in (tmp_path / "S" / "checkpoints").iterdir()]
    assert folders == runs(tmp_path / "S").query("steps == 6")["run_id"].tolist(), "only the kept one is left"
    door(*tiny, "train.steps=12", "store.path=whole")
    longer, whole = (runs(tmp_path / s).query("steps == 12").iloc[0] for s in ("S", "whole"))
    assert longer["weights_hash"] == whole["weights_hash"]
    curves = [open_store(tmp_path / s).curves([longer["run_id"]]) for s in ("S", "whole")]
    pd.testing.assert_frame_equal(*curves)


def test_a_diverged_run_is_stored_and_counts_as_done(door: Door, tmp_path: Path) -> None:
    words = ["-m", "optim.lr=1e30,1e-3", *TINY, "optim.warmup_steps=0", INLINE, "store.path=S"]
    assert door(*words).status == 0
    assert sorted(runs(tmp_path / "S")["status"]) == ["completed", "diverged"]
    assert "2 stored (1 diverged)" in door(*words).out


def test_the_sweep_is_recorded_beside_the_data(door: Door, tmp_path: Path) -> None:
    door("-m", "seed=0,1", *TINY, INLINE, "store.path=S")
    (record,) = [json.loads(file.read_text()) for file in (tmp_path / "S" / "sweeps").glob("*.json")]
    assert record["argv"][:5] == ["python", "-m", "grok.run", "-m", "seed=0,1"]
    assert record["config"]["settings"]["train.steps"] == 6
    assert record["config"]["varying"] == ["seed"] and "seed" not in record["config"]["settings"]
    assert set(runs(tmp_path / "S")["sweep_id"]) == {record["sweep_id"]}


def test_two_thousand_seeds_are_planned_in_seconds_without_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from grok import run; "
        "assert run.main(['-m', 'seed=range(0,2000)', 'dry_run=true']) == 0; "
        "assert not {'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules), 'heavy imports'"
    )
    words, begun = [sys.executable, "-c", code], time.perf_counter()
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("2000 planned, 0 stored, 0 duplicates, 2000 to train")
    assert time.perf_counter() - begun < 60  # 1.4 s on a free core; Hydra's own way takes more than 190


def test_a_run_killed_between_its_last_checkpoint_and_its_row_is_stored(door: Door, tmp_path: Path) -> None:
    words = ["seed=4", *TINY, "checkpoint.keep=true"]
    door(*words, "store.path=S")
    before = runs(tmp_path / "S")
    for kind in ("runs", "curves", "steps"):
        for file in (tmp_path / "S" / kind).glob("*.parquet"):
            file.unlink()
    assert door(*words, "store.path=S").status == 0
    assert runs(tmp_path / "S")["weights_hash"].tolist() == before["weights_hash"].tolist()
