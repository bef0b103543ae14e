"""The search section: the best is not believed, the pinned comparison decides, a null result stays null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.figures import drawings
from analysis.observations import Observations
from analysis.statistics.estimate import NotEnoughData, generator
from analysis.statistics.proportions import paired
from analysis.studies import ask
from grok.store import StoreWriter

SEARCH = Path(__file__).parents[2] / "results/search"


def trials(n: int, second: bool = False) -> dict[str, Any]:
    rng = generator("trials")
    found = []
    for i in range(n):
        lr = float(np.exp(rng.uniform(np.log(5e-4), np.log(5e-2))))
        value = 400 + 300 * abs(np.log(lr / 5e-3)) + rng.normal(0, 30)
        found.append(
            {
                "number": i,
                "state": "pruned" if i == 3 else "complete",
                "best": i == 5,
                "params": {"optim.lr": lr, "optim.weight_decay": float(rng.uniform(0.1, 3)), "model.norm": "none"},
                "values": None if i == 3 else [value, 1e9 / value] if second else [value],
                "runs": [[s, "x", value] for s in range(8)],
            }
        )
    objectives = [{"name": "median_time", "direction": "minimize"}]
    if second:
        objectives.append({"name": "compute", "direction": "minimize"})
    return {
        "version": 1,
        "name": "quickstart",
        "objectives": objectives,
        "default": {"optim.lr": 5e-3, "optim.weight_decay": 1.0},
        "trials": found,
    }


def compared(shift: float) -> dict[str, Any]:
    rng = generator("compared")
    default = [[i, "a", float(rng.normal(500, 60))] for i in range(32)]
    best = [[i, "b", score + shift + float(rng.normal(0, 40))] for i, _, score in default]
    pinned = {
        "study": "quickstart",
        "trial": 5,
        "steps": 1000,
        "default": {"optim.lr": 5e-3, "optim.weight_decay": 1.0},
        "best": {"optim.lr": 4e-3, "optim.weight_decay": 2.0},
    }
    return {"pinned": pinned, "runs": {"default": default, "best": best}}


def store_of(folder: Path, *files: dict[str, Any]) -> Observations:
    with StoreWriter(folder):
        pass
    observations = Observations.read(folder)
    observations.searches = files
    return observations


def test_a_real_difference_and_a_null_one(tmp_path: Path) -> None:
    real = ask("search", store_of(tmp_path / "real", trials(40), compared(-100)))
    (finding,) = [f for f in real.findings if f.label.endswith("against default")]
    assert finding.estimate.low <= -100 <= finding.estimate.high
    assert "better than the default" in finding.text
    null = ask("search", store_of(tmp_path / "null", trials(40), compared(0)))
    (finding,) = [f for f in null.findings if f.label.endswith("against default")]
    assert "no difference beyond seed noise" in finding.text
    tables = {t.name: t.frame for t in null.tables}
    assert len(tables["trials_quickstart"]) == 10
    assert set(tables["importance_quickstart"]["setting"]) == {"optim.lr", "optim.weight_decay"}
    sides = tables["comparison_quickstart"].set_index("setting")
    assert list(sides["seeds"]) == [32, 32]
    assert (sides["low"] < sides["median_time on fresh seeds"]).all()
    assert sides.loc["best", "in the search"] == trials(40)["trials"][5]["values"][0]
    for drawing in drawings(null):
        assert drawing.png()


def test_without_a_comparison_the_best_is_not_called_better(tmp_path: Path) -> None:
    study = ask("search", store_of(tmp_path / "store", trials(12, second=True)))
    assert "study.compare=32" in " ".join(study.notes)
    assert "too optimistic" in study.findings[0].text
    assert any(d.name.startswith("search_front") for d in drawings(study))


def test_shares_are_compared_as_shares(tmp_path: Path) -> None:
    """Eight of 32 seeds gained and none lost: better, though the median seed does not move."""
    data, against = trials(20), compared(0)
    data["objectives"] = [{"name": "generalised_share", "direction": "maximize"}]
    for trial in data["trials"]:
        trial["values"] = trial["values"] and [0.5]
        trial["runs"] = [[s, "x", float(s % 2)] for s in range(8)]
    against["runs"] = {"default": [[i, "a", float(i < 16)] for i in range(32)]}
    against["runs"]["best"] = [[i, "b", float(i < 24)] for i in range(32)]
    study = ask("search", store_of(tmp_path / "store", data, against))
    (finding,) = [f for f in study.findings if f.label.endswith("against default")]
    assert "better than the default" in finding.text
    assert finding.estimate.value == 0.25
    assert 0.05 < finding.estimate.low < 0.25 < finding.estimate.high < 0.5


def test_what_late_seeds_leave_open_has_no_end(tmp_path: Path) -> None:
    """A seed that did not generalise is later than the budget, by nobody knows how much: 2 x budget is no time."""
    data, against = trials(20), json.loads((SEARCH / "quickstart.compared.json").read_text())
    data["trials"][5]["number"], data["trials"][5]["params"] = 58, against["pinned"]["best"]
    for trial in data["trials"]:
        trial["params"].setdefault("model.init_scale", 1.0)
    study = ask("search", store_of(tmp_path / "store", data, against))
    (finding,) = [f for f in study.findings if f.label.endswith("against default")]
    e = finding.estimate
    assert e is not None and (e.value, e.low, e.high) == (-18.75, -325, np.inf)
    assert finding.shown == "-18.75 (-325 and above)"
    assert "Hodges-Lehmann" in finding.text and "7 seeds of the default and 10 of the best" in finding.text
    sides = {t.name: t.frame for t in study.tables}["comparison_quickstart"].set_index("setting")
    assert list(sides["high"]) == [850.0, np.inf]
    page = (SEARCH / "README.md").read_text()
    assert "Hodges-Lehmann estimate) is -18.75 steps (95%: -325 and above" in page
    assert all(drawing.png() for drawing in drawings(study))


@pytest.mark.slow
def test_paired_intervals_cover_and_the_null_holds() -> None:
    rng = generator("paired coverage")
    inside = alarms = 0
    for _ in range(400):
        a = rng.normal(0, 1, 20)
        found = paired(a, a + 0.3 + rng.standard_t(4, 20))
        inside += found.shift.low <= 0.3 <= found.shift.high
        alarms += paired(a, a + rng.standard_t(4, 20)).p <= 0.05
    assert 0.92 < inside / 400 < 0.98
    assert 5 <= alarms <= 35
    with pytest.raises(NotEnoughData):
        paired(np.zeros(10), np.r_[np.ones(5), np.zeros(5)])


@pytest.mark.parametrize("n", [6, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 12))])
def test_paired_intervals_of_few_seeds_cover(n: int) -> None:
    rng = generator(f"paired few {n}")
    found = [paired(a, a + 0.5 + rng.normal(size=n)).shift for a in rng.normal(size=(500, n))]
    assert np.mean([e.low <= 0.5 <= e.high for e in found]) >= 0.93  # exact: 0.95 or more


@pytest.mark.slow
def test_paired_share_intervals_cover() -> None:
    rng = generator("paired shares")
    inside = 0
    for _ in range(200):
        u = rng.uniform(size=40)
        a, b = (u < 0.3).astype(float), ((u < 0.1) | ((u > 0.3) & (u < 0.65))).astype(float)  # 0.3 and 0.45
        found = paired(a, b)
        inside += found.shift.low <= 0.15 <= found.shift.high
    assert 0.92 < inside / 200 < 0.99
