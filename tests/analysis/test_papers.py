"""Runs at the settings of papers: which count, and what the verdicts say of long, short and cut ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.figures import drawings
from analysis.observations import as_text, differing_settings
from analysis.studies import Study
from analysis.studies.papers import PAPERS, _moves
from grok.commands.compose import compose
from grok.config import flatten, load_config
from tests.analysis.questions import BY_NAME, ask
from tests.analysis.simulate import Truth, simulate

ARMS = {arm.name: dict(arm.settings) for paper in PAPERS for arm in paper.arms}
ADAM = ARMS["EMA filter, Adam"]
EMA = ARMS["EMA filter, AdamW"]
OPENAI = ARMS["x/y mod 97"]


def typed(text: str) -> Any:
    """Return a setting's value from what is typed."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def runs(settings: dict[str, str], times: list[float], steps: int = 3000, **more: Any) -> list[Truth]:
    values = {name: typed(text) for name, text in settings.items()}
    return [
        Truth({**values, "seed": seed, "train.steps": steps, "eval.every": 50, **more}, time)
        for seed, time in enumerate(times)
    ]


def claims(truths: list[Truth]) -> pd.DataFrame:
    study = BY_NAME["papers"].ask(simulate(truths))
    assert isinstance(study, Study)
    (table,) = [t.frame for t in study.tables if t.name == "papers"]
    return table.set_index("claim")


def test_every_paper_has_a_panel_and_every_run_is_in_the_figures_data() -> None:
    truths = runs(ADAM, [900, 1000]) + runs(OPENAI, [900], **{"task.train_fraction": 0.7})
    study = ask("papers", simulate(truths))
    (drawing,) = drawings(study)
    assert drawing.data["run_id"].nunique() == 3
    titles = [axes.get_legend().get_title().get_text() for axes in drawing.figure.axes]
    assert titles == ["Lee et al. 2024 (Grokfast)", "Power et al. 2022"]


def test_a_papers_step_agrees_where_one_more_run_might_have_it() -> None:
    claim = "EMA filter, Adam: steps to 95%"
    assert claims(runs(ADAM, [800, 900, 1000, 1100])).loc[claim, "verdict"].startswith("agrees: one more run of ours")
    assert claims(runs(ADAM, [2000, 2100, 2200, 2300])).loc[claim, "verdict"].startswith("disagrees: one more run")
    assert "none of 4 seeds by 3.3 times" in claims(runs(ADAM, [9e9] * 4)).loc[claim, "verdict"]
    assert claims(runs(ADAM, [9e9] * 4, steps=500)).loc[claim, "verdict"].startswith("not decided: runs ended at")
    for times, words in (
        ([900, 1000], "2 of 2 seeds generalised; at least 3 seeds are needed"),
        ([900, 1000, 1100, 9e9], "3 of 4 seeds generalised; more steps are needed"),
        ([900, 9e9], "1 of 2 seeds generalised; at least 3 seeds and more steps are needed"),
    ):
        assert claims(runs(ADAM, times)).loc[claim, "verdict"] == f"not decided: {words}"


def test_a_ratio_to_runs_that_were_cut_is_a_bound() -> None:
    slow = ARMS["no filter, no decay"]
    claim = "EMA filter, Adam, over no filter, no decay: times sooner"
    fast = runs(ADAM, [900, 1000, 1100])
    row = claims(fast + runs(slow, [9e9] * 2, steps=8000)).loc[claim]
    assert row["ours"].startswith("at least ") and "ended at step 8,000; about 40,000 steps" in row["verdict"]
    assert row["verdict"].startswith("not decided")
    row = claims(fast + runs(slow, [56_000, 58_000, 9e9], steps=60_000)).loc[claim]
    assert "at least 44" < row["ours"] < "at least 50 in these runs"
    assert row["verdict"].startswith("not decided: runs of no filter, no decay ended at step")
    row = claims(fast + runs(slow, [44_000, 46_000, 48_000], steps=60_000)).loc[claim]
    assert row["verdict"].startswith("agrees: the interval holds")
    row = claims(fast + runs(slow, [4000, 4100, 4200], steps=8000)).loc[claim]
    assert row["verdict"].startswith("disagrees")


WORDS = {
    "EMA filter, Adam": "experiment=grokfast optim.plugin._target_=torch.optim.Adam",
    "EMA filter, AdamW": "experiment=grokfast",
    "MA filter, AdamW": "experiment=grokfast optim.grokfast=ma optim.grokfast_lamb=5 optim.weight_decay=0.01",
    "no filter, no decay": "experiment=grokfast optim.grokfast=none optim.weight_decay=0",
    "no filter, AdamW": "experiment=grokfast optim.grokfast=none",
    "x/y mod 97": "experiment=openai",
    "products in S5": "experiment=openai task.operation=ab task.modulus=120",
    "x+y mod 113": "experiment=nanda",
    "norm kept at 0.8 of the usual start": "experiment=nanda model.init_scale=0.8 optim.norm_clamp=1 "
    "optim.weight_decay=0",
    "softmax": "experiment=nanda task.train_fraction=0.4 optim.weight_decay=0 train.batch_size=5107",
}


@pytest.mark.parametrize("name", WORDS)
def test_an_arm_is_what_its_experiment_composes(name: str) -> None:
    (arm,) = [arm for paper in PAPERS for arm in paper.arms if arm.name == name]
    config = flatten(load_config(compose(WORDS[name].split())))
    row = pd.Series({f"config.{k}": v for k, v in config.items()})
    composed = {k: as_text(v) for k, v in differing_settings(row).items() if k not in arm.free}
    assert composed == arm.settings


def test_the_progress_measures_are_held_against_validation_accuracy() -> None:
    step = np.arange(1, 101) * 100.0
    curve = pd.DataFrame(
        {
            "step": step,
            "final_restricted_loss": 10 / (1 + np.exp((step - 3000) / 300)),
            "final_excluded_loss": np.abs(step - 1400) / 1000,
            "val_acc": 1 / (1 + np.exp((7000 - step) / 200)),
        }
    )
    moves = _moves(curve)
    assert moves["turn"] == 1400 and moves["val_acc"] == 7000
    assert 2900 <= moves["final_restricted_loss"] <= 3100 and moves["final_excluded_loss"] == pytest.approx(
        5700, abs=100
    )
    assert np.isnan(_moves(curve.assign(val_acc=0.02))["val_acc"])
