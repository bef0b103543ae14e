"""The search section: the best is not believed, the pinned comparison decides, a null result stays null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.figures import drawings
from analysis.observations import Observations
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.paired import paired
from analysis.statistics.resampling import generator
from analysis.studies import ask
from grok.store import StoreWriter


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
    return {"pinned": {"study": "quickstart", "trial": 5}, "runs": {"default": default, "best": best}}


def store_of(folder: Path, *files: dict[str, Any]) -> Observations:
    with StoreWriter(folder):
        pass
    (folder / "search").mkdir()
    for i, data in enumerate(files):
        (folder / "search" / f"{i}.json").write_text(json.dumps(data))
    (folder / "search" / "half.json").write_text('{"trials": [')  # cut off by a crash
    return Observations.read(folder)


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
    for drawing in drawings(null):
        assert drawing.png()


def test_without_a_comparison_the_best_is_not_called_better(tmp_path: Path) -> None:
    study = ask("search", store_of(tmp_path / "store", trials(12, second=True)))
    assert "study.compare=true" in " ".join(study.notes)
    assert "flatters" in study.findings[0].text
    assert any(d.name.startswith("search_front") for d in drawings(study))


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
