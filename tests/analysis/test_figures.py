"""Figures, papers and searches: the numbers that are drawn and claimed are those of the runs."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from grok.analysis.figures import drawings, seeds
from grok.analysis.figures.seeds import seed_curves, time_histogram
from grok.analysis.figures.style import LIGHT, PALETTE, Drawing
from grok.analysis.observations import Observations, as_text, differing_settings
from grok.analysis.statistics.estimate import generator
from grok.analysis.statistics.proportions import paired_difference
from grok.analysis.studies import Study
from grok.analysis.studies.papers import PAPERS, _moves
from grok.commands.compose import compose
from grok.config import flatten, load_config
from grok.store import StoreWriter
from tests.analysis.simulate import BY_NAME, Truth, ask, simulate

SERIES = ("grey", "blue", "amber", "teal", "rose", "violet")
Floats = NDArray[np.float64]


def linear(colour: str) -> Floats:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.asarray(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4))


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_the_paper(dark: bool) -> None:
    paper = PALETTE["paper"][dark]
    assert all(contrast(PALETTE[name][dark], paper) >= 3 for name in SERIES)
    assert contrast(PALETTE["soft"][dark], paper) >= 4.5
    assert contrast(PALETTE["ink"][dark], paper) >= 12
    assert LIGHT["paper"] == PALETTE["paper"][0]


def titled(drawing: Drawing | None) -> int:
    """Return the number of seeds that the title of a picture gives."""
    assert drawing is not None
    title = drawing.figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")
    return int(re.findall(r"n = ([\d,]+)", title)[0].replace(",", ""))


def test_a_figure_says_how_many_seeds_it_draws() -> None:
    store = simulate([Truth({"seed": seed, "eval.every": 500}, 900 + 20 * seed) for seed in range(240)])
    census = ask("census", store)
    for drawing in (seeds.census_iconic(census), seed_curves(census)):
        assert drawing is not None
        assert titled(drawing) == drawing.data["run_id"].nunique() < 240, drawing.name
        assert "var(" not in drawing.standalone_svg(), "programs without CSS variables draw it black"


def test_seeds_that_diverged_stand_where_they_ended_and_no_seed_is_late_without_a_median() -> None:
    length = {"train.steps": 3000, "eval.every": 250}
    truths = [Truth({"seed": s, **length}, 2000.0 if s < 3 else 9000.0) for s in range(20)]
    store = simulate([*truths, Truth({"seed": 20, **length}, 9000.0, status="diverged")])
    runs = store.all_runs
    runs["steps"] = runs["steps"].where(runs["status"] != "diverged", 1000)
    census = ask("census", Observations(runs, store.curves, designs=store.designs))
    data = time_histogram(census).data
    ended = data[data["not by their last step"] > 0]
    assert list(ended["not by their last step"]) == [1, 17]
    assert ended["step from"].iloc[0] < 1000 <= ended["step to"].iloc[0]
    assert census.by_time is None and "late" not in data and data["generalised"].sum() == 3


def test_the_histogram_counts_every_seed_in_its_class() -> None:
    rng = np.random.default_rng(4)
    accuracy = pd.Series(1 / (1 + np.exp(-rng.normal(-3, 3, 500))))
    accuracy.iloc[:2] = [0.0, 1.0]
    label = np.select([accuracy > 0.98, accuracy < 0.25], ["super", "normal"], "fast")
    task = {"config.task.modulus": 223, "config.task.train_fraction": 0.5}
    rows = pd.DataFrame({"accuracy": accuracy, "label": label}).assign(**task)
    census: Any = SimpleNamespace(rows=rows, population=SimpleNamespace(has_diary_task=True), horizon=3000)
    drawing = seeds.accuracy_histogram(census)
    assert drawing is not None
    data = drawing.data
    assert data["super"].sum() == (accuracy > 0.98).sum()
    assert data["normal"].sum() == (accuracy < 0.25).sum()
    assert data[["normal", "fast", "super"]].to_numpy().sum() == 500
    assert ((data[["normal", "fast", "super"]] > 0).sum(axis=1) <= 1).all(), "a bar has one class"


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


def test_a_time_that_changes_in_the_other_direction_disagrees() -> None:
    more, less = ({"task.train_fraction": fraction} for fraction in (0.7, 0.3))
    slower = runs(OPENAI, [2000, 2040, 2080], **more) + runs(OPENAI, [900, 940, 980], **less)
    assert claims(slower)["verdict"].filter(like="more time for each").iloc[0].startswith("disagrees")


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


def test_the_best_of_a_search_is_not_called_better_than_the_default(tmp_path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with StoreWriter(tmp_path):
        pass
    (tmp_path / "search").mkdir()
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(tmp_path / "search" / "old.journal"))),
        study_name="old",
    )
    study.set_user_attr("definition", {"study": {"objective": "median_time"}})
    study.set_user_attr("default", {"optim.lr": 5e-3})
    rng = generator("trials")
    lr = optuna.distributions.FloatDistribution(5e-4, 5e-2, log=True)
    values = [float(value) for value in rng.uniform(300, 900, 12)]
    for value in values:
        study.add_trial(
            optuna.trial.create_trial(
                params={"optim.lr": float(np.exp(rng.uniform(-7, -4)))},
                distributions={"optim.lr": lr},
                value=value,
                user_attrs={"runs": [[seed, "x", value] for seed in range(8)]},
            )
        )
    study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.PRUNED))
    found = ask("search", Observations.read(tmp_path))
    (finding,) = found.findings
    assert "too optimistic" in finding.text and finding.estimate is not None
    assert finding.estimate.value == min(values)
    (table,) = found.tables
    assert list(table.frame["median_time"]) == sorted(values)[:10]
    assert all(drawing.png() for drawing in drawings(found))


@pytest.mark.slow
def test_paired_share_intervals_cover() -> None:
    rng = generator("paired shares")
    inside = 0
    for _ in range(200):
        u = rng.uniform(size=40)
        a, b = u < 0.3, (u < 0.1) | ((u > 0.3) & (u < 0.65))  # 0.3 and 0.45
        found = paired_difference(int((a & ~b).sum()), int((b & ~a).sum()), len(u))
        inside += found.low <= 0.15 <= found.high
    assert 0.92 < inside / 200 < 0.99
