"""Measurements inside a network: what leads, what lags, and slingshots, where the truth is known."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from analysis.figures import drawings
from analysis.observations import Observations
from analysis.studies import ask
from analysis.studies.mechanism import Mechanism, cycles, half_way
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


def test_measurements_count_where_a_longer_run_of_the_same_seeds_has_none(measured: Observations) -> None:
    longer = simulate(census(80, np.random.default_rng(2), steps=20_500, every=500))
    both = Observations(
        pd.concat([measured.all_runs, longer.all_runs], ignore_index=True),
        pd.concat([measured.curves, longer.curves], ignore_index=True),
    )
    assert set(both.arithmetic.index) == set(longer.arithmetic.index)
    alone, beside = (ask("mechanism", store).tables[0].frame for store in (measured, both))
    pd.testing.assert_frame_equal(alone, beside)


def test_the_only_measured_condition_is_named_beside_others_of_the_store(measured: Observations) -> None:
    assert ask("mechanism", measured).about == ""
    other = simulate(census(4, np.random.default_rng(3), steps=500, every=250, **{"optim.weight_decay": 0.5}))
    both = Observations(pd.concat([measured.all_runs, other.all_runs]), pd.concat([measured.curves, other.curves]))
    assert re.fullmatch(r"optim.weight_decay=[\d.]+ \(default\)", ask("mechanism", both).about)


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


def test_the_losses_of_a_circuit_say_whose_frequencies_they_take(measured: Observations) -> None:
    kept = set(measured.curves["run_id"].unique()[:30])

    def note(final: bool) -> str:
        curves = measured.curves.copy()
        curves["metrics"] = [
            json.dumps({"excluded_loss": 1.0} | ({"final_excluded_loss": 2.0} if final and run in kept else {}))
            for run in curves["run_id"]
        ]
        (said,) = (n for n in ask("mechanism", Observations(measured.all_runs, curves)).notes if "Nanda" in n)
        return str(said)

    assert "needs kept weights, save=final checkpoint.keep_every=500" in note(final=False)
    assert "final_excluded_loss, at the steps of kept weights (30 runs" in note(final=True)


def test_few_generalised_runs_give_no_leads(measured: Observations) -> None:
    few = measured.all_runs.sort_values("run_id").head(4)
    study = ask("mechanism", Observations(few, measured.curves))
    assert not [f for f in study.findings if f.label.endswith("leads")]
    assert any("needs 5 measured runs" in note for note in study.notes)


@pytest.mark.parametrize(
    ("norm", "count"),
    [
        ([1.0, 2.0, 3.0, 4.0], 0),
        ([1.0, 2.0, 1.0], 0),  # a fall without a rise is the end of training, no cycle
        ([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], 2),
        ([100.0, 99.5, 100.0, 99.5, 100.0], 0),  # noise below the threshold
        ([4.0, 3.0, 3.5, 3.0, 3.5], 2),
    ],
)
def test_cycles(norm: list[float], count: int) -> None:
    assert cycles(np.array(norm)) == count


def test_half_way() -> None:
    step = np.arange(11.0)
    assert half_way(step, step**2) == 8  # 64 of 100 is the first above 50
    assert half_way(step, -(step**2)) == 8
    assert np.isnan(half_way(step, np.sin(step * np.pi / 5)))  # comes back to where it started
    assert np.isnan(half_way(step, np.ones(11)))
    assert np.isnan(half_way(step[:2], step[:2]))
