"""Branching: families are found, what kept streams hand on is recovered, and intervals cover."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from analysis.observations import Observations
from analysis.populations import populations
from analysis.statistics.repeatability import between_parents, normal_scores
from analysis.studies import QUESTIONS, Missing, ask
from analysis.studies.branching import Branching
from tests.analysis.simulate import Planned, Truth, branch, run_ids, simulate

STREAMS = ("split", "init", "order")


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
    shared = {"train.steps": 3000, "eval.every": 500}
    for seed in range(max(parents, census)):
        own = {s: f"{s} of {seed}" for s in STREAMS}
        truths.append(Truth({"seed": seed, **shared}, np.exp(log_time(own))))
        if seed >= parents:
            continue
        for redrawn in [*itertools.combinations(STREAMS, 1), *itertools.combinations(STREAMS, 2)]:
            for k in range(times):
                new = {s: 1_000_000 + 1000 * seed + 100 * STREAMS.index(s) + 10 * len(redrawn) + k for s in redrawn}
                values = {**own, **{s: f"{s} {redrawn} {seed} {k}" for s in redrawn}}
                given = {"seed": seed, **shared, **{f"seeds.{s}": v for s, v in new.items()}}
                truths.append(Truth(given, np.exp(log_time(values))))
    return truths


def test_a_second_generation_has_lines_and_a_class_of_its_own() -> None:
    """Three children are parents in their turn: for all such parents they are one draw, not three."""
    shared = {"train.steps": 3000, "eval.every": 500}
    streams = {"seeds.split": 21, "seeds.init": 22, "seeds.order": 23}
    parent = Truth({"seed": 0, **streams, **shared}, 2000)
    children = [Truth({"seed": 0, **streams, "seeds.order": 30 + k, **shared}, 2001 + k) for k in range(4)]
    late = itertools.count(9000)
    grandchildren = {
        1 + k: [
            Truth(
                {"seed": 0, **streams, "seeds.order": 30 + k, "seeds.split": 100 * k + i, **shared},
                2100 + 10 * k + i if i < 2 else next(late),
            )
            for i in range(4)
        ]
        for k in range(3)
    }
    census = [Truth({"seed": s, **shared}, 20_000 + s) for s in range(30)]
    truths = [parent, *children, *itertools.chain(*grandchildren.values()), *census]
    (first,) = run_ids([parent])
    lines = dict.fromkeys(run_ids(children), first)
    designs = [branch({0: children}, truths, "named"), branch(grandchildren, truths, "named", lines)]
    observations = simulate(truths, *designs)
    study = ask("branching", observations)
    shares = study.tables[0].frame
    assert shares["parents"].tolist() == ["3 descended", "1 named"] and shares["lines"].tolist() == [1, 1]
    assert shares["super"].tolist() == ["6 of 12", "4 of 4"]
    assert shares["of these parents"].tolist()[0] == "50% (21 to 79)"
    assert shares["of all such parents"].tolist()[0] == "50% (0 to 100)"
    assert {f.rows["line"].unique().tolist()[0] for f in study.families} == {first}
    tests = {test.kind.name: test for test in ask("repeatability", observations).tests}
    assert len(tests["split + init"].kind.candidates) == 1 and "init" not in tests
    test = tests["init + order"]
    assert len(test.kind.candidates) == 3 and test.result.mean is None
    assert {unit.line for unit in test.kind.candidates} == {first}


def test_a_child_counts_in_every_class_by_which_a_design_asked_for_it() -> None:
    """A best parent that is super is named later: it does not leave its class, and its new children do not enter it."""
    shared = {"train.steps": 3000, "eval.every": 500}
    census = [Truth({"seed": s, **shared}, 1800 if s == 7 else 9000 + s) for s in range(30)]
    first = [Truth({"seed": 7, "seeds.order": 40 + k, **shared}, 8000 + k) for k in range(4)]
    later = [Truth({"seed": 7, "seeds.order": 50 + k, **shared}, 2000 + k) for k in range(5)]
    truths = [*census, *first, *later]
    apart = simulate(truths, branch({7: first}, truths, "best"), branch({7: later}, truths, "named"))
    shares = ask("branching", apart).tables[0].frame.set_index("parents")["super"]
    assert shares.to_dict() == {"1 best": "0 of 4", "1 picked": "5 of 5"}
    for designs in (("named", "drawn"), ("drawn", "named")):
        both = simulate(truths, *(branch({7: [*first, *later]}, truths, choice) for choice in designs))
        study = ask("branching", both)
        shares = study.tables[0].frame.set_index("parents")["super"]
        assert shares.to_dict() == {"1 random": "5 of 9", "1 picked": "5 of 9"}
        assert study.scope.startswith("9 children of 1 parents")


@pytest.mark.parametrize("lost", ["all", "children"])
def test_children_without_rows_are_in_no_class_and_are_said(lost: str) -> None:
    truths = branched(np.random.default_rng(4), 8, 2, {"all": 0.1}, census=16)
    whole = simulate(truths, *related(truths, best=(0, 1)))
    rows = whole.designs if lost == "all" else whole.designs[whole.designs["kind"] == "branch"]
    children = whole.designs.loc[whole.designs["role"] == "child", "run_id"]
    dropped = rows.index if lost == "all" else rows.index[rows["run_id"].isin(children[:12])]
    left = Observations(whole.all_runs, whole.curves, designs=whole.designs.drop(index=dropped))
    answer = next(q for q in QUESTIONS if q.name == "branching").ask(left)
    if lost == "all":
        assert isinstance(answer, Missing)
        assert f"What {len(truths)} runs were for is unknown" in answer.needs
        assert not populations(left).every
    else:
        assert isinstance(answer, Branching)
        assert sum(len(f.rows) for f in answer.families) == len(children) - 12
        assert any("What 12 runs were for is unknown" in note for note in answer.notes)


def test_what_a_pair_carries_is_recovered() -> None:
    """All parents are random: the variance between them is the share that the kept streams decide."""
    variance = {"init": 0.02, "split+init": 0.05, "order": 0.01, "all": 0.02}
    study = ask("branching", with_designs(branched(np.random.default_rng(3), 60, 4, variance, census=400)))
    truth = {"order": 0.7, "init": 0.1, "split": 0.3, "split and order": 0.2, "init and order": 0.0}
    assert list(study.kept) == ["every"]
    for redrawn, share in truth.items():
        found = study.kept["every"].shares[redrawn]
        assert found.low <= share <= found.high and found.high - found.low < 0.9
    order_less_init = study.kept["every"].contrasts["order", "init"]
    assert order_less_init.low <= 0.6 <= order_less_init.high
    said = {f.label: f for f in study.findings}
    assert said["variance between parents, order less init redrawn"].estimate == order_less_init
    assert "more is kept with a new order" in said["variance between parents, order less init redrawn"].text
    assert "random parents" in said["variance between parents, order redrawn"].text


def test_lines_are_the_units_and_random_parents_stand_apart() -> None:
    """The kinds of parents are no mixture: random ones alone, chosen ones by their mean distance, all as chosen."""
    variance = {"split+init": 0.05, "all": 0.05}
    study = ask("branching", with_designs(branched(np.random.default_rng(3), 16, 3, variance, census=60), range(7)))
    order = next(family.rows for family in study.families if family.redrawn == ("order",))
    assert order["kind"].value_counts().to_dict() == {"random": 27, "best": 21}

    def given(rows: pd.DataFrame) -> tuple[np.ndarray, ...]:
        lines = np.unique(rows["line"], return_inverse=True)[1]
        return rows["score"].to_numpy(), np.full(len(rows), "order"), lines, lines

    drawn, best = order[order["kind"] == "random"], order[order["kind"] == "best"]
    assert study.kept["random"].shares["order"] == between_parents(*given(drawn)).shares["order"]
    assert study.kept["every"].shares["order"] == between_parents(*given(order)).shares["order"]
    census = study.census["accuracy"].to_numpy()
    assert order["parent_score"].to_numpy() == pytest.approx(
        pd.Series(normal_scores(census, census), study.census.index)[order["parent"]].to_numpy()
    )
    assert best["parent"].nunique() == 7
    table = next(table for table in study.tables if table.name == "branching_kept").frame.set_index("redrawn")
    assert table.loc["order", "parents"] == 16 and table.loc["order", "children"] == 48
    assert table.loc["order", "variance between random parents"] == study.kept["random"].shares["order"].plain(2)


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
    assert study.kept["chosen"].contrasts["order", "split"].low > 0.4


def with_designs(truths: list[Truth], best: Sequence[int] = ()) -> Observations:
    return simulate(truths, *related(truths, best))
