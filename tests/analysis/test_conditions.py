"""One setting at a time, on simulated stores whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.figures import drawings
from analysis.statistics.estimate import NotEnoughData
from analysis.studies import ask
from analysis.studies.conditions import Comparison, bound_of, ratio_of_times
from tests.analysis.simulate import Truth, simulate


def settings_study(name: str, setting: str, truths: list[Truth]) -> Comparison:
    study = ask(name, simulate(truths))
    assert isinstance(study, Comparison)
    for drawing in drawings(study):
        assert drawing.png().startswith(b"\x89PNG")
    said = " ".join([f.text + f.shown for f in study.findings] + study.notes + [study.tables[0].frame.to_csv()])
    assert "nan" not in said.split() and "inf" not in said.split() and "None" not in said
    assert all(f.setting == setting for f, _ in study.families)
    return study


def runs(
    setting: str, factors: dict[object, float], seeds: int, rng: np.random.Generator, **more: object
) -> list[Truth]:
    """One time per seed, times each value's factor, times noise of a tenth."""
    base = rng.normal(np.log(3000), 0.5, seeds)
    return [
        Truth(
            {"seed": i, setting: value, "train.steps": 20_000, "eval.every": 100, **more},
            float(np.exp(base[i] + np.log(factor) + rng.normal(0, 0.1))),
        )
        for value, factor in factors.items()
        for i in range(seeds)
    ]


def test_weight_decay_is_compared_with_the_default() -> None:
    factors: dict[object, float] = {0.0: 20.0, 0.1: 1.0, 1.0: 0.5}
    study = settings_study(
        "weight_decay", "optim.weight_decay", runs("optim.weight_decay", factors, 25, np.random.default_rng(12))
    )
    assert next(iter(study.families[0][0].groups)) == "0.1"
    none, one = study.contrasts
    assert (none.label, none.bound) == ("optim.weight_decay=0", "at least")
    assert one.bound == "" and one.slowdown is not None
    assert one.slowdown.low < 0.5 < one.slowdown.high
    assert one.slowdown.high / one.slowdown.low < 1.4  # the seeds' own spread is out of a paired comparison
    assert all(p < 0.05 for p in study.p.values())
    assert "not within 20,000" in study.tables[0].frame.to_csv()


def test_a_setting_that_does_nothing_is_said_to_do_nothing() -> None:
    factors: dict[object, float] = {"none": 1.0, "ema": 1.0}
    study = settings_study(
        "interventions", "optim.grokfast", runs("optim.grokfast", factors, 15, np.random.default_rng(3))
    )
    assert "no difference beyond chance" in study.findings[0].text


def test_the_reference_is_of_the_same_seeds_where_enough_of_them_were_run() -> None:
    rng = np.random.default_rng(4)
    truths = runs("model.init_scale", {1.0: 1.0, 2.0: 2.0}, 8, rng)
    # A census of slow seeds of the reference, which the value was never run with.
    truths += [Truth({"seed": 100 + i, "train.steps": 20_000, "eval.every": 100}, 15_000.0) for i in range(60)]
    study = settings_study("interventions", "model.init_scale", truths)
    (contrast,) = study.contrasts
    assert contrast.paired and len(contrast.base) == 8
    assert contrast.slowdown is not None and contrast.slowdown.low < 2.0 < contrast.slowdown.high
    assert study.tables[0].frame["generalised"].tolist() == ["8 of 8", "8 of 8"]


def test_budgets_that_differ_do_not_bend_the_ratio() -> None:
    """The reference was watched for 1,000 steps only, all done by then: nothing is cut off at its budget."""
    rng = np.random.default_rng(5)
    base = rng.uniform(300, 800, 10)
    truths = [Truth({"seed": i, "train.steps": 1000, "eval.every": 10}, t) for i, t in enumerate(base)]
    truths += [
        Truth({"seed": i, "task.label_noise": 0.1, "train.steps": 20_000, "eval.every": 10}, 8 * t)
        for i, t in enumerate(base)
    ]
    (contrast,) = settings_study("interventions", "task.label_noise", truths).contrasts
    assert contrast.horizon == 20_000 and contrast.bound == ""
    assert contrast.slowdown is not None and contrast.slowdown.value == pytest.approx(8, rel=0.02)


def test_longer_runs_of_one_value_are_no_advantage() -> None:
    truths = []
    for seed in range(20):
        time = 1500 + 100.0 * seed
        truths.append(Truth({"seed": seed, "train.steps": 5000 if seed < 10 else 2000, "eval.every": 100}, time))
        truths.append(Truth({"seed": seed, "precision": "float64", "train.steps": 2000, "eval.every": 100}, time))
    frame = ask("interventions", simulate(truths)).tables[0].frame
    assert frame["generalised"].tolist() == ["6 of 20 by step 2,000, 4 later", "6 of 20 by step 2,000"]
    # A value whose runs were short because all of them were quick takes nothing from the others.
    quick = [
        Truth({"seed": s, "precision": p, "train.steps": n, "eval.every": 100}, t + 10.0 * s)
        for s in range(10)
        for p, n, t in (("float32", 1000, 400), ("float64", 5000, 3000))
    ]
    assert ask("interventions", simulate(quick)).tables[0].frame["generalised"].tolist() == ["10 of 10"] * 2


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_of_the_ratio_covers_at_its_rate(paired: bool) -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        seed = rng.normal(0, 0.5, 8) if paired else np.zeros(8)
        log, log0 = np.log(2) + seed + rng.normal(0, 0.3, 8), seed + rng.normal(0, 0.3, 8)
        e, p = ratio_of_times(log, log0, paired)
        held += e.low <= 2 <= e.high
        assert (p < 0.05) == (not e.low <= 1 <= e.high)
    assert 0.93 <= held / 1000 <= 0.97


def test_rates_are_of_all_seeds_and_times_of_those_that_were_run_long() -> None:
    """A scan of 3,000 steps of which 16 seeds were gone on with: true ratio of times 6, of rates 1 to 4."""
    rng = np.random.default_rng(8)
    truths = []
    for decay, factor, fast in ((0.1, 1.0, 40), (0.0, 6.0, 10)):
        for i in range(200):
            time = 1900.0 if 100 <= i < 100 + fast else 9000.0 * factor * float(np.exp(rng.normal(0, 0.2)))
            steps = 100_000 if i < 16 else 3000
            given = {"seeds.order": 8, "seeds.init": i, "optim.weight_decay": decay, "train.steps": steps}
            truths.append(Truth({**given, "train.stop_horizon": 3100}, time))
    study = settings_study("weight_decay", "optim.weight_decay", truths)
    (contrast,) = study.contrasts
    assert (len(contrast.rows), len(contrast.timed), contrast.bound) == (200, 16, "")
    assert contrast.slowdown is not None and contrast.slowdown.low < 6 < contrast.slowdown.high
    times, rates = (f for f in study.findings if f.headline)
    assert rates.estimate is not None and rates.estimate.low < 0.25 < rates.estimate.high
    assert "10 of 200 at 0, 40 of 200 at 0.1" in rates.text and "That is 4 times rarer" in rates.text
    assert "16 of 200 seeds with the longest runs" in " ".join(study.notes)
    assert times.label == "time at weight decay 0, over that at 0.1"


@pytest.mark.parametrize("late", [0.3, 0.45])
def test_a_ratio_that_is_cut_off_keeps_at_least_and_its_bound_covers(late: float) -> None:
    """A true ratio of 8, a part of the slower side not done by the horizon: 71% of the two-ended intervals held it."""
    rng = np.random.default_rng(8)
    open_ended = held = two_ended = 0
    for _ in range(300):
        log, log0 = np.log(8) + rng.normal(0, 0.5, 32), rng.normal(0, 0.5, 32)
        end = float(np.quantile(log, 1 - late))
        log, log0 = np.minimum(log, end), np.minimum(log0, end)
        e, _ = ratio_of_times(log, log0, False)
        open_ended += bound_of(log, log0, end) == "at least"
        two_ended += e.low <= 8 <= e.high
        held += e.low <= 8
    assert open_ended == 300
    assert two_ended < 270
    assert held >= 285


def test_a_scan_at_a_fixed_order_is_not_compared_with_random_seeds() -> None:
    scan = [Truth({"seeds.init": i, "seeds.order": 8, "optim.weight_decay": 0.0}, 900.0 + i) for i in range(8)]
    other = [Truth({"seed": 20 + i, "optim.weight_decay": 1.0}, 2000.0 + i) for i in range(9)]
    with pytest.raises(NotEnoughData):
        ask("weight_decay", simulate([*scan, *other]))
    third = [Truth({"seed": 20 + i, "optim.weight_decay": 2.0}, 1500.0 + i) for i in range(9)]
    study = ask("weight_decay", simulate([*scan, *other, *third]))
    assert [c.label for c in study.contrasts] == ["optim.weight_decay=2"]
    assert any("optim.weight_decay: 0 left out" in note for note in study.notes)
