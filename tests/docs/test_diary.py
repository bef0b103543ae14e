"""The commands that trained results/diary: the committed store has all of their runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIARY = ROOT / "results/diary"
STORE = "results/diary/store"
GPU = (sys.executable, str(DIARY / "train_on_gpu.py"), "--store", STORE)


def output(*words: str, **environment: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def to_train(text: str) -> list[int]:
    return [int(number) for number in re.findall(r" (\d+) to train", text)]


def test_the_plan_for_a_gpu_is_that_of_the_store() -> None:
    text = output(*GPU, "float64", "dry_run=true", "device=cpu")
    assert "22 candidates" in text
    assert to_train(text) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["census", "families", "answers", "decay", "no-decay"])
def test_every_stage_of_a_gpu_is_in_the_store(stage: str) -> None:
    assert to_train(output(*GPU, stage, "dry_run=true")) == [0]


@pytest.mark.slow
def test_every_run_of_the_script_is_in_the_store() -> None:
    plans = to_train(output(str(DIARY / "train.sh"), STORE, PLAN="1"))
    assert plans == [0] * 87, "a command that is refused has no plan"
