"""A training function of the user's own under the laboratory's plan, store and executors."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from grok.__main__ import main
from grok.store import open_store
from tests.doors.conftest import Door, environment
from tests.plugins.conftest import Write
from tests.store.contract import assert_contract

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"
SWEEP = ["task.plugin._target_=mine.train", "seed=range(0,3)", "store.path=S"]

MINE = """
def train(config, streams, scale=1):
    half = config.train.steps // 2
    yield {"step": half, "val_acc": 0.5, "own": scale * (streams.init % 7)}
    yield {"step": config.train.steps, "val_acc": 1.0, "own": streams.order % 7, "weights": {"w": [streams.split % 7]}}
"""


def test_what_it_yields_is_the_curve(door: Door, write: Write, tmp_path: Path) -> None:
    write(mine=MINE)
    assert door("-m", *SWEEP, "task.plugin.scale=10", "train.steps=8", "workers=1").status == 0
    store = open_store(tmp_path / "S")
    assert_contract(tmp_path / "S")
    runs, curves = store.runs(), store.curves()
    assert list(runs["steps"]) == [8] * 3
    assert runs["weights_hash"].notna().all()
    of = runs.set_index("run_id")
    for run_id, points in curves.groupby("run_id"):
        first, last = points.sort_values("step")["metrics"]
        assert pd.Series([first, last]).map(json.loads).tolist() == [
            {"own": 10.0 * (int(of.loc[run_id, "seed_init"]) % 7)},
            {"own": float(int(of.loc[run_id, "seed_order"]) % 7)},
        ]
    assert "0 to train" in door("-m", *SWEEP, "task.plugin.scale=10", "train.steps=8", "dry_run=true").out


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {'val_acc': 'high'}", "could not convert string to float"),
        ("return {}['x']", "mine.py:2, at step 0 of the run with seed 0 (KeyError"),
        ("return []", "gave no metrics"),
        ("return [{'step': 5}, {'step': 5}]", "expected steps that rise"),
    ],
)
def test_what_is_refused(door: Door, write: Write, body: str, words: str) -> None:
    write(mine=f"def train(config, streams):\n    {body}\n")
    ended = door(SWEEP[0], "store.path=S", "executor=inline")
    assert ended.status == 1
    assert words in ended.out, ended


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("executor", ["loky", "dask"])
def test_the_example_is_killed_resumed_and_reported(tmp_path: Path, executor: str) -> None:
    pytest.importorskip("sklearn")
    shutil.copy(EXAMPLE, tmp_path)
    sweep = [
        sys.executable, "-m", "grok.run", "-m", "task.plugin._target_=digits.train", "seed=range(0,32)",
        "train.steps=60", "train.batch_size=64", "eval.every=20", "workers=2", "store.flush_seconds=0.2",
    ]  # fmt: skip
    killed = subprocess.Popen([*sweep, f"executor={executor}", "store.path=S"], cwd=tmp_path, env=environment())
    while killed.poll() is None and len(list((tmp_path / "S/runs").glob("*.parquet"))) < 2:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = len(open_store(tmp_path / "S").runs())
    assert 0 < before < 32
    for words in ([f"executor={executor}", "store.path=S"], ["executor=inline", "store.path=alone"]):
        subprocess.run([*sweep, *words], cwd=tmp_path, env=environment(), check=True)
    bits = [open_store(tmp_path / s).runs().set_index("run_id")["weights_hash"].sort_index() for s in ("S", "alone")]
    assert len(bits[0]) == 32
    assert bits[0].nunique() == 32
    pd.testing.assert_series_equal(*bits)
    assert main(["report", str(tmp_path / "S")]) == 0
    assert "digits.train" in (tmp_path / "S/report/report.html").read_text()
