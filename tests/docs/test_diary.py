"""The commands that trained results/diary: the committed store has all of their runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grok.store import open_store

ROOT = Path(__file__).parents[2]
DIARY = ROOT / "results/diary"
STORE = "results/diary/store"


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}


def output(*words: str, **more: str) -> str:
    ended = subprocess.run(words, cwd=ROOT, env=environment(**more), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def to_train(text: str) -> list[int]:
    return [int(number) for number in re.findall(r" (\d+) to train", text)]


@pytest.mark.slow
def test_what_the_page_says_without_a_study_is_in_the_store() -> None:
    text = " ".join((DIARY / "README.md").read_text("utf-8").split())
    runs = open_store(ROOT / STORE).runs()
    best, second, *others = output(sys.executable, str(DIARY / "chosen.py"), "recipients", STORE).split()
    assert f"of seeds 0 to 999 ({best} and {second}, by" in text
    assert f"random others of these ({others[0]} and {others[1]})" in text
    typed = runs[[f"config.seeds.{stream}" for stream in ("split", "init", "order")]]
    own = typed.isna().all(axis=1) & (runs["layers"] == "{}")
    assert set(runs[own & runs["seed"].isin([int(best), int(second)])]["val_acc"]) >= {1.0}
    first_block = runs["layers"].map(lambda layers: set(json.loads(layers)) == {"blocks.0", "position_embedding"})
    kept = runs[first_block & runs["seed"].isin([int(best), int(second)])]["val_acc"]
    assert f"{len(kept)} runs keep just these of a super seed: {kept.min():.1%} to {kept.max():.1%}" in text

    crossed = runs[runs["config.seeds.split"].isin(range(3)) & runs["config.seeds.init"].isin(range(4))]
    cells = crossed.groupby(["seed_split", "seed_init", "seed_order"])["val_acc"]
    assert f"One of the {cells.ngroups} cells is super" in text
    assert (cells.mean() > 0.98).sum() == 1

    heavy = runs[(runs["config.optim.weight_decay"] == 1) & runs["grokked_step"].isna()]
    assert (len(heavy), heavy["memorised_step"].notna().sum(), set(heavy["steps"])) == (5, 0, {20_000})
    assert heavy["train_acc"].max() < 1
    assert "the five others never memorise: at step 20,000" in text

    streams = ["seed_split", "seed_init", "seed_order"]
    (seed_338,) = runs[own & (runs["seed"] == 338)][[*streams, "device"]].to_dict("records")
    assert seed_338["device"] == "cpu"
    same = runs[(runs[streams] == [seed_338[stream] for stream in streams]).all(axis=1)]
    kinds = same[(same["config.perturb.ulps"] == 1) | (same["config.precision"] == "float64")]
    assert list(kinds["device"]) == ["cuda"] * 5
    assert "Seed 338, from a processor, has its other repeats from the GPU" in text
    (record,) = [
        record
        for path in (ROOT / STORE / "sweeps").glob("*.json")
        if {"census", "results/diary/train_on_gpu.py"} <= set((record := json.loads(path.read_text()))["argv"])
    ]
    asked = {run["run_id"] for run in record["config"]["runs"]}
    assert (
        f"{len(asked):,} seeds were planned on it, in order, and {runs['run_id'].isin(asked).sum():,} finished" in text
    )


@pytest.mark.slow
def test_every_run_of_the_script_is_in_the_store() -> None:
    plans = to_train(output(str(DIARY / "train.sh"), STORE, PLAN="1"))
    assert plans == [0] * 87, "a command that is refused has no plan"
