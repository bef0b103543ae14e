"""Branching: parents are chosen as said, and each child differs from its parent in the redrawn streams alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grok.run import main
from grok.store import open_store
from grok.streams import STREAMS
from sweeps.branch import drawn_parents, redrawn_seeds
from sweeps.branch import main as branch

TINY = [
    "task.operation=x+y", "task.modulus=7", "model.d_model=8", "model.heads=2", "model.d_ff=8", "model.layers=1",
    "train.steps=6", "train.batch_size=8", "eval.every=3", "numerics.compile=false", "executor=inline",
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("branch") / "S"
    assert main(["-m", "seed=range(0,6)", *TINY, f"store.path={path}"]) == 0
    return path


def test_children_keep_all_streams_but_the_redrawn_ones(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = open_store(store).runs().set_index("run_id")
    words = ["--store", str(store), "--best", "1", "--random", "1", "--at", "3", "--times", "2"]
    redraw = ["--redraw", "order,split+init"]
    assert branch([*words, *redraw, *TINY]) == 0
    after = open_store(store).runs().set_index("run_id")
    new = after.drop(before.index)
    assert len(new) == 2 * 2 * 2 and new["config_id"].unique().tolist() == before["config_id"].unique().tolist()
    losses = open_store(store).curves().query("step == 3").set_index("run_id")["val_loss"]
    best = before.loc[losses.loc[before.index].idxmin()]
    assert best["seed"] in set(new["seed"]) and new["seed"].nunique() == 2
    kinds = []
    for _, child in new.iterrows():
        parent = before[before["seed"] == child["seed"]].iloc[0]
        kinds.append("+".join(s for s in STREAMS if child[f"seed_{s}"] != parent[f"seed_{s}"]))
    assert sorted(kinds) == ["order"] * 4 + ["split+init"] * 4
    assert new["weights_hash"].nunique() == 8
    assert branch([*words, *redraw, *TINY]) == 0  # the same command trains nothing
    assert "8 stored, 0 duplicates, 0 to train" in capfd.readouterr().out
    # a child can be a parent, and its children are others
    assert (
        branch(["--store", str(store), "--parents", str(new.index[0]), "--redraw", "init", "--times", "1", *TINY]) == 0
    )
    assert len(open_store(store).runs()) == len(after) + 1


def test_a_layers_weights_are_redrawn_and_nothing_else(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = open_store(store).runs().set_index("run_id")
    parent = before[before["layers"] == "{}"].iloc[0]
    words = ["--store", str(store), "--parents", str(parent.name), "--times", "2"]
    assert branch([*words, "--redraw", "layers.head,layers.head+layers.blocks.0", *TINY]) == 0
    new = open_store(store).runs().set_index("run_id").drop(before.index)
    assert sorted(tuple(json.loads(layers)) for layers in new["layers"]) == [("blocks.0", "head")] * 2 + [("head",)] * 2
    assert all((new[f"seed_{s}"] == parent[f"seed_{s}"]).all() for s in STREAMS)
    assert new["weights_hash"].nunique() == 4 and parent["weights_hash"] not in set(new["weights_hash"])
    assert branch([*words, "--redraw", "layers.tail", *TINY]) == 2
    assert "'tail' names no tensor" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "4"], "not evaluated at that step"),
        (["--best", "40"], "finished seeds with these settings"),
        (["--redraw", "dropout"], "one or two of split, init, order"),
        (["--redraw", "layers."], "nor layers.NAME"),
        (["--seeds", "7"], "FIRST:END"),
        (["--seeds", "0:7"], "6 of 7 are finished"),
        (["--times", "0"], "at least 1"),
        (["seeds.order=4"], "kept or redrawn"),
        (["--parents", "zz"], "zz"),
        (["optim.lr=0.5"], "optim.lr=0.001"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    store: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert branch(["--store", str(store), "--at", "3", *TINY, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error


def test_only_master_seeds_are_parents(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan = store.with_name("scan")
    assert main(["-m", "seeds.init=range(0,3)", *TINY, f"store.path={scan}"]) == 0
    assert branch(["--store", str(scan), "--at", "3", *TINY]) == 2
    assert "3 of its runs have streams of their own" in capsys.readouterr().err


def test_the_draws_of_branches_are_those_of_every_stored_branch() -> None:
    assert redrawn_seeds("0123456789abcdef0123", "split+init", 1) == {"split": 1682535175, "init": 260601372}
    assert drawn_parents(0, 29, 3) == [24, 20, 18]
