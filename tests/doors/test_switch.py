"""Runs that switch in mid-run, from the command line to the store: names, checkpoints, and what verify compares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from grok.checkpoints import checkpoint_steps, run_folder
from grok.store import StoreWriter, open_store
from grok.store.contract import example_row, with_other_bits
from grok.store.merge import merge
from grok.store.upkeep import verify
from tests.doors.conftest import TINY, Door

WORDS = (*TINY, "train.steps=12", "executor=inline")
SWITCH = ("switch.step=4", "switch.order=7")


def run_of(store: str, **wanted: Any) -> dict[str, Any]:
    runs = open_store(store).runs()
    for name, value in wanted.items():
        column = runs[f"config.{name.replace('__', '.')}"]
        runs = runs[column.isna() if value is None else column == value]
    (row,) = runs.to_dict("records")
    return row


@pytest.mark.parametrize(
    "changes",
    [
        SWITCH,
        pytest.param(("switch.step=4", "switch.ulps=30"), marks=pytest.mark.slow),
        ("switch.step=4", "switch.ulps=30", "seeds.perturb=3"),  # of the move: the trunk is a plain run
        pytest.param((*SWITCH, "train.steps=9"), marks=pytest.mark.slow),
    ],
)
def test_a_child_from_the_trunks_checkpoint_equals_one_from_step_0(door: Door, changes: tuple[str, ...]) -> None:
    assert door(*WORDS, "checkpoint.keep_steps=[4,6]", "store.path=S").status == 0
    trunk = run_of("S")
    assert checkpoint_steps(run_folder("S", trunk["run_id"])) == [6, 4]
    planned = door(*WORDS, *changes, "store.path=S", "dry_run=true")
    assert "1 to train (1 from a checkpoint of their trunk)" in planned.out
    for store in ("S", "T"):
        assert door(*WORDS, *changes, f"store.path={store}").status == 0
    (child, whole) = (run_of(store, switch__step=4) for store in ("S", "T"))
    assert child["weights_hash"] == whole["weights_hash"] != trunk["weights_hash"]
    curves = [open_store(store).curves([child["run_id"]]) for store in ("S", "T")]
    pd.testing.assert_frame_equal(*curves)
    assert child["branch_step"] == whole["branch_step"] == 4
    if "train.steps=9" not in changes:  # a trunk of the same length: its own row
        assert child["parent_run_id"] == whole["parent_run_id"] == trunk["run_id"]
    assert verify("S") == []
    again = door("--again", child["run_id"], "--store", "S")
    assert again.status == 0 and "same bits" in again.out
    longer = door(*WORDS, *changes, "train.steps=15", "store.path=S", "dry_run=true")
    assert "1 from a checkpoint of their trunk" in longer.out, "the child kept none; its trunk has"


def test_another_schedule_step_or_setting_begins_at_step_0(door: Door) -> None:
    assert door(*WORDS, "checkpoint.keep_steps=[4]", "store.path=S").status == 0
    for other in ("eval.every=4", "replicate=1", "switch.step=5", "optim.lr=0.1"):
        assert "1 to train;" in door(*WORDS, *SWITCH, other, "store.path=S", "dry_run=true").out, other
    assert "their trunk" in door(*WORDS, *SWITCH, "store.path=S", "dry_run=true").out


def test_a_damaged_checkpoint_of_the_trunk_costs_only_time(door: Door) -> None:
    assert door(*WORDS, "checkpoint.keep_steps=[4]", "store.path=S").status == 0
    (tensors,) = Path("S/checkpoints").rglob("tensors.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    ended = door(*WORDS, *SWITCH, "store.path=S")
    assert ended.status == 0 and "Damaged: the checkpoint of run" in ended.out
    assert door(*WORDS, *SWITCH, "store.path=T").status == 0
    hashes = [run_of(store, switch__step=4)["weights_hash"] for store in ("S", "T")]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(("step", "conflicts"), [pytest.param(50, 1, marks=pytest.mark.slow), (100, 1), (150, 0)])
def test_verify_and_merge_compare_a_run_with_its_trunk_up_to_the_switch(
    tmp_path: Path, step: int, conflicts: int
) -> None:
    trunk, switch = example_row(0), {"switch": {"step": 100, "order": 7}}
    before = [point for point in trunk.result.curve if point.step <= 100]
    parent = {"parent_run_id": trunk.result.run_id, "branch_step": 100}
    child = example_row(0, settings=switch, **parent)
    child.result.curve = [*before, *(point for point in child.result.curve if point.step > 100)]
    longer = example_row(0, steps=400)  # of the trunk's trajectory
    wrong = with_other_bits(child, step)
    elsewhere = replace(wrong, result=replace(wrong.result, numerics="cpu:other"))
    for name, rows in {"A": [trunk, longer], "B": [child], "C": [wrong], "D": [elsewhere]}.items():
        with StoreWriter(tmp_path / name) as writer:
            writer.commit(rows)
    a, *others = (tmp_path / name for name in "ABCD")
    for other, expected in zip(others, (0, conflicts, 0), strict=True):
        for first, second in ((a, other), (other, a)):
            report = merge(first, [second], into=tmp_path / f"{first.name}{second.name}")
            assert [conflict.step for conflict in report.conflicts] == [step] * expected
    with StoreWriter(a) as writer:
        writer.commit([wrong])
    assert sum("a run and its trunk, different bits before the switch" in line for line in verify(a)) == conflicts
