"""What counts as one observation, which runs are counted together, and how each run is listed."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.analysis.answers import compile_report, provenance
from grok.analysis.observations import Observations, differing_settings, is_random_seed
from grok.analysis.populations import FEWEST, Populations, asked_before_and_after, populations
from grok.analysis.proposals import code_needed, rerun_command, rerun_commands
from grok.analysis.purposes import asked
from grok.analysis.studies import QUESTIONS, seeds
from grok.analysis.studies.regimes import ORDERS
from grok.analysis.writing import write_report
from grok.config import load_config
from grok.config.values import literal
from grok.records import CurvePoint
from grok.store import Row, StoreWriter, open_store
from grok.store.provenance import rerun_command as full_command
from grok.streams import RUN_STREAMS, STREAMS, derive_seed
from tests.analysis.simulate import (
    BY_NAME,
    Truth,
    ask,
    census,
    crossed,
    language_row,
    repeat,
    row,
    simulate,
    sweep,
    write,
)
from tests.store.contract import failed


def of(truths: Sequence[Truth]) -> Populations:
    return populations(simulate(truths))


def scan(stream: str, n: int, **overrides: object) -> list[Truth]:
    given_ = {k.replace("__", "."): v for k, v in overrides.items()}
    return [Truth({f"seeds.{stream}": i, **given_}, 900 + i) for i in range(n)]


@pytest.mark.parametrize(
    ("truths", "varies", "fixed"),
    [
        (census(12, np.random.default_rng(0)), RUN_STREAMS, {}),
        (scan("init", 12, seeds__order=8), ("init",), {"split": derive_seed(0, "split"), "order": 8}),
        ([Truth({"seed": i, "seeds.order": 8}, 900) for i in range(12)], ("split", "init"), {"order": 8}),
    ],
    ids=["master seeds", "init at one order", "master seeds at one order"],
)
def test_a_population_knows_what_varies_and_what_is_fixed(
    truths: list[Truth], varies: tuple[str, ...], fixed: dict[str, int]
) -> None:
    (p,) = of(truths).every
    assert (p.varies, p.fixed, p.name) == (varies, fixed, "")
    assert list(p.seeds) == list(range(12))


def test_a_layers_seed_is_a_stream_of_its_own() -> None:
    truths = [Truth({"seed": 3, "seeds.layers": {"head": 2**62 + i, "blocks.0": 2**62 + 1}}, 900) for i in range(8)]
    truths += [Truth({"seed": 3, "seeds.layers": {"blocks.1": i}}, 900) for i in range(8)]
    other, p = sorted(of(truths).every, key=lambda p: p.varies)
    assert (other.varies, p.varies) == (("layers.blocks.1",), ("layers.head",))
    assert p.fixed["layers.blocks.0"] == 2**62 + 1
    assert list(p.seeds) == [2**62 + i for i in range(8)]


def test_every_value_of_a_setting_is_a_population_the_default_first() -> None:
    truths = [Truth({"seed": i, "optim.weight_decay": wd}, 900) for wd in (0.0, 1.0, 0.1) for i in range(6)]
    found = of(truths)
    assert [p.name for p in found.every] == [f"optim.weight_decay={v}" for v in ("0.1 (default)", "0", "1")]
    assert found.settings == ("optim.weight_decay",)
    many = [Truth({"seed": i, "optim.weight_decay": wd}, 9000) for wd in range(7) for i in range(6)]
    (card,) = (f for f in ask("census", simulate(many)).findings if "over 7 populations" in f.label)
    assert card.text.startswith("Equal in all 7: ")
    lost = [Truth({"seed": i, "optim.weight_decay": 2.0}, 1e9, status="diverged") for i in range(6)]
    assert "optim.weight_decay=2: 6 diverged." in ask("census", simulate([*truths[6:], *lost])).summary


def test_several_populations_of_one_condition_are_told_apart_by_their_streams() -> None:
    truths = [*census(40, np.random.default_rng(0)), *scan("init", 30, seeds__order=8), *scan("order", 25)]
    assert [p.varies for p in of(truths).every] == [("split", "init", "order"), ("init",), ("order",)]


def test_a_scan_does_not_count_the_run_that_may_have_chosen_its_fixed_seeds() -> None:
    seeds = census(20, np.random.default_rng(0))
    scan_ = [Truth({**seeds[8].overrides, "seeds.init": i}, 900) for i in range(16)]
    for plans, sizes in (
        ([sweep(seeds), sweep(scan_)], [(20, False), (16, True)]),
        ([sweep(seeds), sweep(scan_[:8]), sweep(scan_[8:])], [(20, False), (16, True)]),  # a scan that goes on
        ([sweep(scan_), sweep(seeds)], [(20, False), (17, False)]),  # nothing was known when its seeds were fixed
    ):
        found = populations(simulate([*seeds, *scan_], *plans)).every
        assert [(len(p), p.chosen) for p in found] == sizes


def test_lines_of_a_small_cross_are_no_populations_and_long_ones_are() -> None:
    small = crossed((1, 8, 8), np.random.default_rng(0), {}, replicates=1)
    for truth in small:
        truth.overrides["perturb.ulps"] = 0
    assert not of(small).every
    large = [Truth({"seeds.init": i, "seeds.order": o}, 900) for i in range(3) for o in range(24)]
    found = of(large).every
    assert [(p.varies, len(p), p.fixed["init"]) for p in found] == [(("order",), 24, i) for i in range(3)]


def test_repeats_coupled_runs_and_small_groups_stay_outside() -> None:
    truths = census(20, np.random.default_rng(0))
    truths += [Truth({"seed": 1, "perturb.ulps": 1, "seeds.perturb": i}, 900) for i in range(9)]
    truths += [Truth({"seed": i, "eval.couple_order": True}, 900) for i in range(9)]
    truths += [Truth({"seed": i, "optim.lr": 0.01}, 900) for i in range(3)]
    found = of(truths)
    assert [len(p) for p in found.every] == [20]
    assert found.left["small"] == 3


def test_going_on_with_every_seed_chooses_nothing() -> None:
    times = np.exp(np.random.default_rng(8).normal(np.log(8843), 0.6, 200))
    seeds = [Truth({"seed": s, "train.steps": 4000, "eval.every": 1000}, float(t)) for s, t in enumerate(times)]
    longer = [Truth({**t.overrides, "train.steps": 60_000}, t.time) for t in seeds]
    store = simulate([*seeds, *longer], sweep(longer, "extend"))
    whole = ask("survival", store)
    (median,) = [f.estimate for f in whole.findings if f.label == "median step of generalisation"]
    assert median.low <= 8843 <= median.high and median.high < 10_500
    part = ask("survival", simulate([*seeds, *longer[:-1]], sweep(longer, "extend")))  # one is still trained
    assert set(part.population.rows["config.train.steps"]) == {4000}
    assert [n.split(": 199")[1] for n in part.notes if ": 199" in n] == [" so far."]
    some = simulate([*seeds, *longer[:-1]], sweep(longer[:-1], "extend")).once(populations)
    assert (some.left["longer"], some.left["waiting"]) == (199, 0), (
        "a finished plan of some, which may have been chosen"
    )
    assert store.once(populations).left["longer"] == 0
    middle = [Truth({**t.overrides, "train.steps": 20_000}, t.time) for t in seeds]
    twice = simulate([*seeds, *middle, *longer], sweep(middle, "extend"), sweep(longer, "extend"))
    assert not asked_before_and_after(twice)[1], "every seed went on, twice"
    moved = simulate([Truth({"seed": s, "perturb.ulps": 1}, 900) for s in range(6)])
    assert len(asked_before_and_after(moved)[0]) == 6, "nothing was known of these seeds"
    # one more plan trains half of them and as many new seeds: only the new ones are asked for without results
    new = [Truth({"seed": s, "train.steps": 60_000, "eval.every": 1000}, 9000.0) for s in range(200, 230)]
    half = longer[:100]
    mixed = ask("survival", simulate([*seeds, *half, *new], sweep([*half, *new])))
    assert mixed.population.rows["config.train.steps"].value_counts().to_dict() == {4000: 200, 60_000: 30}
    # of a plan of before any result a part was trained by a later plan, which may have chosen it, or by itself
    begun = simulate([*seeds, *half], sweep(longer), sweep(half))
    runs, plans, day = begun.all_runs, begun.designs.assign(results_seen=False), pd.Timedelta(days=1)
    runs = runs.assign(started_at=runs["started_at"] + (runs["config.train.steps"] > 4000) * 2 * day)
    late = plans.groupby("design_id")["run_id"].transform("size") == len(half)
    plans = plans.assign(planned_at=plans["planned_at"].mask(late, runs["started_at"].min() + day))
    for known, lengths in ((plans, {4000}), (plans[~late], {4000, 60_000})):
        assert set(asked(Observations(runs, begun.curves, designs=known))["config.train.steps"]) == lengths


def test_runs_of_which_nobody_said_what_they_are_for_are_in_no_population() -> None:
    random = census(20, np.random.default_rng(0))
    whole = simulate(random)
    lost = Observations(whole.all_runs, whole.curves, designs=whole.designs.iloc[6:])
    (p,) = populations(lost).every
    assert len(p) == 14
    assert any("for is unknown: 6 runs" in note for note in ask("census", lost).notes)
    later = repeat(random[0], [Truth({**random[0].overrides, "perturb.ulps": 1}, 900)])
    named = simulate([*random, *(run for run, purpose in later.rows if purpose.role == "child")], later)
    members = (named.designs["role"] == "member").cumsum()
    lost = Observations(named.all_runs, named.curves, designs=named.designs[members > 6])
    assert "control" in set(lost.designs["role"]), "that a later plan names a run does not say what it was for"
    assert any("for is unknown: 6 runs" in note for note in ask("census", lost).notes)
    listed = seeds.compact(seeds.seed_table(lost))["design"].value_counts()
    assert listed.to_dict() == {"sweep member": 14, "unknown": 5, "unknown, repeat control": 1, "repeat child": 1}
    none = Observations(named.all_runs, named.curves, designs=named.designs[named.designs["role"] != "member"])
    assert "nobody knows what is rare" in BY_NAME["repeatability"].ask(none).needs  # type: ignore[union-attr]
    assert not populations(Observations(whole.all_runs, whole.curves)).every
    late = whole.designs.assign(results_seen=True, design_id="late")
    seen = Observations(whole.all_runs, whole.curves, designs=late)
    assert not populations(seen).every, "the first plan is lost"
    needs = BY_NAME["census"].ask(seen).needs  # type: ignore[union-attr]
    for text in (needs, *provenance(seen).notes):
        assert "chosen their seeds: 20 runs." in f"{text}."
    declared = whole.designs.assign(origin="reconstructed", planned_at=late["planned_at"].max())
    (p,) = populations(Observations(whole.all_runs, whole.curves, designs=pd.concat([late, declared]))).every
    assert len(p) == 20
    some = Observations(whole.all_runs, whole.curves, designs=pd.concat([late, declared.iloc[:12]]))
    assert any("chosen their seeds: 8 runs" in note for note in ask("census", some).notes)
    assert not populations(simulate(random, sweep(random, choice="unstated"))).every


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 8), st.sampled_from([0.0, 0.1])),
        min_size=1,
        max_size=60,
        unique=True,
    )
)
def test_no_two_runs_of_a_population_share_a_drawn_seed(cells: list[tuple[int, int, int, float]]) -> None:
    truths = [
        Truth({"seed": s, "seeds.init": i, "seeds.order": o, "optim.weight_decay": wd}, 900) for s, i, o, wd in cells
    ]
    for p in of(truths).every:
        assert len(p) >= FEWEST
        for stream in RUN_STREAMS:
            assert p.rows[f"seed_{stream}"].nunique() == (len(p) if stream in p.varies else 1)
        assert p.rows["config.optim.weight_decay"].nunique() == 1


def test_a_trajectory_counts_once_and_its_longest_run_stands_for_it() -> None:
    truths = [
        Truth({"seed": 1, "train.steps": 3000}, 9000),
        Truth({"seed": 1, "train.steps": 12_000}, 9000),
        Truth({"seed": 1, "train.steps": 3000, "replicate": 1}, 9000),
        Truth({"seed": 1, "train.steps": 3000, "eval.every": 500}, 9000),
        Truth({"seed": 2, "train.steps": 3000}, 9000),
    ]
    rows = simulate(truths).arithmetic
    assert rows["seed"].tolist() == [1, 2]
    assert rows["steps"].tolist() == [12_000, 3000]


def test_a_slower_repeat_does_not_stand_for_a_seed_that_stopped_early() -> None:
    """Both may train to step 20,000, and stop when they have generalised: only chosen seeds have repeats."""
    own = {"seed": 1, "train.steps": 20_000, "train.stop_when_generalised": True}
    first = Truth(own, 1500)
    repeat = Truth({**own, "replicate": 1000}, 9000, numerics="cpu/other path")
    assert simulate([first, repeat]).arithmetic["steps"].tolist() == [3000]
    assert simulate([Truth(own, 900, status="diverged"), repeat]).arithmetic["status"].tolist() == ["diverged"]


def test_another_numerics_tag_is_another_computation_of_one_trajectory() -> None:
    truths = [Truth({"seed": 1}, 900), Truth({"seed": 1, "replicate": 1}, 950, numerics="cuda/lanes 64")]
    found = simulate(truths)
    assert len(found.arithmetic) == 1
    assert len(found.observed) == 2


def test_failed_runs_are_no_observations_and_diverged_ones_never_generalise() -> None:
    truths = [Truth({"seed": 0}, 900), Truth({"seed": 1}, 900, status="failed"), Truth({"seed": 2}, 900, "diverged")]
    truths[2] = Truth({"seed": 2}, 900, status="diverged")
    found = simulate(truths)
    assert found.arithmetic["seed"].tolist() == [0, 2]
    times = found.times(found.arithmetic)
    assert times.seen.tolist() == [True, False]
    assert times.left[1] == 3000  # at risk to the end of its budget, not only until it broke


def test_times_lie_between_two_evaluations() -> None:
    found = simulate([Truth({"seed": 0, "eval.every": 250}, 1101), Truth({"seed": 1, "eval.every": 250}, 99_999)])
    times = found.times(found.arithmetic)
    assert (times.left[0], times.right[0]) == (1000, 1250)
    assert (times.left[1], times.right[1]) == (3000, np.inf)


def test_conditions_ignore_seeds_length_and_evaluation_but_no_other_setting() -> None:
    truths = [
        Truth({"seed": 0}, 900),
        Truth({"seed": 1, "train.steps": 500, "eval.every": 50}, 900),
        Truth({"seed": 2, "seeds.init": 5, "perturb.ulps": 1}, 900),
        Truth({"seed": 3, "optim.lr": 0.01}, 900),
    ]
    found = simulate(truths)
    assert found.conditions(found.arithmetic).tolist() == [0, 0, 0, 1]
    assert differing_settings(found.arithmetic.iloc[3]) == {"optim.lr": 0.01}
    assert differing_settings(found.arithmetic.iloc[0]) == {}


def test_random_seeds_are_told_by_their_streams_not_by_how_they_were_typed() -> None:
    truths = [
        Truth({"seed": 0}, 900),
        Truth({"seed": 1, "seeds.init": derive_seed(1, "init")}, 900),
        Truth({"seed": 2, "seeds.init": 7}, 900),
        Truth({"seed": 3, "perturb.ulps": 1}, 900),
        Truth({"seed": 4, "seeds.layers": {"head": 9}}, 900),
    ]
    rows = simulate(truths).arithmetic
    assert is_random_seed(rows).tolist() == [True, True, False, False, False]


def test_a_plan_of_another_store_after_these_results_is_no_plan_before_them() -> None:
    """The late seeds of one store are continued in a store of their own, which knows no results, and merged."""
    first = [Truth({"seed": i, "train.steps": 3000}, 900.0 + i) for i in range(30)]
    longer = [Truth({"seed": i, "train.steps": 12_000}, 900.0 + i) for i in range(24, 30)]
    both = simulate(first + longer)
    late = both.all_runs["config.train.steps"] == 12_000
    designs = both.designs.copy()
    designs["results_seen"] = False
    after = designs["run_id"].isin(both.all_runs["run_id"][late])
    designs.loc[after, ["design_id", "planned_at"]] = ["another", pd.Timestamp("2040-01-01")]
    merged = Observations(both.all_runs, both.curves, designs=designs)
    assert asked(merged)["config.train.steps"].unique().tolist() == [3000]
    for column, value in (("origin", "reconstructed"), ("planned_at", pd.Timestamp("2020-01-01"))):
        before = designs.assign(**{column: designs[column].where(~after, value)})  # declared, or planned in time
        rows = asked(Observations(both.all_runs, both.curves, designs=before))
        assert set(rows["config.train.steps"]) == {3000, 12_000}


def test_a_shorter_plan_after_the_results_shortens_nobody() -> None:
    typed = {"seed": 1, **{f"seeds.{stream}": derive_seed(1, stream) for stream in ("split", "init", "order")}}
    both = simulate([Truth({**typed, "train.steps": 6000}, 5000.0), Truth({"seed": 1, "train.steps": 3000}, 5000.0)])
    short = both.all_runs.loc[both.all_runs["config.train.steps"] == 3000, "run_id"]
    designs = both.designs.assign(results_seen=both.designs["run_id"].isin(short))
    assert asked(Observations(both.all_runs, both.curves, designs=designs))["config.train.steps"].tolist() == [6000]


RNG = np.random.default_rng


def language_model(seed: int) -> Row:
    settings = {"experiment": "gpt/shakespeare_char", "seed": seed, "data": {"path": "d"}, "train": {"steps": 20}}
    return language_row(settings, [CurvePoint(step=20, val_loss=2.5, train_loss=2.4)], "data", numerics="cpu")


def test_the_table_agrees_with_the_census() -> None:
    observations = simulate(census(60, RNG(1), steps=12_000))
    table, study = seeds.seed_table(observations).set_index("run_id"), ask("census", observations)
    assert len(table) == 60
    assert table.loc[study.rows.index, "class_accuracy"].tolist() == study.rows["label"].tolist()
    assert (table["judged_at_step"] == study.horizon).all()
    supers = set(study.rows.index[study.by_time.is_early])
    assert set(table.index[table["class_time"] == "early"]) == supers and supers
    assert set(table["regime"]) <= {*ORDERS, "not yet"}


def test_each_population_is_judged_by_its_own_median_whatever_its_runs_were_lengthened_to() -> None:
    """A census around step 6,000 and a scan at a fast order around 900: no seed of the scan is early for that."""
    rng = RNG(4)
    census_runs = [
        Truth({"seed": i, "train.steps": 20_000}, 6000 * float(np.exp(rng.normal(0, 0.1)))) for i in range(30)
    ]
    scan = [
        Truth(
            {"seed": 4, "seeds.order": 8, "seeds.init": i, "train.steps": 20_000 if i < 12 else 3000},
            900 * float(np.exp(rng.normal(0, 0.1))),
        )
        for i in range(30)
    ]
    table = seeds.seed_table(simulate(census_runs + scan))
    assert set(table["class_time"]) <= {"late", "not within 20,000 steps", "not within 3,000 steps"}
    assert table["condition"].nunique() == 2, "the budget is told"
    scanned = table[table["seed_order"] == 8]
    assert (scanned["judged_at_step"] == 3000).all() and set(scanned["class_accuracy"]) <= {"super", "fast"}


def test_conditions_name_every_value_the_default_too() -> None:
    runs = census(3, RNG(1)) + census(3, RNG(2), optim__weight_decay=0.0)
    table = seeds.seed_table(simulate(runs))
    assert table["condition"].value_counts().to_dict() == {"optim.weight_decay=0": 3, "optim.weight_decay=0.1": 3}
    assert set(seeds.seed_table(simulate(census(3, RNG(1))))["condition"]) == {"default"}
    other = seeds.seed_table(simulate(census(3, RNG(1), task__modulus=97)))
    assert set(other["condition"]) == {"task.modulus=97"}
    assert other["class_accuracy"].isna().all(), "the diary's classes belong to its task"


def test_every_run_of_a_mixed_store_is_in_the_file(tmp_path: Path) -> None:
    store = write(census(6, RNG(3)), tmp_path / "S")
    with StoreWriter(store) as writer:
        writer.commit([failed(row(Truth({"seed": 77}, 100.0))), language_model(1), language_model(2)])
    page = write_report(compile_report(Observations.read(store)), tmp_path / "out")
    table = pd.read_csv(page.parent / "seeds.csv")
    assert set(table["run_id"]) == open_store(store).run_ids()
    assert table["status"].value_counts().to_dict() == {"completed": 8, "failed": 1}
    assert table.loc[table["mode"] == "gpt", ["class_accuracy", "regime"]].isna().all(axis=None)
    assert table.loc[table["status"] == "failed", "class_accuracy"].isna().all()
    assert (table["seed_init"] == [derive_seed(s, "init") for s in table["seed"]]).all(), "no seed went through a float"
    assert table["rerun"].str.startswith("python -m grok.run").all()


def test_short_commands_leave_out_what_the_master_seed_gives() -> None:
    configs = [
        load_config({"seed": 3}),
        load_config({"seed": 3, "seeds": {"order": 8, "layers": {"head": 5}}}),
        load_config({"seed": 9, "task": {"operation": "x/y if y odd else x-y"}, "model": {"init_scale": 0.5}}),
    ]
    runs = pd.DataFrame({"rerun": [full_command(c) for c in configs], "seed": [c.seed for c in configs]})
    for config, command in zip(configs, rerun_commands(runs), strict=True):
        derived = {f"seeds.{s}={derive_seed(config.seed, s)}" for s in STREAMS}
        words = shlex.split(full_command(config))
        assert shlex.split(command) == [word for word in words if word not in derived]
    assert rerun_command(runs.iloc[0]) == "python -m grok.run seed=3"


MINE = {"_target_": "mine.task", "bits": 6}
METRIC = {"norm": {"_target_": "mine.norm"}}


def store_of(codes: list[dict[str, str]]) -> Observations:
    """Return 24 random seeds; run i has ``codes[i % len(codes)]``."""
    simulated = simulate(census(24, np.random.default_rng(5), steps=300, every=25))
    named = shlex.join([f"task.plugin={literal(MINE)}", f"eval.metric_plugins={literal(METRIC)}"])
    runs = simulated.all_runs.assign(
        own_code=[json.dumps(codes[i % len(codes)]) for i in range(24)],
        rerun=simulated.all_runs["rerun"] + f" {named}",
        **{"config.task.plugin": json.dumps(MINE), "config.eval.metric_plugins": json.dumps(METRIC)},
    )
    return Observations(runs, simulated.curves, designs=simulated.designs)


def test_changed_code_is_another_condition() -> None:
    observations = store_of(
        [{"mine.task": "5c27bca497", "mine.norm": "aa"}, {"mine.task": "3828f112f6", "mine.norm": "aa"}]
    )
    grouped = populations(observations)
    assert sorted(p.name for p in grouped.every) == ["own_code=mine.task 3828f112", "own_code=mine.task 5c27bca4"]
    assert [len(p) for p in grouped.every] == [12, 12]


def test_commands_say_which_version_of_the_code_they_need() -> None:
    observations = store_of([{"mine.task": "5c27bca497"}, {"mine.task": "3828f112f6"}])
    runs = observations.all_runs.drop(columns="config.own_code")
    runs["started_at"] = pd.to_datetime(["2026-11-20", "2026-11-22"] * 12)
    observations = Observations(runs, observations.curves, designs=observations.designs)
    first, second = populations(observations).every
    assert [code_needed(p.rows) for p in (first, second)] == ["mine.task 3828f112", "mine.task 5c27bca4"]
    (census_study,) = [q.ask(observations) for q in QUESTIONS if q.name == "census"]
    assert any("needs your code as these runs had it: mine.task 5c27bca4" in n for n in census_study.notes)
    assert set(seeds.seed_table(observations)["own_code"]) == {"mine.task 5c27bca497", "mine.task 3828f112f6"}


def test_values_of_two_versions_of_a_metric_are_not_pooled() -> None:
    simulated = simulate(census(18, np.random.default_rng(5), steps=300, every=25))
    old = simulated.all_runs.assign(started_at=pd.Timestamp("2026-11-20"), own_code='{"mine.norm":"aa"}')
    new = simulated.all_runs.iloc[:12].assign(started_at=pd.Timestamp("2026-11-22"), own_code='{"mine.norm":"bb"}')
    new["run_id"] = [f"{run}new" if i % 2 else f"0{run}" for i, run in enumerate(new["run_id"])]
    runs = pd.concat([old, new], ignore_index=True).assign(**{"config.eval.metric_plugins": json.dumps(METRIC)})
    curves = [simulated.curves.assign(metrics=json.dumps({"norm": 1.0}))]
    names = dict(zip(simulated.all_runs["run_id"][:12], new["run_id"], strict=True))
    later = simulated.curves[simulated.curves["run_id"].isin(names)]
    curves.append(later.assign(run_id=later["run_id"].map(names), metrics=json.dumps({"norm": 2.0})))
    designs = simulated.designs
    again = designs[designs["run_id"].isin(names)].assign(results_seen=True)
    designs = pd.concat([designs, again.assign(run_id=again["run_id"].map(names), design_id="later")])
    observations = Observations(runs, pd.concat(curves, ignore_index=True), designs=designs)
    assert [len(p) for p in populations(observations).every] == [18], "it trained alike"
    parts = {name: rows.index for name, rows in observations.by_condition()}
    assert {name: len(ids) for name, ids in parts.items()} == {
        "own_metrics=mine.norm aa": 6, "own_metrics=mine.norm bb": 12,
    }  # fmt: skip
    for version, value in (("aa", 1.0), ("bb", 2.0)):
        texts = observations.curves_of(parts[f"own_metrics=mine.norm {version}"])["metrics"]
        assert {json.loads(text)["norm"] for text in texts} == {value}
