"""Which runs of a store are counted together, and what is said of their streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.answers import provenance
from analysis.observations import Observations
from analysis.populations import FEWEST, RUN_STREAMS, Populations, populations
from grok.store.designs import Purpose
from grok.streams import derive_seed
from tests.analysis.questions import BY_NAME, ask
from tests.analysis.simulate import Planned, Truth, census, crossed, simulate, sweep


def of(truths: Sequence[Truth]) -> Populations:
    return populations(simulate(truths))


def scan(stream: str, n: int, **overrides: object) -> list[Truth]:
    given_ = {k.replace("__", "."): v for k, v in overrides.items()}
    return [Truth({f"seeds.{stream}": i, **given_}, 900 + i) for i in range(n)]


def test_master_seeds_are_one_population_that_draws_every_stream() -> None:
    (p,) = of(census(12, np.random.default_rng(0))).every
    assert p.varies == RUN_STREAMS
    assert p.fixed == {}
    assert p.name == ""
    assert list(p.seeds) == list(range(12))
    assert p.scope == (
        "12 seeds (split, init and order drawn anew in each); x/y mod 223, 50% of the table; "
        "the default settings (the diary's regime)."
    )


def test_init_at_one_order_says_which_streams_stay_and_at_which_seeds() -> None:
    (p,) = of(scan("init", 30, seeds__order=8)).every
    assert p.varies == ("init",)
    assert p.fixed == {"split": derive_seed(0, "split"), "order": 8}
    assert list(p.seeds) == list(range(30))
    assert "30 init seeds (one per run, split of seed 0, order seed 8 fixed)" in p.scope


def test_master_seeds_at_one_order_draw_the_other_two_streams() -> None:
    (p,) = of([Truth({"seed": i, "seeds.order": 8}, 900) for i in range(9)]).every
    assert p.varies == ("split", "init")
    assert p.fixed == {"order": 8}
    assert "9 seeds (split and init drawn anew in each, order seed 8 fixed)" in p.scope


def test_a_layers_seed_is_a_stream_of_its_own() -> None:
    truths = [Truth({"seed": 3, "seeds.layers": {"head": 100 + i, "blocks.0": 7}}, 900) for i in range(8)]
    (p,) = of(truths).every
    assert p.varies == ("layers.head",)
    assert p.fixed["layers.blocks.0"] == 7
    assert list(p.seeds) == list(range(100, 108))
    assert p.unit == "seeds of layer head"


def test_every_value_of_a_setting_is_a_population_the_default_first() -> None:
    truths = [Truth({"seed": i, "optim.weight_decay": wd}, 900) for wd in (0.0, 1.0, 0.1) for i in range(6)]
    found = of(truths)
    assert [p.name for p in found.every] == [
        "optim.weight_decay=0.1 (default)",
        "optim.weight_decay=0",
        "optim.weight_decay=1",
    ]
    assert found.settings == ("optim.weight_decay",)


def test_several_populations_of_one_condition_are_told_apart_by_their_streams() -> None:
    truths = [*census(40, np.random.default_rng(0)), *scan("init", 30, seeds__order=8), *scan("order", 25)]
    names = [p.name for p in of(truths).every]
    assert names == [
        "seeds, every stream drawn",
        "init seeds, split of seed 0, order seed 8 fixed",
        "order seeds, split and init of seed 0 fixed",
    ]


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
    assert found.beside == 3


def typed(truth: Truth, seed: int = 0, **changes: object) -> Truth:
    """The streams of a random seed, typed one by one under another master seed."""
    streams = {f"seeds.{stream}": derive_seed(truth.overrides["seed"], stream) for stream in RUN_STREAMS}
    return Truth({**truth.overrides, "seed": seed, **streams, **changes}, truth.time, truth.fast)


def test_streams_that_are_typed_again_with_more_steps_leave_their_seeds_in_the_census() -> None:
    """The longest run of a trajectory stood for it, under the master seed of that run: 0 of 196 were super."""
    seeds = [Truth({"seed": s, "eval.every": 500}, 2000.0 if s < 4 else 9000.0) for s in range(200)]
    again = [typed(truth, 900 + n, **{"train.steps": 20_000}) for n, truth in enumerate(seeds[:4])]
    store = simulate([*seeds, *again], sweep(again))
    (p,) = populations(store).every
    assert (len(p), p.rows["seed"].tolist()) == (200, list(range(200)))
    assert set(p.rows["config.train.steps"]) == {3000}
    shares = ask("census", store).shares
    assert (shares["super"].n, shares["super"].value) == (200, 4 / 200)


@pytest.mark.parametrize("first", ["census", "typed"])
def test_a_run_that_two_plans_ask_for_has_the_seed_of_the_census(first: str) -> None:
    """At equal length both plans ask for one run, and its row names the seed of that which trained it: 25 of 40."""
    runs = [typed(Truth({"seed": s, "eval.every": 500}, 9000.0), 900 + s) for s in range(40)]
    asked = [(run, Purpose(unit={"seed": s})) for s, run in enumerate(runs)]
    plans = [Planned("sweep", asked), sweep(runs)]  # type: ignore[arg-type]
    (p,) = populations(simulate(runs, *(plans if first == "census" else plans[::-1]))).every
    assert (p.varies, p.seeds.tolist()) == (RUN_STREAMS, list(range(40)))


@pytest.mark.parametrize("choice", ["given", "best"])
def test_seeds_that_are_continued_for_their_results_do_not_move_the_median(choice: str) -> None:
    """The 24 best of those that had not generalised went on, and stood for all others: a median of 4,809."""
    times = np.exp(np.random.default_rng(8).normal(np.log(8843), 0.6, 200))
    seeds = [Truth({"seed": s, "train.steps": 4000, "eval.every": 100}, float(t)) for s, t in enumerate(times)]
    late = sorted((t for t in seeds if t.time > 4000), key=lambda t: t.time)
    longer = [Truth({**t.overrides, "train.steps": 60_000}, t.time) for t in late[:24]]
    study = ask("survival", simulate([*seeds, *longer], sweep(longer, "extend", choice)))
    assert not any("median step of generalisation" in finding.label for finding in study.findings)
    assert study.end <= 4000 and set(study.population.rows["config.train.steps"]) == {4000}


def test_going_on_with_every_seed_chooses_nothing() -> None:
    times = np.exp(np.random.default_rng(8).normal(np.log(8843), 0.6, 200))
    seeds = [Truth({"seed": s, "train.steps": 4000, "eval.every": 500}, float(t)) for s, t in enumerate(times)]
    longer = [Truth({**t.overrides, "train.steps": 60_000}, t.time) for t in seeds]
    whole = ask("survival", simulate([*seeds, *longer], sweep(longer, "extend")))
    (median,) = [f.estimate for f in whole.findings if f.label == "median step of generalisation"]
    assert median.low <= 8843 <= median.high and median.high < 10_500
    part = ask("survival", simulate([*seeds, *longer[:-1]], sweep(longer, "extend")))  # one is still trained
    assert set(part.population.rows["config.train.steps"]) == {4000}
    # one more plan trains half of them and as many new seeds: only the new ones are asked for without results
    new = [Truth({"seed": s, "train.steps": 60_000, "eval.every": 500}, 9000.0) for s in range(200, 230)]
    half = [Truth({**t.overrides, "train.steps": 60_000}, t.time) for t in seeds[:100]]
    mixed = ask("survival", simulate([*seeds, *half, *new], sweep([*half, *new])))
    assert mixed.population.rows["config.train.steps"].value_counts().to_dict() == {4000: 200, 60_000: 30}


def test_runs_of_which_nobody_said_what_they_are_for_are_in_no_population() -> None:
    seeds = census(20, np.random.default_rng(0))
    whole = simulate(seeds)
    lost = Observations(whole.all_runs, whole.curves, designs=whole.designs.iloc[6:])
    (p,) = populations(lost).every
    assert len(p) == 14
    assert any("What 6 runs were for is unknown" in note for note in ask("census", lost).notes)
    assert not populations(Observations(whole.all_runs, whole.curves)).every
    late = whole.designs.assign(results_seen=True, design_id="late")
    seen = Observations(whole.all_runs, whole.curves, designs=late)
    assert not populations(seen).every, "the first plan is lost"
    needs = BY_NAME["census"].ask(seen).needs  # type: ignore[union-attr]
    for text in (needs, *provenance(seen).notes):
        assert "20 runs were stored before" in text
    declared = whole.designs.assign(origin="reconstructed", planned_at=late["planned_at"].max())
    (p,) = populations(Observations(whole.all_runs, whole.curves, designs=pd.concat([late, declared]))).every
    assert len(p) == 20
    some = Observations(whole.all_runs, whole.curves, designs=pd.concat([late, declared.iloc[:12]]))
    assert any("8 runs were stored before" in note for note in ask("census", some).notes)
    assert not populations(simulate(seeds, sweep(seeds, choice="unstated"))).every


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
