"""Measurements inside a network: what leads, what lags, and slingshots, where the truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from analysis.figures import drawings
from analysis.observations import Observations
from analysis.studies import ask
from analysis.studies.mechanism import Mechanism
from tests.analysis.simulate import census, simulate


@pytest.fixture(scope="module")
def measured() -> Observations:
    """``early`` moves at half of the time to generalise, ``late`` at 1.5 times it, ``flat`` never."""
    found = simulate(census(80, np.random.default_rng(2), steps=20_000, every=250))
    curves = found.curves.copy()
    rng = np.random.default_rng(17)
    clock = curves["step"] / curves["run_id"].map(found.arithmetic["grokked_step"].astype(float)).fillna(40_000)
    curves["metrics"] = [
        json.dumps(
            {"early": float(c > 0.5), "late": float(c > 1.5), "flat": rng.normal(), "logit_scale": 1 / (c + 0.1)}
        )
        for c in clock
    ]
    curves["block_norms"] = [json.dumps({"head": 10 + np.sin(s / 600)}) for s in curves["step"]]
    return Observations(found.all_runs, curves)


def test_what_leads_and_what_lags(measured: Observations) -> None:
    study = ask("mechanism", measured)
    assert isinstance(study, Mechanism)
    table = study.tables[0].frame.set_index("metric")
    assert table.loc["early", "at (of the time)"] == pytest.approx(0.5, abs=0.1)
    text = " ".join(f.text for f in study.findings)
    assert "early makes half of its total change before generalisation in most runs" in text
    assert "late makes half of its total change after generalisation in most runs" in text
    assert "meaning" not in table or table.loc["early", "meaning"] == "", "no name twice"
    assert table.loc["early", "runs that generalised"] == study.generalised <= table.loc["early", "runs"] == study.runs
    assert "flat leads" not in {f.label for f in study.findings}
    assert "Slingshots: in 100%" in text
    drawn = {d.name: d for d in drawings(study)}
    assert set(drawn) == {f"inside_{n}" for n in ("early", "late", "flat", "logit_scale", "head_norm")}
    assert drawn["inside_early"].title == "early"
    early = drawn["inside_early"].data.set_index("clock")["median"]
    assert early.loc[:0.4].max() == 0
    assert early.loc[0.7:].min() == 1


def test_a_level_that_follows_the_time_is_found(measured: Observations) -> None:
    curves = measured.curves.copy()
    rng = np.random.default_rng(17)
    level = curves["run_id"].map(measured.arithmetic["grokked_step"].astype(float))
    curves["metrics"] = [f'{{"logit_scale": {v + rng.normal(0, 500):.1f}, "collapse": null}}' for v in level]
    study = ask("mechanism", Observations(measured.all_runs, curves.drop(columns="block_norms")))
    (finding,) = study.findings
    assert finding.estimate is not None
    assert finding.estimate.low > 0.8
    assert study.tables[0].frame["metric"].tolist() == ["logit_scale"]
