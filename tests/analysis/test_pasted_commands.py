"""Each kind of command that a report proposes, really trained as pasted: the next report takes the runs in."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grok.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
STORE = "runs/small store"
FIRST = (
    "grok sweep experiment=toy task.modulus=11 task.train_fraction=0.9 model.d_ff=64 train.batch_size=64 "
    f"optim.weight_decay=2.0 train.steps=60 eval.every=10 'seed=range(0,24)' 'store.path={STORE}'"
)


class Bench:
    """A folder with a small trained store, in which commands are typed and reports are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def type(self, command: str) -> str:
        """Run a command line in a shell that knows ``grok``; return what it printed."""
        path = f"{self.folder.parent / 'bin'}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def report(self) -> dict[str, Any]:
        """Write the store's report; return its report.json."""
        self.type(f"grok report {shlex.quote(STORE)}")
        data: dict[str, Any] = json.loads((self.folder / STORE / "report" / "report.json").read_text())
        return data

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / STORE / "report" / "tables" / f"{name}.csv")

    def runs(self) -> pd.DataFrame:
        return open_store(self.folder / STORE).runs()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of 24 really trained seeds, and ``grok`` beside it."""
    folder = tmp_path_factory.mktemp("pasted")
    shim = folder / "bin" / "grok"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m grok "$@"\n')
    shim.chmod(0o755)
    (folder / "first").mkdir()
    Bench(folder / "first").type(FIRST)
    return folder


@pytest.fixture
def bench(trained: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    folder = trained / str(request.node.callspec.params["name"])
    shutil.copytree(trained / "first", folder)
    yield Bench(folder)
    shutil.rmtree(folder)


def study_of(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(study for study in report["studies"] if study["name"] == name)
    return found


def check_branching(bench: Bench, report: dict[str, Any]) -> None:
    children = bench.table("branching_branching_children")
    runs = bench.runs().set_index("run_id")
    assert len(children) == len(runs) - 24 == 4 * 6 * 4
    for _, child in children.iterrows():
        mine = runs.loc[[r for r in runs.index if r.startswith(child["run_id"])]].iloc[0]
        parent = runs.loc[[r for r in runs.index if r.startswith(child["parent"])]].iloc[0]
        redrawn = [s for s in ("split", "init", "order") if mine[f"seed_{s}"] != parent[f"seed_{s}"]]
        assert sorted(re.findall(r"split|init|order", str(child["redrawn"]))) == sorted(redrawn)
    shares = bench.table("branching_branching_shares")
    assert shares["super"].str.extract(r"of (\d+)", expand=False).astype(int).sum() == len(children)
    assert set(shares["parents"]) == {"2 best", "2 random"}


def check_repeats(bench: Bench, report: dict[str, Any]) -> None:
    runs = bench.runs()
    repeats = runs[runs["config.perturb.ulps"] == 1]
    assert repeats.groupby("seed").size().tolist() == [8] * 24, "twelve candidates and as many controls, eight of each"
    again = bench.table("repeatability_again_ulp")
    assert (again["of"] == 8).all()
    assert len(again) <= 12, "a control is no candidate"
    assert set(again["candidate"].astype(str).str.extract(r"(\d+)", expand=False).astype(int)) <= set(repeats["seed"])


def check_crossed(bench: Bench, report: dict[str, Any]) -> None:
    runs = bench.runs()
    crossed = runs[runs["config.perturb.ulps"] == 1]
    assert len(crossed) == 6**3 * 2
    variance = bench.table("crossed_variance").set_index("component")["share %"]
    assert variance.sum() == pytest.approx(100, abs=0.5)
    cells = crossed.groupby(["seed_split", "seed_init", "seed_order"])["weights_hash"].nunique()
    assert (cells == 2).all(), "the replicates of a cell are two runs"
    same = crossed.groupby(["seed_split", "seed_init", "seed_order"])["val_acc"].nunique() == 1
    assert (variance["chaos"] == 0) == same.all(), "chaos is what differs between them"


def check_layers(bench: Bench, report: dict[str, Any]) -> None:
    runs = bench.runs()
    transplants = runs[runs["config.perturb.ulps"] == 1]
    assert len(transplants) == 2**5 * 2, "five layers draw weights: all combinations, each twice"
    shares = bench.table("layers_shares")
    assert len(shares) == 5
    total = next(f for f in study_of(report, "layers")["findings"] if f["label"].startswith("all layers"))["estimate"]
    assert shares["Shapley share"].sum() == pytest.approx(total["value"], abs=1e-3), "shares add up to the total"
    own = transplants[transplants["layers"] == "{}"]
    most = transplants["layers"].map(lambda text: len(json.loads(text)))
    whole = transplants[most == 5]
    n = 11**2 * 0.1

    def odds(rows: pd.DataFrame) -> float:
        right = rows["val_acc"] * n
        return float((np.log(n - right + 0.5) - np.log(right + 0.5)).mean())

    assert total["value"] == pytest.approx(odds(whole) - odds(own), abs=1e-6), "by hand"
    assert total["low"] < total["value"] < total["high"], "accuracies of twelve equations are rounded"


KINDS: dict[str, Callable[[Bench, dict[str, Any]], None]] = {
    "branching": check_branching,
    "repeatability": check_repeats,
    "layers": check_layers,
    "crossed": check_crossed,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_proposed_command_is_trained_as_pasted(bench: Bench, name: str) -> None:
    before = bench.runs()
    (gap,) = [gap for gap in bench.report()["missing"] if gap["name"] == name]
    said = bench.type(gap["command"])
    runs = bench.runs()
    assert (runs["status"] == "completed").all()
    trained = sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) to train", said))
    assert len(runs) - len(before) == trained > 0
    report = bench.report()
    assert report["provenance"]["runs"] == len(runs)
    assert report["provenance"]["pending"] == []
    assert name in {study["name"] for study in report["studies"]}
    KINDS[name](bench, report)
