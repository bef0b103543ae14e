"""Every study on a simulated store whose truth is known."""

import itertools
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from grok.analysis import report
from grok.analysis.answers import compile_report
from grok.analysis.criteria import held_by
from grok.analysis.figures import drawings
from grok.analysis.observations import Observations, differing_settings
from grok.analysis.purposes import random_seeds
from grok.analysis.statistics.estimate import Estimate, generator
from grok.analysis.statistics.proportions import at_any_time, share
from grok.analysis.statistics.variance_shares import variance_shares
from grok.analysis.studies import QUESTIONS, Missing
from grok.analysis.studies.layers import transplants
from grok.analysis.studies.regimes import AFTER, BEFORE
from grok.analysis.studies.regimes import QUESTION as REGIMES
from grok.arithmetic.outcome import event_times
from grok.records import CurvePoint
from grok.store.designs import Purpose
from grok.streams import derive_seed
from tests.analysis.simulate import Planned, Truth, ask, branch, census, crossed, needs, run_ids, simulate, sweep, write

MEASURED = ["step", "train_loss", "train_acc", "val_loss", "val_acc", "weight_norm"]


@pytest.fixture(scope="module")
def short_census() -> Observations:
    return simulate(census(400, np.random.default_rng(1)))


@pytest.fixture(scope="module")
def long_census() -> Observations:
    return simulate(census(150, np.random.default_rng(2), steps=20_000, every=250))


def test_census_of_the_diarys_regime(short_census: Observations) -> None:
    study = ask("census", short_census)
    assert study.population.is_default
    assert study.horizon == 3000
    shares = study.shares
    assert shares["super"].low <= 0.06 <= shares["super"].high
    assert sum(shares[c].value for c in ("super", "fast", "normal", "diverged")) == pytest.approx(1)
    assert study.by_time is None


def test_ordinary_seeds_are_those_of_an_independent_implementation() -> None:
    """Its 12 ordinary seeds gave these ranges at step 3,000; a page names each of seeds 0 to 11 that is outside."""
    ranges = {"train_loss": (0.05, 0.18), "val_acc": (0.007, 0.038), "val_loss": (8.2, 14.0), "weight_norm": (64.8, 66)}
    results, named = Path(__file__).parents[2] / "results", re.compile(r"^\| (\d+) .*\| ([a-z_, ]*)\|$", re.MULTILINE)
    here = pd.read_csv(results / "default-regime" / "seeds-0-to-11.csv").set_index("seed")
    page = (results / "default-regime" / "seeds-0-to-11.md").read_text(encoding="utf-8")
    outside = {int(seed): {n for n in names.strip().split(", ") if n} for seed, names in named.findall(page)}
    of = {s: {n for n, (low, high) in ranges.items() if not low <= here.loc[s, n] <= high} for s in range(12)}
    assert outside == of
    diary = Observations.read(results / "diary" / "store")
    rows = diary.once(random_seeds)
    usual = np.array([not differing_settings(row) for _, row in rows.iterrows()])
    rows = rows[usual & rows["seed"].isin(range(12))]
    there = diary.curves[diary.curves["run_id"].isin(rows.index) & (diary.curves["step"] == 3000)]
    assert len(here) == len(there) == 12
    for measured in (here, there):
        assert all(low <= measured[name].median() <= high for name, (low, high) in ranges.items())


def test_census_of_another_task_has_early_and_late_seeds_and_no_classes_of_the_diary() -> None:
    rng = np.random.default_rng(3)
    truths = [
        Truth(
            {"seed": i, "task.modulus": 31, "train.steps": 1000, "train.batch_size": 256, "eval.every": 25},
            float(np.exp(rng.normal(np.log(400), 0.3))),
        )
        for i in range(64)
    ]
    study = ask("census", simulate(truths))
    assert study.horizon == 1000
    longer = [Truth({**t.overrides, "train.steps": 2000, "optim.weight_decay": 0.5}, 3 * t.time) for t in truths]
    rare = [Truth({**t.overrides, "eval.every": 500}, t.time) for t in truths]  # a third of the median is before 500
    assert not any(f.label.startswith("early") for f in ask("census", simulate(rare)).findings)
    summary = ask("census", simulate([*truths, *longer])).summary
    early = share(sum(t.time <= 1000 for t in longer), 64).percent()
    assert f"from {early} with" in summary and "by step 1,000 (" in summary, "the step to which all were trained"
    headline = [f.label for f in study.findings if f.headline]
    assert headline == ["early seeds", "generalised"]
    assert set(study.kinds) <= {"early", "late", "not within 1,000 steps"}


def test_a_short_interval_is_rounded_outwards() -> None:
    assert Estimate(1_549, 1_490, 21_010, 9, "").short() == "1,500 (1,400 to 22,000)"
    assert Estimate(1_549, 1_549, 1_549, 9, "").short() == "1,500 (no spread)"


@pytest.mark.parametrize("time", [700.0, 1e6])
def test_one_run_has_a_step_and_no_share(time: float) -> None:
    given = {"seed": 3, "task.modulus": 41, "train.steps": 1000, "eval.every": 25}
    study = ask("census", simulate([Truth(given, time)]))
    step, said = study.rows["grokked_step"].iloc[0], study.summary.partition(":")[2]
    assert "%" not in said and (f"{step:,}" in said if time < 1000 else "not" in said and pd.isna(step))


def test_census_with_every_kind_of_ending() -> None:
    truths = census(30, np.random.default_rng(4))
    truths += [Truth({"seed": 100}, 900, status="diverged"), Truth({"seed": 101}, 900, status="failed")]
    truths += [Truth({"seed": 102, "eval.every": 2000, "train.steps": 5000}, 3500)]
    study = ask("census", simulate(truths))
    assert study.shares["diverged"].value == pytest.approx(1 / 31)
    assert "1 more failed" in study.summary and "1 of the 32 diverged" in study.summary


def test_seeds_that_did_not_generalise_count_in_the_ratio_of_the_two_steps() -> None:
    truths = [Truth({"seed": s, "train.steps": 3000, "eval.every": 100}, 1000 + 100 * s) for s in range(30)]
    study = ask("survival", simulate(truths))
    memorised = set(study.population.rows["memorised_step"])
    assert len(memorised) == 1
    (gap,) = [finding for finding in study.findings if finding.label == "gap"]
    assert gap.estimate is not None and gap.estimate.n == 30
    assert gap.estimate.value == pytest.approx(2450 / memorised.pop(), rel=0.05)
    assert gap.estimate.low < gap.estimate.value < gap.estimate.high


def test_the_order_of_fall_and_generalisation_is_the_simulated_one(long_census: Observations) -> None:
    study = ask("regimes", long_census)
    times = long_census.arithmetic["grokked_step"].astype(float)
    assert ((study.events["first"] == AFTER) == (times < 5000)).all()
    assert set(study.events["first"]) == {BEFORE, AFTER}
    order = study.events.set_index("first")["order"].str
    assert order.endswith("norm first falls → generalised")[BEFORE].all()
    assert (order.endswith("norm first falls") & order.contains("generalised →"))[AFTER].all()
    curves = long_census.curves
    dips = curves.assign(weight_norm=curves["weight_norm"].where(curves["step"] > 250, 500 - curves["step"]))
    again = ask("regimes", Observations(long_census.all_runs, dips, designs=long_census.designs))
    assert again.events["first"].equals(study.events["first"]), "before a seed has memorised, decay alone lowers norms"
    coarse = simulate([Truth({"seed": s, "train.steps": 4000, "eval.every": 4000}, 3000.0) for s in range(6)])
    assert "between those that show memorising" in needs("regimes", coarse), "one evaluation shows no order"


def with_norm_falls(falls: Sequence[float], steps: int = 12_000, again: float = np.inf) -> Observations:
    """Return seeds that generalise at step 4,000, whose norm falls from 60 to 55 at ``falls`` and rises to 90 later."""
    truths = [Truth({"seed": s, "train.steps": steps, "eval.every": 100}, 3950.0) for s in range(len(falls))]
    made = simulate(truths)
    fall = made.curves["run_id"].map(dict(zip(run_ids(truths), falls, strict=True)))
    step, rows = made.curves["step"], made.all_runs
    norm = np.where(step < fall, 60.0 - 1e-3 * (fall - step), np.where(step < again, 55.0, 90.0))
    curves = made.curves.assign(weight_norm=np.where(step == steps, 54.0, norm))
    at = {
        run: event_times([CurvePoint(**point) for point in curve[MEASURED].to_dict("records")])
        for run, curve in curves.groupby("run_id")
    }
    rows["weight_norm_fall_step"] = [at[run]["weight_norm_fall_step"] for run in rows["run_id"]]
    return Observations(rows, curves, made.steps, made.path, designs=made.designs)


def test_one_continuum_is_not_two_regimes_and_two_groups_are() -> None:
    rng = np.random.default_rng(3)
    spread = rng.normal(0, 0.5, 60)
    apart = np.where(np.arange(60) < 24, -1.0, 1.0) + 0.1 * rng.normal(size=60)
    for lags, shown in ((spread, "no second one seen"), (apart, "two groups")):
        study = REGIMES.answer(with_norm_falls(np.rint(4000 * np.exp(lags) / 100) * 100, again=11_500.0))
        assert next(f.shown for f in study.findings if f.label == "one group or two, by ratios of times") == shown


@pytest.mark.parametrize(("slow", "diverged"), [(0, 0), (4, 0), (0, 3), (2, 3)])
def test_the_order_of_events_says_whom_it_is_about(slow: int, diverged: int) -> None:
    length = {"train.steps": 12_000, "eval.every": 250}
    truths = [Truth({"seed": s, **length}, 4000.0) for s in range(14)]
    truths += [Truth({"seed": 20 + s, **length}, 40_000.0) for s in range(slow)]
    truths += [Truth({"seed": 30 + s, **length}, 40_000.0, status="diverged") for s in range(diverged)]
    seen = simulate(truths)
    note = next(note for note in ask("regimes", seen).notes if "times their step" in note)
    assert any("not generalised up to" in note for note in ask("survival", seen).notes) == bool(diverged)
    assert ("so this is about those that had" in note) == bool(slow) and ("diverged" in note) == bool(diverged)
    assert not slow or f"{slow} of {14 + slow + diverged}" in note
    assert "14 of 14. A fall" in note


@pytest.mark.parametrize(("n", "steps", "shown"), [(12, 6000, False), (12, 12_000, True), (4, 12_000, False)])
def test_only_times_of_many_that_were_watched_long_enough_are_compared(n: int, steps: int, shown: bool) -> None:
    study = ask("regimes", with_norm_falls([3000.0] * n, steps))
    assert ("one group or two, by ratios of times" in {f.label for f in study.findings}) == shown
    assert ("times" in {table.name for table in study.tables}) == shown


def test_crossed_recovers_the_shares() -> None:
    truth = {"init": 0.10, "order": 0.05, "init × order": 0.03, "chaos": 0.06}
    rng, other = np.random.default_rng(6), np.random.default_rng(7)
    study = ask("crossed", simulate(crossed((2, 9, 9), rng, truth) + census(20, other)))
    assert len(study.rows) == 2 * 9 * 9 * 2  # the census is no part of the design
    shares = study.shares.shares
    inside = [shares[name].low <= variance / 0.24 <= shares[name].high for name, variance in truth.items()]
    assert sum(inside) >= 3  # four 95% intervals of one data set: one may miss
    first = next(f for f in study.findings if f.label.endswith(" share"))
    assert first.estimate.value == max(e.value for e in shares.values()), "the answer leads"
    tests = {f.label: float(f.shown.removeprefix("p = ")) for f in study.findings if f.label.startswith("outcomes")}
    assert tests["outcomes differ between init seeds"] < 0.01 < tests["outcomes differ between split seeds"]
    assert list(study.rates.groupby("stream")["cells"].first()) == [2 * 9, 2 * 9, 9 * 9]
    shares = ask("crossed", simulate(crossed((6, 15, 1), rng, {"split": 0.3, "chaos": 0.1}, 1))).shares.shares
    assert list(shares) == ["split", "init", "split × init and chaos"]
    assert shares["split"].low <= 0.75 <= shares["split"].high and shares["init"].high < 0.5
    pair = crossed((3, 6, 2), np.random.default_rng(0), {"split × init": 0.1, "chaos": 0.09})
    assert ask("crossed", simulate(pair)).headlines[0].label == "split × init share"
    other = [replace(t, overrides=t.overrides | {"optim.weight_decay": 0.5}) for t in pair]
    both, said = ask("crossed", store := simulate(pair + other)).headlines, compile_report(store).sentence
    assert len(both) == 2 and all(f"{card.label[1:]}: {card.shown}." in said for card in both)


def test_a_cross_says_which_planned_seeds_no_run_of_it_has() -> None:
    grid = crossed((3, 3, 5), np.random.default_rng(1), {"chaos": 0.1})
    seeds = [{stream: truth.overrides[f"seeds.{stream}"] for stream in ("split", "init", "order")} for truth in grid]
    cells = [Purpose(role="cell", unit=unit | {"repeat": n % 2}) for n, unit in enumerate(seeds)]
    few = {seeds[0]["order"], seeds[2]["order"]}  # of one no run is stored, of the other one is
    stored = [truth for i, truth in enumerate(grid) if i == 0 or seeds[i]["order"] not in few]
    study = ask("crossed", simulate(stored, Planned("crossed", list(zip(grid, cells, strict=True)))))
    assert {int(number) for number in re.findall(r"\d+", study.left[0])} == {*few, 1}
    assert re.findall(r"\d+", study.missing)[:2] == ["35", "90"] and len(study.rows) == 54


def test_ranks_find_a_share_that_the_best_quarter_misses() -> None:
    found = 0
    for draw in range(5):
        grid = crossed((3, 4, 4), np.random.default_rng(draw), {"init": 0.25, "order": 0.02, "chaos": 0.02})
        study = ask("crossed", simulate(grid))
        shown = next(f.shown for f in study.findings if f.label == "outcomes differ between init seeds")
        found += float(shown.removeprefix("p = ")) < 0.05
    assert found >= 4


def test_a_cell_without_a_wrong_answer_is_bounded_and_said() -> None:
    """One cell is far beyond the end of the scale; the others differ by the init seed."""
    rng = np.random.default_rng(4)
    grid = crossed((3, 3, 3), rng, {"init": 0.01, "chaos": 0.0001})
    slow = [replace(t, time=1.15 * t.time, overrides={**t.overrides, "train.steps": 3000}) for t in grid]
    slow[10:12] = [replace(t, time=100.0, fast=True) for t in slow[10:12]]
    study = ask("crossed", simulate(slow))
    assert not study.outcome.is_time and study.outcome.saturated is not None
    saturated = study.outcome.saturated
    assert 2 <= saturated.sum() < len(saturated)
    values, bounds = study.outcome.values, study.outcome.values[~saturated]
    assert study.rows["y"].tolist() == np.clip(values, bounds.min(), bounds.max()).tolist()
    said = next(f for f in study.findings if f.label == "runs at the end of the scale")
    assert said.shown == f"{saturated.sum()} of {len(values)}"
    without = variance_shares(
        values[~saturated], {n: v[~saturated] for n, v in study.factors.items()}, generator("without saturated")
    )
    assert f"init {without.shares['init'].value:.0%}" in said.text


def test_sampled_cells_with_one_run_each_have_shares_that_leave_chaos_with_the_last_interaction() -> None:
    cells = crossed((12, 12, 12), np.random.default_rng(8), {"init": 0.3, "order": 0.1, "chaos": 0.1}, replicates=1)
    drawn = [cells[i] for i in np.random.default_rng(1).permutation(len(cells))[:400]]
    for truth in drawn:
        del truth.overrides["perturb.ulps"], truth.overrides["seeds.perturb"]
    units = [{stream: truth.overrides[f"seeds.{stream}"] for stream in ("split", "init", "order")} for truth in drawn]
    purposes = [Purpose(role="cell", unit={**unit, "repeat": 0}, choice="drawn") for unit in units]
    store = simulate(drawn, Planned("crossed", list(zip(drawn, purposes, strict=True))))
    study = ask("crossed", store)
    assert study.shares is not None and "400 of 1,728 cells filled" in study.scope and study.rates is not None
    shares = study.shares.shares
    assert list(shares)[-1] == "split × init × order and chaos"
    for name, truth in {"split": 0.0, "init": 0.6, "order": 0.2, "split × init × order and chaos": 0.2}.items():
        assert shares[name].low <= truth <= shares[name].high, (name, shares[name])
    assert shares["init"].low > 0.2
    for truth in drawn[:4]:
        truth.time = 1.0
    far = ask("crossed", simulate(drawn, Planned("crossed", list(zip(drawn, purposes, strict=True)))))
    assert far.shares.shares["init"].value == pytest.approx(shares["init"].value, abs=0.1), "ranks: four runs of 400"
    assert "rank variance" in far.findings[0].text and any("few runs far" in f.text for f in far.findings)
    again = [replace(t, overrides={**t.overrides, "perturb.ulps": 1}) for t in drawn[:60]]
    more = [Purpose(role="cell", unit={**unit, "repeat": 1}, choice="drawn") for unit in units[:60]]
    both = Planned("crossed", list(zip([*drawn, *again], [*purposes, *more], strict=True)))
    some = ask("crossed", simulate([*drawn, *again], both))
    assert "chaos" in some.shares.shares and "rank variance of the log" in some.findings[0].text


def test_prediction_of_what_the_curves_show(short_census: Observations) -> None:
    study = ask("prediction", short_census)
    # Slow seeds climb in validation loss from the start, so an honest predictor is nearly perfect here.
    assert study.looks["auroc"].iloc[-1] > 0.95 and "is lower: AUROC" in study.findings[0].text
    few = simulate(census(15, np.random.default_rng(14)))
    assert "at least 20 seeds" in needs("prediction", few)
    late = simulate([Truth({"seed": i, "train.steps": 9000}, 2500.0 if i < 15 else 9e4) for i in range(60)])
    seen = Observations(late.all_runs, late.curves[late.curves["step"] >= 3000], designs=late.designs)
    assert "before the step of judgement" in needs("prediction", seen)


@pytest.mark.parametrize(("generalise", "said"), [(30, True), (5, False)])
def test_a_lead_is_told_only_if_half_of_the_hits_arrive(generalise: int, said: bool) -> None:
    truths = [Truth({"seed": s, "eval.every": 50}, 2_000.0 + 10 * s if s < generalise else 3_400.0) for s in range(40)]
    truths += [Truth({"seed": s, "eval.every": 50}, 9_000.0) for s in range(40, 100)]
    study = ask("prediction", simulate(truths))
    assert ("before half of these seeds generalise" in study.findings[0].text) is said
    assert study.looks["lead"].notna().all() == said


def test_a_screen_by_the_loss_has_its_price_for_each_super_seed() -> None:
    times = np.random.default_rng(3).uniform(8000, 12_000, 240)
    times[:12] = 1900
    every = {"eval.every": 250, "train.steps": 6000}  # super is decided at step 3,000
    truths = [Truth({"seed": i, **every}, float(t), t < 2000) for i, t in enumerate(times)]
    study = ask("prediction", simulate(truths))
    shown = {f.label.partition(", ")[2]: f.shown for f in study.findings if "each super seed" in f.label}
    price = {how: float(text.split()[0].replace(",", "")) for how, text in shown.items()}
    assert price == {"blind": 240 * 3000 / 12, "screened by loss": float(f"{(240 * 250 + 12 * 2750) / 12:.2g}")}
    (table,) = (table.frame for table in study.tables if table.name == "recognised")
    assert table["step"].tolist()[0] == 250
    assert table["AUROC of the validation loss"].str.startswith("1.00").all()


def test_every_population_counts_in_the_range_and_shares_of_other_lengths_have_their_steps() -> None:
    """Twenty rates of one seed each, of which the last twelve generalise; and two of six seeds and other lengths."""
    rates = [Truth({"seed": 0, "optim.lr": (1 + k) / 1e3, "task.modulus": 41}, 5e3 - 250 * k) for k in range(20)]
    study = ask("census", simulate(rates))
    assert len(study.parts) == 12 and [f.shown for f in study.headlines] == ["12 of 20"]
    assert not any("p (Holm)" in table.frame for table in study.tables), "two runs cannot be told apart"
    long = [Truth({**rates[k % 2].overrides, "seed": k, "train.steps": 2000 + 2000 * (k % 2)}, 3e3) for k in range(12)]
    said = [(f.estimate.value, f.shown.partition(") ")[2]) for f in ask("census", simulate(long)).headlines]
    assert said == [(0, "by step 2,000"), (1, "by step 4,000")]


def test_every_question_says_what_is_missing_in_an_empty_store() -> None:
    empty = simulate([])
    for question in QUESTIONS:
        answer = question.ask(empty)
        assert isinstance(answer, Missing)
        assert not answer.started
        assert answer.command == "" or answer.command.startswith("grok ")


def test_an_interval_for_a_growing_store_stands_beside_the_one_for_a_fixed_size(short_census: Observations) -> None:
    study = ask("census", short_census)
    said = {f.label: f for f in study.findings}
    fixed, always = said["super seeds"].estimate, said["super seeds, at any time"].estimate
    assert always == at_any_time(round(fixed.value * fixed.n), fixed.n)
    assert always.low < fixed.low and fixed.high < always.high
    assert not said["super seeds, at any time"].headline


def computed_on(n: int, supers: int, tag: str, first: int) -> list[Truth]:
    times = [2000.0 if k < supers else 9000.0 for k in range(n)]
    return [
        Truth({"seed": first + k, "train.steps": 3000, "eval.every": 250}, t, fast=t < 3000, numerics=tag)
        for k, t in enumerate(times)
    ]


def test_processors_whose_seeds_differ_are_said_and_others_are_not() -> None:
    apart = ask("census", simulate(computed_on(300, 0, "a", 0) + computed_on(300, 18, "b", 1000)))
    said = [f for f in apart.findings if "differ" in f.label]
    assert {f.label for f in said} == {"numerics tags differ, super", "numerics tags differ, generalised"}
    assert "numerics tags differ in the share that is super" in apart.summary
    assert apart.summary.count("So one share") == 1
    alike = ask("census", simulate(computed_on(100, 7, "a", 0) + computed_on(100, 9, "b", 1000)))
    assert not [f for f in alike.findings if "differ" in f.label]
    (every,) = [f for f in alike.findings if f.label == "ways of computing"]
    assert "0 of 2 tests" in every.text and "diverged" not in every.text
    none = ask("census", simulate(computed_on(30, 0, "a", 0) + computed_on(30, 0, "b", 1000)))
    (every,) = [f for f in none.findings if f.label == "ways of computing"]
    assert every.shown == "no test"
    alone = ask("census", simulate(computed_on(30, 3, "a", 0)))
    assert not [f for f in alone.findings if f.label == "ways of computing"]


def test_seeds_that_were_typed_one_by_one_are_counted_and_a_group_without_an_answer_is_said_to_be_untested() -> None:
    seeds, alone = computed_on(40, 0, "a", 0), computed_on(8, 8, "a", 500)
    named = branch({40: [Truth({**alone[0].overrides, "seeds.order": 9}, 900)]}, [*seeds, *alone], "named")
    plans = (sweep(seeds), *(sweep([truth]) for truth in alone), named)
    study = ask("census", simulate([*seeds, *alone], *plans))
    assert study.shares["super"].n == 48 and any("one by one: 8 of" in note for note in study.notes)
    lr = {rate: [Truth({**t.overrides, "optim.lr": rate}, t.time) for t in seeds[:20]] for rate in (0.1, 0.2)}
    for truth in lr[0.1]:
        truth.time = 2000.0 + 10 * truth.overrides["seed"]
    texts = [f.text for f in ask("survival", simulate([*alone, *lr[0.1], *lr[0.2]])).findings]
    assert any("Without an answer, so not tested: 1." in text for text in texts)


def test_runs_that_change_in_mid_run_are_no_census_and_said() -> None:
    switched = [Truth({"seed": k % 2, "switch.step": 1000, "switch.order": 77 + k}, 1800) for k in range(20)]
    assert needs("census", simulate(switched)).count("(switch.*): 20 runs") == 1
    both = ask("census", simulate(computed_on(30, 3, "a", 0) + switched))
    assert both.shares["super"].n == 30 and any("(switch.*): 20 runs" in note for note in both.notes)


def test_equal_bits_under_different_seeds_are_an_error_and_count_once() -> None:
    store = simulate(computed_on(60, 12, "a", 0))
    assert not [f for f in ask("census", store).findings if "bits" in f.label]
    runs = store.all_runs.copy()
    twin = runs["seed"].map(lambda seed: seed if seed < 6 else seed - 6 if seed < 12 else 6 + (seed - 12) % 24)
    runs["weights_hash"] = twin.map(lambda of: f"{of:064x}")
    copied = Observations(runs, store.curves, designs=store.designs)
    census, times = ask("census", copied), ask("survival", copied)
    assert census.shares["super"].n == 30 and census.shares["super"].value == 6 / 30
    assert len(times.times) == 30 and len(ask("regimes", copied).events) == 30
    (said,) = (f for f in census.findings if "bits" in f.label)
    assert said.shown == "60 of 60" and said.headline and "Error" in census.summary


def test_a_dip_at_the_last_step_is_no_loss_of_a_super_seed() -> None:
    store = simulate(computed_on(40, 5, "a", 0))
    curves = store.curves.copy()
    run = ask("census", store).rows.query("label == 'super'").index[0]
    curves.loc[(curves["run_id"] == run) & (curves["step"] == 3000), "val_acc"] = 0.95
    study = ask("census", Observations(store.all_runs, curves, designs=store.designs))
    said = {f.label: f for f in study.findings}
    assert said["super seeds"].estimate.value == 4 / 40
    assert said["super seeds, reached and held"].estimate.value == 5 / 40
    assert "1 of these had dipped" in said["super seeds, reached and held"].text


def test_held_is_for_two_evaluations_in_a_row_or_until_the_run_ends() -> None:
    """A run that rises at its last evaluation is not failed by the end of its budget; one that falls next is."""
    seen = {"a": [0.99, 0.9, 0.99], "b": [0.9, 0.9, 0.99, 0.9], "c": [0.99], "d": [0.99, 0.99, 0.5],
            "e": [0.9, 0.9, 0.99, 0.99], "diverged": [0.9, 0.99], "late": [0.9, 0.9, 0.9, 0.99, 0.99]}  # fmt: skip
    curves = pd.DataFrame(
        [("c", 0, 0.99), *((run, 100 * k, acc) for run, its in seen.items() for k, acc in enumerate(its, 1))],
        columns=["run_id", "step", "val_acc"],
    )
    rows = pd.DataFrame(
        {"status": ["diverged" if r == "diverged" else "completed" for r in [*seen, "f"]]}, [*seen, "f"]
    )
    held = held_by(curves, rows, 300, 0.98)
    assert held.dropna().to_dict() == {"a": 1, "b": 0, "d": 2, "e": 2, "diverged": 0, "late": 0}


LAYERS = ["token_embedding", "blocks.0.mlp", "final_norm", "head"]


def transplant(
    effects: dict[str, float],
    noise: float,
    rng: np.random.Generator,
    recipient: int = 50,
    donor: int = 77,
    layers: Sequence[str] = LAYERS,
) -> list[Truth]:
    truths = []
    for bits in itertools.product([0, 1], repeat=len(layers)):
        taken = [name for name, bit in zip(layers, bits, strict=True) if bit]
        for r in range(2):
            time = 4_000 * np.exp(sum(effects.get(n, 0.0) for n in taken) + rng.normal(0, noise))
            given = {
                "seed": recipient,
                "seeds.layers": dict.fromkeys(taken, derive_seed(donor, "init")),
                "perturb.ulps": 1,
                "seeds.perturb": r,
                "train.steps": 20_000,
                "eval.every": 50,
            }
            truths.append(Truth(given, float(time)))
    return truths


def test_layers_find_who_carries_the_speed() -> None:
    effects = {"token_embedding": -0.6, "head": -0.3}
    study = ask("layers", simulate(transplant(effects, 0.08, np.random.default_rng(10))))
    shares = study.shares.set_index("layer")
    for layer in LAYERS:
        low, high = shares.loc[layer, ["low", "high"]]
        assert low <= effects.get(layer, 0.0) <= high, layer
    assert shares["Shapley share"].sum() == pytest.approx(study.results[0].attribution.total.value)
    assert (shares["no bit changed"] == False).all()  # noqa: E712 - None is another answer
    # The donor has no run of its own in this store, so only its init seed is known.
    together = study.findings[0]
    assert "Their effects add up" in together.text and together.estimate is not None and together.estimate.low > 0.9


@pytest.mark.slow
def test_a_short_run_of_the_recipient_does_not_cut_off_the_transplant() -> None:
    rng = np.random.default_rng(19)
    truths = transplant({"head": -1.0}, 0.02, rng)
    (alone,) = ask("layers", simulate(truths)).results
    (beside,) = ask(
        "layers", simulate([*truths, Truth({"seed": 50, "train.steps": 1000, "eval.every": 50}, 4000)])
    ).results
    assert beside.outcome.horizon == alone.outcome.horizon
    assert beside.attribution.total == alone.attribution.total


def test_opposite_transplants_are_not_averaged() -> None:
    rng = np.random.default_rng(19)
    there = transplant({"token_embedding": 1.0}, 0.05, rng, 50, 77)
    back = transplant({"head": -0.5}, 0.05, rng, 77, 50)
    study = ask("layers", simulate(there + back))
    shares = study.shares.set_index(["transplant", "layer"])
    assert shares.loc[("seed 50 ← seed 77", "token_embedding"), "low"] > 0.9
    assert shares.loc[("seed 77 ← seed 50", "head"), "high"] < -0.4
    assert abs(shares.loc[("seed 77 ← seed 50", "token_embedding"), "Shapley share"]) < 0.1
    assert shares.loc[("seed 50 ← seed 77", "token_embedding"), "% of the total"] == pytest.approx(100, abs=10)


def all_or_nothing(recipient: int, donor: int, rng: np.random.Generator, layers: Sequence[str]) -> list[Truth]:
    """Return a transplant whose recipient is super with all of its weights, and ordinary without any one of them."""
    truths = transplant({}, 0.05, rng, recipient, donor, layers)
    return [
        Truth({**t.overrides, "train.steps": 3000}, t.time * (0.4 if not t.overrides["seeds.layers"] else 1.0))
        for t in truths
    ]


@pytest.mark.parametrize("layers", [["token_embedding", "head"], LAYERS], ids=["halves", "parts"])
def test_a_seed_that_needs_all_of_its_layers_gives_none_of_them_a_share(layers: list[str]) -> None:
    rng = np.random.default_rng(20)
    study = ask("layers", simulate([t for i in range(3) for t in all_or_nothing(100 + i, 200 + i, rng, layers)]))
    together = [r.act_together for r in study.results]
    assert all(together) and "They act together" in study.findings[0].text
    assert study.shares.empty and drawings(study) == []
    first = ask("layers", simulate(all_or_nothing(100, 200, np.random.default_rng(20), layers)))
    alone, several = first.findings[0].estimate, study.findings[0].estimate
    assert several is None and alone == first.results[0].additivity.share, "one pair of seeds tells of itself alone"
    assert not any("odds" in f.text for f in study.findings), "no wrong answer with its own weights: no odds"
    changes = [f.shown for f in study.findings if f.label.startswith("all layers")]
    assert all(re.fullmatch(r"accuracy \d+\.\d% instead of (100\.0|99\.\d)%", change) for change in changes)
    cells = study.cells.set_index(["transplant", "exchanged"])["mean"]
    own, half = (cells[study.results[0].transplant.name, exchanged] for exchanged in ("nothing", "head"))
    assert own > 0.99 and half < 0.9


def test_super_recipients_are_averaged_apart_from_ordinary_ones() -> None:
    rng = np.random.default_rng(20)
    needy = [t for i in range(3) for t in all_or_nothing(100 + i, 200 + i, rng, LAYERS)]
    plain = [t for i in range(3) for t in transplant({"head": -0.2}, 0.01, rng, 300 + i, 400 + i)]
    plain = [Truth({**t.overrides, "train.steps": 3000}, t.time) for t in plain]
    study = ask("layers", simulate(needy + plain))
    assert [(r.is_super, r.act_together, r.adds_up) for r in study.results] == [(True, True, False)] * 3 + [
        (False, False, True)
    ] * 3
    shown = {f.label.rpartition(", ")[2]: f.shown for f in study.findings if f.label.startswith("layers together")}
    mine = [r.additivity.share.value for r in study.results if not r.is_super]
    assert shown["recipient not super"] == f"{np.mean(mine):.0%} in the mean"
    assert shown["recipient super"] == "they act together", "a share would be that of a sum"


def test_an_order_that_was_exchanged_is_a_factor_and_layers_that_went_together_are_one() -> None:
    rng = np.random.default_rng(31)
    truths = []
    for embedding, head, order, replicate in itertools.product([0, 1], [0, 1], [0, 1], range(2)):
        layers = {"token_embedding": 512, "position_embedding": 512} if embedding else {}
        layers |= {"head": 512} if head else {}
        time = 4_000 * np.exp(-0.6 * embedding - 0.9 * order + rng.normal(0, 0.05))
        given = {"seed": 50, "seeds.layers": layers, "perturb.ulps": 1, "seeds.perturb": replicate}
        given |= {"train.steps": 20_000, "eval.every": 50, **({"seeds.order": 8} if order else {})}
        truths.append(Truth(given, float(time)))
    observations = simulate(truths)
    (one,) = transplants(observations)
    assert one.name == "seed 50 ← init seed 512, order seed 8"
    assert (len(one.rows), sorted(one.factors)) == (16, ["head", "order", "position_embedding + token_embedding"])
    study = ask("layers", observations)
    shares = study.shares.set_index("layer")
    for factor, effect in (("order", -0.9), ("position_embedding + token_embedding", -0.6), ("head", 0.0)):
        low, high = shares.loc[factor, ["low", "high"]]
        assert low <= effect <= high, factor


@pytest.mark.parametrize(
    ("module", "question"),
    [("histogram", "census"), ("super_seeds", "census"), ("regimes", "regimes"), ("factorial", "crossed"),
     ("layers", "layers"), ("repeatability", "repeatability")],
)  # fmt: skip
def test_each_module_of_a_study_gives_its_answer(
    module: str, question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write([Truth({"seed": seed}, 2000.0 if seed else 9000) for seed in range(8)], tmp_path / "store")
    assert report.main(["--only", question, str(tmp_path / "store"), "--out", str(tmp_path)]) == 0
    assert list((tmp_path / "figures").glob("*.png")) or question != "census"
    answer = capsys.readouterr().out
    assert ("get it with: grok " in answer) == (question in ("crossed", "layers", "repeatability"))
    monkeypatch.setattr(sys, "argv", [module, str(tmp_path / "store"), "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"analysis.{module}", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out) == (0, answer) and answer
