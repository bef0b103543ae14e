"""Whatever commands filled a store, in any order, the report says what each run was for, or that it is unknown."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grok.execute.sweep import Sweep
from grok.store import DamagedShardWarning
from sweeps import branch
from tests.analysis.histories import History, said, shards, train_simulated

FEW, MANY = 1, 100


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweep, "train", train_simulated)


def differences(truth: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Return what the report says otherwise than the truth, by class."""
    unequal = {}
    for name in ("asked", "children", "repeats", "cells", "transplants", "trials", "unknown", "unstated"):
        if truth[name] != report[name]:
            mine, theirs = (set(x.items()) if isinstance(x, dict) else set(x) for x in (truth[name], report[name]))
            unequal[name] = {"missing": mine - theirs, "wrong": theirs - mine}
    longer = {p: n for p, n in report["horizon"].items() if n > truth["horizon"].get(p, 0)}
    return unequal | ({"horizon": longer} if longer else {})


def check_whole(folder: Path, number: int) -> None:
    history = History(folder / "S", np.random.default_rng(number))
    history.go_on(7)
    report = said(history.store)
    found = differences(history.truth(), report)
    assert not found, "\n".join([*history.words, str(found)])
    asked = set(report["asked"])
    assert all(members <= asked for members in report["populations"])
    assert all(rows <= history.cells for rows in report["crossed"])
    exchanged = {run for *_, run in history.transplants}
    exchanged |= {
        run for run, _, redrawn in report["repeats"] if not redrawn
    }  # of the recipient, with nothing exchanged
    assert all(rows <= exchanged for rows in report["exchanged"])


def check_damaged(folder: Path, number: int) -> None:
    rng = np.random.default_rng(10_000 + number)
    history = History(folder / "S", rng)
    history.go_on(7)
    truth, lost = history.truth(), set()
    kept: set[str] = set()
    for path, runs in list(shards(history.store)):
        if rng.random() < 0.4:
            lost |= runs
            if rng.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[: int(rng.integers(1, path.stat().st_size))])
        else:
            kept |= runs
    with warnings.catch_warnings():  # a damaged shard is warned of; nobody can know of a removed one
        warnings.simplefilter("ignore", DamagedShardWarning)
        report = said(history.store)
    assert report["unknown"] == (lost - kept) & report["places"].keys(), history.words
    assert report["unstated"] <= truth["unstated"] | lost
    children = {(child, parent, redrawn) for child, parent, redrawn, _ in truth["children"]}
    unexplained = {one[:3] for one in report["children"] if one[3] == "unknown"}  # nobody knows what the parent was
    assert unexplained <= children, history.words
    report["children"] = {one for one in report["children"] if one[3] != "unknown"}
    for name in ("children", "repeats", "cells", "transplants", "trials"):
        wrong = set(report[name]) - set(truth[name])
        assert not wrong, f"{history.words} {name} {wrong}"
    assert set(report["asked"]) <= set(truth["asked"])
    assert all(n <= truth["horizon"][p] for p, n in report["horizon"].items())
    assert all(members <= set(truth["asked"]) for members in report["populations"])


@pytest.mark.parametrize("number", range(FEW))
def test_a_whole_history(tmp_path: Path, number: int) -> None:
    check_whole(tmp_path, number)


def test_records_of_commands_decide_nothing(tmp_path: Path) -> None:
    """Two best and two random parents stay so, whatever became of the words beside the store."""
    history = History(tmp_path / "S", np.random.default_rng(0))
    history.sweep(range(12))
    for options in (["--best", "2", "--random", "0"], ["--best", "0", "--random", "2"]):
        argv = ["--store", history.store, *options, "--at", "1500", "--redraw", "order", "--times", "2"]
        assert branch.main([*argv, *history.how[:2]]) == 0
    whole = said(history.store)["children"]
    assert Counter(kind for *_, kind in whole) == {"best": 4, "random": 4}
    first, second, *others = sorted((tmp_path / "S" / "sweeps").iterdir())
    first.write_text(first.read_text()[:40])
    second.unlink()
    for record in others:
        record.write_text(record.read_text().replace("sweeps.branch", "grok branch"))
    with pytest.warns(DamagedShardWarning):
        assert said(history.store)["children"] == whole


@pytest.mark.parametrize("number", range(FEW))
def test_a_damaged_history(tmp_path: Path, number: int) -> None:
    check_damaged(tmp_path, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(FEW, MANY))
def test_more_histories(tmp_path: Path, number: int) -> None:
    check_whole(tmp_path / "whole", number)
    check_damaged(tmp_path / "damaged", number)
