"""Repeats and branches of chosen seeds, and of seeds that nobody chose, where the truth is known."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from grok.analysis.figures import drawings
from grok.analysis.observations import Observations
from grok.analysis.populations import populations
from grok.analysis.statistics.proportions import share
from grok.analysis.statistics.repeatability import between_parents, mean_share, normal_scores, replication
from grok.analysis.studies import QUESTIONS
from grok.analysis.studies.branching import _brief, pairs
from grok.analysis.studies.conditions import decay_families
from grok.analysis.studies.repeatability import Test as KindTest
from grok.analysis.studies.repeatability import _between_streams, _by_margin, verdict
from grok.analysis.studies.repeats import Hit, Kind, Unit, repeats
from grok.store.designs import Purpose
from tests.analysis.simulate import (
    NUMERICS,
    Planned,
    Truth,
    ask,
    branch,
    census,
    crossed,
    curve,
    mixture_times,
    needs,
    repeat,
    run_ids,
    simulate,
    sweep,
)

STREAMS = ("split", "init", "order")
LENGTH = {"train.steps": 3000, "eval.every": 500}


def related(truths: Sequence[Truth], best: Sequence[int] = ()) -> list[Planned]:
    """Return the ``grok branch`` designs by which the runs that keep a master seed are its children."""
    own = {t.overrides["seed"]: n for n, t in enumerate(truths) if not any("seeds." in name for name in t.overrides)}
    children: dict[int, list[Truth]] = {}
    for truth in truths:
        if any("seeds." in name for name in truth.overrides):
            children.setdefault(own[truth.overrides["seed"]], []).append(truth)
    chosen = {n: its for n, its in children.items() if truths[n].overrides["seed"] in best}
    others = {n: its for n, its in children.items() if n not in chosen}
    return [branch(chosen, truths, "best"), branch(others, truths, "drawn")]


def branched(
    rng: np.random.Generator, parents: int, times: int, variance: dict[str, float], census: int = 0
) -> list[Truth]:
    """Return random seeds and their children; log time is a sum of effects of streams and of pairs of them."""
    known: dict[tuple[str, ...], float] = {}

    def log_time(values: dict[str, str]) -> float:
        total = np.log(6000.0)
        for name, var in variance.items():
            key = (name, *(values[s] for s in name.split("+") if s in STREAMS)) if name != "all" else (
                name, *values.values()
            )  # fmt: skip
            if key not in known:
                known[key] = float(rng.normal(0, np.sqrt(var)))
            total += known[key]
        return float(total)

    truths = []
    for seed in range(max(parents, census)):
        own = {s: f"{s} of {seed}" for s in STREAMS}
        truths.append(Truth({"seed": seed, **LENGTH}, np.exp(log_time(own))))
        if seed >= parents:
            continue
        for redrawn in [*itertools.combinations(STREAMS, 1), *itertools.combinations(STREAMS, 2)]:
            for k in range(times):
                new = {s: 1_000_000 + 1000 * seed + 100 * STREAMS.index(s) + 10 * len(redrawn) + k for s in redrawn}
                values = {**own, **{s: f"{s} {redrawn} {seed} {k}" for s in redrawn}}
                given = {"seed": seed, **LENGTH, **{f"seeds.{s}": v for s, v in new.items()}}
                truths.append(Truth(given, np.exp(log_time(values))))
    return truths


def test_a_second_generation_has_lines_and_a_class_of_its_own() -> None:
    streams = {"seeds.split": 21, "seeds.init": 22, "seeds.order": 23}
    parent = Truth({"seed": 0, **streams, **LENGTH}, 2000)
    children = [Truth({"seed": 0, **streams, "seeds.order": 30 + k, **LENGTH}, 2001 + k) for k in range(4)]
    late = itertools.count(9000)
    grandchildren = {
        1 + k: [
            Truth(
                {"seed": 0, **streams, "seeds.order": 30 + k, "seeds.split": 100 * k + i, **LENGTH},
                2100 + 10 * k + i if i < 2 else next(late),
            )
            for i in range(4)
        ]
        for k in range(3)
    }
    census = [Truth({"seed": s, **LENGTH}, 20_000 + s) for s in range(30)]
    truths = [parent, *children, *itertools.chain(*grandchildren.values()), *census]
    (first,) = run_ids([parent])
    lines = dict.fromkeys(run_ids(children), first)
    designs = [branch({0: children}, truths, "named"), branch(grandchildren, truths, "named", lines)]
    observations = simulate(truths, *designs)
    study = ask("branching", observations)
    shares = study.tables[0].frame
    assert shares["parents"].tolist() == ["3 descended", "1 named"] and shares["lines"].tolist() == [1, 1]
    assert shares["super"].tolist() == ["6 of 12", "4 of 4"]
    assert shares["of all such parents"].tolist()[0] == "50% (0 to 100)"
    assert {f.rows["line"].unique().tolist()[0] for f in study.families} == {first}
    assert "not computed" not in str(ask("branching", simulate(truths[:17], *designs)).notes), "no random seed"
    again = ask("repeatability", observations)
    assert all(f"{f.label}: {f.shown}".lower() in again.headlines[0].short.lower() for f in again.headlines)
    tests = {test.kind.name: test for test in again.tests}
    assert len(tests["split + init"].kind.candidates) == 1 and "init" not in tests
    test = tests["init + order"]
    assert len(test.kind.candidates) == 3 and test.result.mean is None
    more = [Truth({"seed": 0, **streams, "seeds.order": 60 + k, **LENGTH}, 9000) for k in range(2)]
    repeated = branch({1: more}, truths, "named", lines)  # the same kept seeds: one candidate
    study = ask("repeatability", simulate([*truths, *more], *designs, repeated))
    (test,) = (test for test in study.tests if test.kind.name == "split + init")
    assert test.units[["again", "of"]].to_numpy().tolist() == [[4, 6]] and test.result.mean is None


def test_a_child_counts_once_in_the_first_class_by_which_a_design_asked_for_it() -> None:
    census = [Truth({"seed": s, **LENGTH}, 1800 if s == 7 else 9000 + s) for s in range(30)]
    first = [Truth({"seed": 7, "seeds.order": 40 + k, **LENGTH}, 8000 + k) for k in range(4)]
    later = [Truth({"seed": 7, "seeds.order": 50 + k, **LENGTH}, 2000 + k) for k in range(5)]
    truths = [*census, *first, *later]
    apart = simulate(truths, branch({7: first}, truths, "best"), branch({7: later}, truths, "named"))
    shares = ask("branching", apart).tables[0].frame.set_index("parents")["super"]
    assert shares.to_dict() == {"1 best": "0 of 4", "1 picked": "5 of 5"}
    for earlier, kind in (("drawn", "random"), ("best", "best")):
        for designs in (("named", earlier), (earlier, "named")):
            both = simulate(truths, *(branch({7: [*first, *later]}, truths, choice) for choice in designs))
            study = ask("branching", both)
            shares = study.tables[0].frame.set_index("parents")["super"]
            assert shares.to_dict() == {f"1 {kind}": "5 of 9"}
            (strips,) = (d for d in drawings(study) if d.name == "redraw_strips")
            assert (strips.data["parent"] != "census").sum() == 9


@pytest.mark.parametrize("task", [{"task.modulus": 31, "train.batch_size": 128}, {}])
def test_children_seen_once_hold_nothing_and_are_super_on_the_diarys_task_alone(task: dict[str, Any]) -> None:
    once, word = {**task, "train.steps": 3000, "eval.every": 3000}, "above 98%" if task else "super"
    seeds = [Truth({"seed": s, **once}, 900 if s < 4 else 9000) for s in range(20)]
    late = {0: (False, True, True), 2: (False, False, False)}
    children = {
        n: [
            Truth({"seed": n, **once, "seeds.order": 90 + k}, 9000 if is_late else 900) for k, is_late in enumerate(its)
        ]
        for n, its in late.items()
    }
    study = ask("branching", simulate([*seeds, *itertools.chain(*children.values())], branch(children, seeds, "best")))
    row = study.tables[0].frame.iloc[0]
    assert row[[word, "reached and held"]].tolist() == ["4 of 6", "seen once"]
    assert f"4 of 6 with a new order, {mean_share([(1, 3), (3, 3)]).percent()} (2 best" in study.findings[0].text
    told = str([study.as_json(), [table.frame.columns.tolist() for table in study.tables]])
    assert ("super" in told) == (word == "super")


def test_what_a_pair_carries_is_recovered() -> None:
    variance = {"init": 0.02, "split+init": 0.05, "order": 0.01, "all": 0.02}
    study = ask("branching", with_designs(branched(np.random.default_rng(3), 60, 4, variance, census=400)))
    truth = {"order": 0.7, "init": 0.1, "split": 0.3, "split and order": 0.2, "init and order": 0.0}
    assert list(study.kept) == ["every"]
    for redrawn, kept in truth.items():
        found = study.kept["every"].shares[redrawn]
        assert found.low <= kept <= found.high and found.high - found.low < 0.9
    order_less_init = study.kept["every"].contrasts["order", "init"]
    assert order_less_init.low <= 0.6 <= order_less_init.high
    said = {f.label: f for f in study.findings}
    assert said["variance between parents, order less init redrawn"].estimate == order_less_init
    assert "more is kept with a new order" in said["variance between parents, order less init redrawn"].text


def test_lines_are_the_units_and_random_parents_stand_apart() -> None:
    variance = {"split+init": 0.05, "all": 0.05}
    study = ask("branching", with_designs(branched(np.random.default_rng(3), 16, 3, variance, census=60), range(7)))
    order = next(family.rows for family in study.families if family.redrawn == ("order",))
    assert order["kind"].value_counts().to_dict() == {"random": 27, "best": 21}

    def given(rows: pd.DataFrame) -> tuple[np.ndarray, ...]:
        lines = np.unique(rows["line"], return_inverse=True)[1]
        return rows["score"].to_numpy(), np.full(len(rows), "order"), lines, lines

    drawn = order[order["kind"] == "random"]
    assert study.kept["random"].shares["order"] == between_parents(*given(drawn)).shares["order"]
    assert study.kept["every"].shares["order"] == between_parents(*given(order)).shares["order"]
    census = study.census["accuracy"].to_numpy()
    assert order["parent_score"].to_numpy() == pytest.approx(
        pd.Series(normal_scores(census, census), study.census.index)[order["parent"]].to_numpy()
    )
    table = next(table for table in study.tables if table.name == "branching_kept").frame.set_index("redrawn")
    assert table.loc["order", "parents"] == 16 and table.loc["order", "children"] == 48
    assert table.loc["order", "variance between random parents"] == study.kept["random"].shares["order"].plain(2)
    del study.kept["chosen"]  # too few of them: what is told is of random parents, not of all
    assert "between random parents: order not told." in _brief(study, ["order"], {"random", "best"})


def test_what_chosen_parents_keep_is_their_childrens_distance() -> None:
    variance = {"split+init": 0.09, "all": 0.01}
    truths = branched(np.random.default_rng(11), 80, 3, variance, census=80)
    times = [t.time for t in truths if not any("seeds." in name for name in t.overrides)]
    best = np.argsort(times)[:12].tolist()
    rest = [t for t in truths if not any("seeds." in n for n in t.overrides) or t.overrides["seed"] in best]
    study = ask("branching", simulate(rest, *related(rest, best)))
    kept = study.kept["chosen"].shares
    assert kept["order"].low <= 0.9 <= kept["order"].high and kept["order"].low > 0.5
    assert kept["split"].low <= 0 <= kept["split"].high
    assert f"that their children keep: order {kept['order'].plain(2)}" in study.headlines[0].short
    assert study.kept["chosen"].contrasts["order", "split"].low > 0.4


def with_designs(truths: list[Truth], best: Sequence[int] = ()) -> Observations:
    return simulate(truths, *related(truths, best))


def again(truths: list[Truth], times: int, spread: float, rng: np.random.Generator) -> list[Truth]:
    """Repeats of ``truths`` with weights moved by an ulp, whose log times spread by ``spread``."""
    return [
        Truth(
            {**t.overrides, "perturb.ulps": 1, "seeds.perturb": r},
            t.time * float(np.exp(rng.normal(0, spread))),
            t.fast,
        )
        for t in truths
        for r in range(times)
    ]


def afresh(truths: list[Truth], times: int, rng: np.random.Generator, **redrawn: int) -> list[Truth]:
    """Repeats of ``truths`` whose time is drawn as any seed's; ``redrawn`` stream: its first seed."""
    return [
        Truth({**t.overrides, **{f"seeds.{s}": first + r for s, first in redrawn.items()}}, time, bool(fast))
        for t in truths
        for r, (time, fast) in enumerate(zip(*mixture_times(times, rng), strict=True))
    ]


def test_super_seeds_that_come_back_are_a_property_of_the_seed_and_redrawn_ones_are_not() -> None:
    rng = np.random.default_rng(11)
    seeds = census(300, rng)
    winners, ordinary = [t for t in seeds if t.time < 2000][:6], [t for t in seeds if not t.fast][:6]
    repeats = again(winners, 8, 0.01, rng)
    others = again(ordinary, 8, 0.01, rng) + afresh(winners + ordinary, 8, rng, order=5000)
    redrawn = others[48:]
    families = [
        repeat(own, redrawn[8 * n : 8 * n + 8], "order", "best" if own in winners else "drawn")
        for n, own in enumerate(winners + ordinary)
    ]
    store = simulate(seeds + repeats + others, *families)
    study = ask("repeatability", store)
    ulp, order = study.tests
    assert (ulp.name, order.name) == ("ulp", "split + init kept")
    assert (ulp.result.pooled.value, ulp.result.pooled.n) == (1, 48)
    lowest = min(curve(t, [3000])[0].val_acc for t in repeats)
    assert f"{lowest:.1%} at least" in study.findings[0].text
    controls = f"0 of 48 repeats of 6 seeds, {mean_share([(0, 8)] * 6).percent(0)} with the seed as the unit"
    assert controls in study.findings[0].text, "the count, and which of its two intervals this is"
    assert all(c.base is not None and c.base.n == 300 for c in ulp.result.candidates)
    assert {own for unit in ulp.kind.candidates for own in unit.owns} <= set(ulp.kind.candidates[0].others)
    assert "no sign" in verdict(order)


@pytest.mark.parametrize(("beside", "elsewhere"), [(0, 0), (200, 0), (0, 2)])
def test_runs_with_equal_kept_seeds_are_one_candidate_and_not_their_own_comparison(beside: int, elsewhere: int) -> None:
    """A lucky split: a third of its init seeds are super, whichever they are, and 2% of random seeds.

    ``elsewhere``: number of controls of another scan, so that not all other seeds have the candidates' order.
    """

    def run(hit: bool, **seeds: int) -> Truth:
        given = {name.replace("_", "."): seed for name, seed in seeds.items()}
        return Truth({**given, **LENGTH}, 2000.0 if hit else 9000.0)

    scan = [run(s % 3 == 0, seed=54, seeds_init=s) for s in range(60)]
    random = [run(s < 4, seed=1000 + s) for s in range(beside)]
    larger = [run(False, seed=55, seeds_init=s) for s in range(0 if beside else 61)]
    larger[10:20] = [Truth(truth.overrides, 3100) for truth in larger[10:20]]  # fast: none is super in this scan
    children: list[Truth] = []
    designs = []
    for n, own in enumerate([*scan[0:24:3], *scan[1:22:3], scan[27], *larger[:elsewhere]]):
        (seed, init), choice = (own.overrides[name] for name in ("seed", "seeds.init")), "drawn" if n > 7 else "best"
        for change, its in (
            ("init", [run(k == 0, seed=seed, seeds_init=5000 + 3 * n + k) for k in range(3)]),
            ("split", [run(n < 8 and k == 0, seed=seed, seeds_init=init, seeds_split=9 * n + k) for k in range(6)]),
        ):
            designs.append(repeat(own, its, change, choice))
            children += its
    study = ask("repeatability", simulate([*scan, *random, *larger, *children], *designs))
    same, init = ({test.kind.name: test for test in study.tests}[name] for name in ("split + order", "init + order"))
    (unit,) = same.kind.candidates
    assert len(unit.owns) == 16 and same.kind.hit.words == "super" and len(same.kind.controls) == elsewhere / 2
    assert set(unit.owns).isdisjoint(unit.others), "candidates are among the other seeds only where a draw had them"
    assert same.units[["again", "of"]].to_numpy().tolist() == [[16, 48]]
    assert same.result.mean is None and same.result.candidates[0].base == (share(4, 200) if beside else None)
    assert ("more often than other seeds" in verdict(same)) == (beside > 0)
    assert init.units["again"].tolist() == [*[1] * 8, 0] and len(init.kind.controls) == 7 + elsewhere
    assert {c.base.n for c in init.result.candidates if c.base} == {beside or 8 + elsewhere}
    assert init.kind.shared == ["order"] and ("(with this order" in verdict(init)) == (not beside + elsewhere)
    said = next(f.text for f in study.findings if f.label.endswith("init + order kept"))
    assert "For all seeds with this order seed chosen like these" in said
    assert ("random seeds" if beside else "of seeds drawn by lot from the rest, one repeat of each") in said


def test_chosen_seeds_under_another_setting_are_repeats_and_no_sample_of_it() -> None:
    """Super seeds without weight decay: the choice was made with it, so a comparison of the two would be biased."""
    rng = np.random.default_rng(11)
    seeds = census(300, rng)
    winners = [t for t in seeds if t.time < 2000][:6]
    other = {"optim.weight_decay": 0.0}
    without = [Truth({**t.overrides, **other}, 3 * t.time) for t in winners]
    sample = [Truth({**t.overrides, **other}, 3 * t.time, t.fast) for t in seeds[40:50]]
    runs = [*seeds, *without, *sample]
    repeats = [
        repeat(own, [again], "optim.weight_decay=0.0", "best") for own, again in zip(winners, without, strict=True)
    ]
    observations = simulate(runs, *repeats)
    (family,) = decay_families(observations)
    assert [(value, len(rows)) for value, rows in family.groups.items()] == [("0.1", 10), ("0", 10)]
    assert sorted(len(p) for p in populations(observations).every) == [10, 300]
    study = ask("repeatability", observations)
    (test,) = study.tests
    assert (test.kind.name, [c.base for c in test.result.candidates]) == ("optim.weight_decay=0.0", [None] * 6)
    assert (test.result.pooled.value, test.result.pooled.n) == (0, 6)
    assert study.about == "optim.weight_decay=0.1"
    both = simulate(runs, sweep([*seeds, *without, *sample]), *repeats)
    assert sorted(len(p) for p in populations(both).every) == [16, 300], "a sweep of all seeds asked for them, too"
    (test,) = ask("repeatability", both).tests
    assert (test.result.pooled.value, test.result.pooled.n) == (0, 6)


@pytest.mark.parametrize(("path", "kind"), [("auto", "processor"), ("onednn", "path")])
def test_equal_bits_are_no_repeat_and_another_processor_is_one(path: str, kind: str) -> None:
    rng = np.random.default_rng(13)
    seeds = [*census(60, rng), Truth({"seed": 60, "train.steps": 3000, "eval.every": 100}, 1900, True)]
    winner = seeds[-1]
    again = {**winner.overrides, "replicate": 1, "numerics.path": path}
    other = [Truth(again, winner.time, True, numerics=f"device=cpu;model=other;products={path}")]
    shard = simulate([*seeds, *other])
    (found,) = ask("repeatability", shard).tests
    assert (found.name, found.result.pooled.n) == (kind, 1)
    runs = shard.all_runs.assign(weights_hash="equal")
    gone = Observations(runs, shard.curves, designs=shard.designs)
    assert "of 1 repeated ones none is" in needs("repeatability", gone)
    asked = next(question for question in QUESTIONS if question.name == "repeatability").ask(gone)
    assert "sweep=census" in asked.command, "the same seeds once more would not help"


def test_a_seed_that_grok_repeat_trained_longer_stays_in_the_census() -> None:
    seeds = [Truth({"seed": s, **LENGTH}, 2000.0 if s < 4 else 9000.0) for s in range(50)]
    longer = [Truth({"seed": s, "train.steps": 20_000, "eval.every": 500}, 2000.0) for s in range(4)]
    (parents, again) = seeds[:4], longer
    repeats = [repeat(own, [run], "train.steps=20000", "best") for own, run in zip(parents, again, strict=True)]
    store = simulate(seeds + longer, *repeats)
    shares = ask("census", store).shares
    assert (shares["super"].n, shares["super"].value) == (50, 4 / 50)


def test_cells_of_a_cross_beside_repeated_seeds_are_neither_candidates_nor_controls() -> None:
    length = {"train.steps": 3000, "eval.every": 100}
    truths = [Truth({"seed": i, **length}, 2000.0 if i < 3 else 9000.0) for i in range(30)]
    again = [{"seed": s, "perturb.ulps": 1, "seeds.perturb": k, **length} for s in (0, 1, 20, 21) for k in range(4)]
    truths += [Truth(words, 2000.0 if words["seed"] < 2 else 9000.0) for words in again]
    for split, init, order in itertools.product(range(4), repeat=3):
        for replicate in range(2):
            seeds = {"seeds.split": 70 + split, "seeds.init": 80 + init, "seeds.order": 90 + order}
            kicked = {"perturb.ulps": 1, "seeds.perturb": replicate}
            truths.append(Truth({**seeds, **kicked, **length}, 2000.0 if init == 0 else 9000.0))
    (test,) = ask("repeatability", simulate(truths)).tests
    assert [unit.name for unit in test.kind.candidates] == ["seed 0", "seed 1"]
    assert sorted(unit.name for unit in test.kind.controls) == ["seed 20", "seed 21"]


def test_runs_a_unit_apart_are_compared_at_every_step_for_candidates_and_for_seeds_that_nobody_chose() -> None:
    rng = np.random.default_rng(21)
    seeds = [Truth({"seed": s, **LENGTH}, 2000.0 if s < 8 else 9000.0) for s in range(60)]
    repeats = again(seeds[:8], 2, 0.1, rng)
    repeats[0].status = "diverged"  # it and its only sibling have no distance, and others keep theirs
    cells = crossed((2, 2, 2), rng, {"chaos": 1e-4})
    cells = [Truth({**t.overrides, **LENGTH}, 3 * t.time) for t in cells]
    study = ask("repeatability", simulate(seeds + repeats + cells))
    assert "1 of these repeats diverged" in study.findings[0].text
    drift = next(t.frame for t in study.tables if t.name == "divergence").set_index(["seeds", "step"])
    for name, runs in (("candidates", repeats[2:]), ("crossed cells", cells)):
        for step in (1000, 2000, 3000):
            loss = np.log([curve(t, [step])[0].val_loss for t in runs]).reshape(-1, 2)
            assert drift.loc[(name, step), "median"] == pytest.approx(np.median(np.abs(loss[:, 0] - loss[:, 1])))
            assert drift.loc[(name, step), "n"] == len(loss)
    known = drift[["low", "high"]].notna().all(axis=1)
    assert set(known[known].index.get_level_values("seeds")) == {"candidates"}, "cells share their streams"
    assert (drift["lowest"] <= drift["median"]).all() and (drift["median"] <= drift["highest"]).all()


@pytest.mark.parametrize("n", [1, 5, 6])
def test_the_distance_of_fewer_than_six_seeds_has_no_interval(n: int) -> None:
    seeds = [Truth({"seed": s, **LENGTH}, 2000.0 if s < n else 9000.0) for s in range(60)]
    study = ask("repeatability", simulate(seeds + again(seeds[:n], 2, 0.1, np.random.default_rng(22))))
    drift = next(t.frame for t in study.tables if t.name == "divergence")
    assert set(drift["n"]) == {n}
    assert drift["low"].notna().all() == drift["high"].notna().all() == (n == 6)
    shown = next(f.shown for f in study.findings if f.label == "divergence by step")
    last = drift.iloc[-1]
    low, high = ("low", "high") if n == 6 else ("lowest", "highest")
    ends = f" ({last[low]:.1g} to {last[high]:.1g})" * (n > 1)
    assert shown.endswith(f"{last['median']:.1g}{ends} at step 3,000")
    assert ("range" in shown) == (1 < n < 6)


@pytest.mark.parametrize(("lost", "moved"), [(0, ()), (1, ()), (1, (1, 2)), (1, (0, 1, 2, 3))])
def test_only_a_repeat_that_is_none_speaks_for_chance_or_the_processor(lost: int, moved: tuple[int, ...]) -> None:
    seeds = [Truth({"seed": s, **LENGTH}, 2000.0 if s < 2 else 9000.0) for s in range(40)]
    repeats = [Truth({"seed": 0, "perturb.ulps": 1, "seeds.perturb": k, **LENGTH}, 2000.0) for k in range(4)]
    for k, again in enumerate(repeats):
        again.time, again.numerics = 9000.0 if k < lost else 2000.0, "device=cpu;model=b" if k in moved else NUMERICS
    texts = " ".join(finding.text for finding in ask("repeatability", simulate(seeds + repeats)).findings)
    assert ("chance matters, too" in texts) == (lost and 0 not in moved)
    assert ("not all computed alike" in texts) == bool(moved)
    for words in ("chance or the processor matters, too", "3 of 4 on another cpu"):
        assert (words in texts) == (0 in moved), "the one that is none"


def test_a_recipient_of_layers_is_no_ordinary_control() -> None:
    seeds = [Truth({"seed": s, **LENGTH}, {7: 2000.0, 8: 2900.0}.get(s, 9000.0 + s)) for s in range(40)]
    again = [
        Truth({"seed": s, "perturb.ulps": 1, "seeds.perturb": k, **LENGTH}, 2000.0 if s in (7, 8) else 9500.0)
        for s in (7, 8, 20)
        for k in range(4)
    ]
    named = [(t, Purpose(role="cell", unit={"recipient": 8, "donor": 900, "exchanged": []})) for t in again[4:8]]
    named.insert(0, (seeds[8], Purpose(role="recipient", choice="named")))
    store = simulate(seeds + again, Planned("layers", named))
    (test,) = ask("repeatability", store).tests
    assert [unit.name for unit in test.kind.candidates] == ["seed 7"]
    assert [unit.name for unit in test.kind.controls] == ["seed 20"]


def test_seeds_that_were_listed_after_their_results_are_no_ordinary_controls() -> None:
    seeds = [Truth({"seed": s, **LENGTH}, 2000.0 if s < 3 else 9000.0) for s in range(30)]
    again = {s: [Truth({"seed": s, "perturb.ulps": 1, "seeds.perturb": k, **LENGTH}, seeds[s].time) for k in range(4)]
             for s in (1, 20)}  # fmt: skip
    listed = [repeat(seeds[s], its, "ulp", "given") for s, its in again.items()]
    whole = simulate([*seeds, *again[1], *again[20]], *listed)
    (test,) = ask("repeatability", whole).tests
    assert [unit.name for unit in test.kind.candidates] == ["seed 1"]
    assert not test.kind.controls
    lost = whole.designs[whole.designs["role"] != "member"]
    found = repeats(Observations(whole.all_runs, whole.curves, designs=lost))
    assert found.empty and found.attrs["left"] == 8, "nobody knows when they were named"


def test_repeats_of_named_seeds_alone_do_not_tell_what_is_rare() -> None:
    named = [Truth({"seed": s, "optim.lr": 0.01}, 900.0 + s) for s in range(10)]
    kicked = again(named, 4, 0.01, np.random.default_rng(1))
    assert "a census of random seeds" in needs("repeatability", simulate(kicked))
    seeds = [Truth({"seed": s, **LENGTH}, 2000.0 if s < 3 else 9000.0) for s in range(30)]
    others = again(seeds[1:2], 4, 0.01, np.random.default_rng(1))  # of another setting, which has a census
    both = ask("repeatability", simulate([*seeds, *others, *kicked], repeat(seeds[1], others, "ulp", "best")))
    assert len(both.tests) == 1 and any("optim.lr=0.01 are left out" in note for note in both.notes)


def test_a_part_of_a_plan_that_a_later_choice_had_trained_is_of_the_choice() -> None:
    seeds = [Truth({"seed": s, **LENGTH}, 9000.0) for s in range(12)]
    of = {s: [Truth({"seed": s, "seeds.order": 10 * s + k, **LENGTH}, 9000.0) for k in range(2)] for s in range(3)}
    plans = branch(of, seeds, "drawn"), branch({0: of[0]}, seeds, "named")
    for trained, kinds in (((0, 1), {"picked"}), ((0, 1, 2), {"picked", "random"})):
        found = pairs(simulate([*seeds, *(child for s in trained for child in of[s])], *plans))
        assert set(found["kind"][found["seed"] == 0]) == kinds and set(found["kind"][found["seed"] == 1]) == {"random"}


def by_hand(name: str, hits: np.ndarray, own: np.ndarray | None = None) -> KindTest:
    """Return one kind of repeat of units, each a line, whose repeats hit as ``hits`` (units, repeats) says."""
    runs = np.array([[f"{name} {u} {r}" for r in range(hits.shape[1])] for u in range(len(hits))])
    owns = [f"own {u}" for u in range(len(hits))]
    index = pd.Index([*runs.ravel(), *owns])
    own = np.full(len(owns), 0.99) if own is None else own
    accuracy = pd.Series(np.r_[np.where(hits, 0.99, 0.1).ravel(), own], index)
    later = pd.Series(np.r_[hits.ravel(), np.ones(len(owns))].astype(float), index)
    judged = pd.DataFrame({"accuracy": accuracy, "held": later, "generalised": np.where(later > 0, 2000.0, np.inf)})
    hit = Hit("super", "validation accuracy", (accuracy > 0.98).astype(float), judged)
    fixed = tuple(s for s in ("split", "init", "order") if s != name)
    units = [Unit(o, dict.fromkeys(STREAMS, u), [o], list(runs[u]), [], "", o) for u, o in enumerate(owns)]
    table = pd.DataFrame({"again": hits.sum(1), "of": hits.shape[1]})
    kind = Kind("ulp" if name == "ulp" else " + ".join(fixed), fixed, name, "", hit, units, [], pd.DataFrame())
    counts = [(int(again), int(of)) for again, of in table.to_numpy()]
    return KindTest(kind, replication(counts, [(18, 2073)] * len(counts)), table)


def test_streams_whose_redraws_hit_alike_are_not_told_apart() -> None:
    """Most hits of one stream come from one line: as many independent runs would differ clearly."""
    one_line, none = np.zeros((22, 4), bool), np.zeros((22, 4), bool)
    one_line[:2] = True
    (said,) = _between_streams([by_hand("order", one_line), by_hand("split", none), by_hand("init", none)])
    assert "8 of 88 with a new order" in said.text and "do not tell the streams apart" in said.text
    many = np.zeros((22, 4), bool)
    many[:14, 0] = True
    (said,) = _between_streams([by_hand("order", many), by_hand("split", none), by_hand("init", none)])
    assert "differ between the streams" in said.text
    every = np.ones((4, 4), bool)
    for n, words in ((4, "differ between the streams"), (2, "cannot tell the streams apart")):
        clear = by_hand("split", ~every[:n]), by_hand("order", every[:n]), by_hand("init", every[:n])
        assert words in _between_streams(clear)[0].text
    assert not _between_streams([by_hand("order", many)])


def test_repeats_are_given_by_the_margin_of_the_own_run() -> None:
    hits = np.ones((8, 4), bool)
    hits[:4, :2] = False
    own = np.array([0.981, 0.982, 0.983, 0.985, 0.998, 0.999, 1.0, 1.0])
    (said,) = _by_margin(by_hand("ulp", hits, own=own))
    assert said.shown == "8 of 16 where it was up to 99.15%; 16 of 16 where it was above 99.15%"
    some = by_hand("ulp", np.arange(8) < np.array([[8]] * 3 + [[5]] * 5))
    assert "which is clear for 3 of 8 candidates alone" in verdict(some), "five of eight may be below a half"
    assert not _by_margin(by_hand("order", hits, own=own)), "a redrawn stream has its own scatter"
    assert not _by_margin(by_hand("ulp", hits, own=np.full(8, 0.99))), "no margin divides equal ones"
