"""Fate: families that change in mid-run with a known half-fate step, and what counts them."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, special

from grok.analysis.figures import drawings
from grok.analysis.page import Runs, encode_chart
from grok.analysis.populations import populations
from grok.analysis.purposes import asked
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.statistics.halfway import halfway, isotonic
from grok.analysis.studies.fate import FORWARD, MOVED, REVERSE, START, Fate, equal_bits
from grok.store.designs import Purpose
from tests.analysis.simulate import Planned, Truth, ask, needs, run_ids, simulate, sweep

STEPS = (49, 98, 196, 392, 784, 1568)
SHARED = {"eval.every": 250}
EARLY, LATE = 2000, 9000
Unit = dict[str, Any]


def families(
    rng: np.random.Generator, parents: int, half: float, ordinary: int = 2, orders: int = 2,
    sizes: tuple[int, ...] = (1,), steps: tuple[int, ...] = STEPS,
) -> tuple[list[Truth], list[Planned]]:  # fmt: skip
    """Return parents, their children in both directions and their designs, as the script of the evidence plans them.

    A child of a super parent is super in one of four with another order from the start, in all if it is moved by one
    ulp, and in between by a logistic curve in log steps: forward around ``half``, reverse around twice as late.
    """
    truths: list[Truth] = []
    rows: list[tuple[Truth | str, Purpose]] = []
    of_parents = []
    for seed in range(parents + ordinary):
        early = seed < parents
        parent = Truth({"seed": seed, **SHARED}, EARLY if early else LATE)
        (line,) = run_ids([parent])
        of_parents.append(parent)
        named: dict[str, Any] = {"choice": "named", "line": line}
        rows.append((parent, Purpose(role="parent", unit={"seed": seed}, **named)))

        def child(share: float, unit: Unit, over: Unit, line: str = line, early: bool = early, **of: Any) -> None:
            time = (EARLY if early and rng.random() < share else LATE) * float(rng.uniform(0.99, 1.01))
            truths.append(Truth({"seed": unit["seed"], **SHARED, **over}, time))
            of = {"redrawn": ("order",), "choice": "named", "line": line, **of}
            rows.append((truths[-1], Purpose(role="child", unit=unit, parent_run_id=line, **of)))

        for k in range(orders):
            other, unit = 1000 + 10 * seed + k, {"seed": seed, "repeat": k}
            child(0.25, unit, {"seeds.order": other})
            for step in steps:
                at, here = {"switch.step": step}, {**unit, "step": step}
                forward, reverse = 0.25 + 0.75 * special.expit(np.log([step / half, 2 * half / step]) / 0.4)
                child(forward, here, {**at, "switch.order": other}, from_step=step)
                back = {**at, "seeds.order": other, "switch.order": 5 + seed}
                child(reverse, {**here, "reverse": True}, back, from_step=step)
                for size in sizes:
                    moved = {**at, "switch.ulps": size, "seeds.perturb": k}
                    unit_of = {**here, "kind": "ulp", "ulps": size}
                    child(float(size < 2**10), unit_of, moved, redrawn=(), from_step=step)
    return [*of_parents, *truths], [sweep(of_parents, choice="named"), Planned("branch", rows)]


Families = tuple[list[Truth], list[Planned]]


@pytest.fixture(scope="module")
def planned() -> Families:
    return families(np.random.default_rng(5), 8, 300.0)


@pytest.fixture(scope="module")
def study(planned: Families) -> Fate:
    answer = ask("fate", simulate(planned[0], *planned[1]))
    assert isinstance(answer, Fate)
    return answer


def test_half_fate_is_recovered_in_both_directions_and_super_parents_stand_apart(study: Fate) -> None:
    assert set(study.rows["change"]) == {START, FORWARD, REVERSE, MOVED}
    assert study.rows.groupby("parents")["parent"].nunique().to_dict() == {"super": 8, "ordinary": 2}
    for change, truth in ((FORWARD, 300), (REVERSE, 600)):
        for measure in ("super", "reached and held", "distance"):
            place = study.halves["super", measure, change].place
            assert 0 < place.low <= truth <= place.high < math.inf, (change, measure, place)
    places = [study.halves["super", "super", change].place for change in (FORWARD, REVERSE)]
    assert [finding.estimate for finding in study.headlines] == places
    assert not [key for key in study.halves if key[0] == "ordinary"]  # two lines have no interval
    (drawing,) = drawings(study)
    assert len(drawing.data) == 1 + 3 * len(STEPS)  # of super parents alone
    json.dumps([encode_chart(chart, Runs({})) for chart in drawing.charts])  # as the page takes it
    halves = study.tables[0].frame
    assert set(halves.loc[halves["parents"] == "ordinary", "half-fate step"]) == {"cannot be told"}


def test_drawn_cells_tell_when_the_loss_does_and_what_a_screen_costs(planned: Families) -> None:
    of = [
        Truth({"seeds.split": i % 10, "seeds.init": i // 10, "seeds.order": 7 * i % 10, **SHARED}, early)
        for i, early in enumerate([EARLY, EARLY + 40, EARLY + 80, *[LATE] * 57])
    ]
    cells = Planned("crossed", [(truth, Purpose(role="cell", unit={"repeat": 0}, choice="drawn")) for truth in of])
    answer = ask("fate", simulate([*planned[0], *of], *planned[1], cells))
    (table,) = (t.frame.set_index("step") for t in answer.tables if t.name == "fate_recognised")
    assert table.iloc[:, 0].loc[[250, 1500]].tolist() == ["58, 59, 60", "1, 2, 3"]
    assert not table.index.isin([0, 3000]).any()
    (found,) = (f for f in answer.findings if f.label == "screen on fresh seeds")
    assert found.shown == "3 of 3"
    assert f"at {60 * 1575 / 3:,.0f} (" in found.text.replace("32,000", "31,500")  # two digits are shown
    assert f"trains {60 * 3000 / 3:,.0f} (" in found.text


def test_two_tags_are_alike_if_every_run_that_both_trained_has_equal_weights() -> None:
    columns = ["trajectory_id", "steps", "numerics", "weights_hash"]
    rows = [("one", 9, "a", "1"), ("one", 9, "b", "1"), ("one", 9, "c", "1"), ("own", 9, "d", "5")]
    rows += [("two", 9, "a", "2"), ("two", 9, "b", "2"), ("two", 9, "c", "3"), ("two", 5, "b", "4")]
    observations = SimpleNamespace(observed=pd.DataFrame(rows, columns=columns))
    assert equal_bits(observations) == {frozenset("ab")}  # type: ignore[arg-type]


def test_no_run_that_changes_in_mid_run_is_a_random_seed(planned: Families) -> None:
    truths, designs = planned
    switched = [truth for truth in truths if "switch.step" in truth.overrides]
    seeds = [Truth({"seed": k, **SHARED}, LATE + 20 * (k - 130)) for k in range(100, 160)]
    own = [truth for truth in truths if set(truth.overrides) == {"seed", *SHARED}]
    store = simulate([*truths, *seeds], sweep([*seeds, *own], choice="drawn"), *designs, sweep(switched[:40]))
    counted = {run for population in populations(store).every for run in population.rows.index}
    assert counted == set(run_ids([*seeds, *own])) == set(asked(store).index)
    assert ask("census", store).shares["super"].n == len(counted)
    scores = ask("fate", store).rows.groupby(["parents", "super"])["score"].median()
    assert scores["super", True] > 0 > scores["ordinary", False]  # ranked among these seeds


def test_what_cannot_be_told_is_said(planned: Families) -> None:
    truths, designs = planned
    few = simulate([truth for truth in truths if truth.overrides["seed"] in (0, 1, 2, 8)], *designs)
    assert [finding.shown for finding in ask("fate", few).headlines] == ["cannot be told"] * 2
    plain = simulate([truth for truth in truths if "switch.step" not in truth.overrides], *designs)
    assert "the store has none" in needs("fate", plain)


def test_a_curve_that_crosses_beyond_its_ends_says_so_and_more_lines_do_not_help() -> None:
    steps, ones = np.array([49.0, 98.0, 196.0]), np.ones((6, 3))
    start = np.array([0.0, 0.5, 0.0, 0.5, 0.0, 0.0])
    late = halfway(steps, np.tile(start[:, None], 3), start, ones, np.random.default_rng(0))
    assert late.place.value == late.place.high == math.inf and late.between == (196, math.inf)
    assert late.lines_for(200) is None and late.shown("step") == "after step 196 (196 and above)"
    early = halfway(steps, ones, start, ones, np.random.default_rng(0))
    assert early.place.value == early.place.low == 0 and early.shown("step") == "before step 49 (0 to 49)"
    falls = halfway(steps, ones, start, ones, np.random.default_rng(0), falls=True)
    assert falls.shown("step") == late.shown("step")
    sizes, falling = np.array([1, 1024, 1048576.0]), np.tile([1, 0.8, 0.2], (6, 1))
    wide = halfway(sizes, falling, np.zeros(6), ones, np.random.default_rng(0), True)
    numbers = [float(x) for x in re.findall("[0-9]+", wide.shown("size").replace(",", ""))]
    assert numbers == [float(f"{x:.2g}") for x in numbers], "more digits than six lines know"
    sudden = halfway(steps, ones * [0, 0, 1], np.zeros(6), ones, np.random.default_rng(0))
    assert (sudden.place.low, sudden.place.high) == (98, 196)  # the line between them is no guide
    either = np.column_stack([start, start[::-1], ones[:, 0]])  # another order does what an ulp does, up to step 98
    nowhere = halfway(steps, either, start[::-1], either[:, [1, 0, 2]], np.random.default_rng(0))
    assert (nowhere.place.low, nowhere.place.high) == (0, 196) and nowhere.apart.tolist() == [False, False, True]
    for bad in (np.full(6, np.nan), np.ones(6), np.array([0, 0, 0, 0, np.nan, np.nan])):
        with pytest.raises(NotEnoughData):
            halfway(steps, ones, bad, ones, np.random.default_rng(0))


def test_the_critical_size_lies_between_those_that_are_survived_and_those_that_are_not() -> None:
    truths, designs = families(np.random.default_rng(6), 6, 300.0, 0, 1, (1, 32, 1024), (98, 784))
    sizes = [f for f in ask("fate", simulate(truths, *designs)).findings if "critical" in f.label]
    assert len(sizes) == 2
    for size in sizes:
        assert size.estimate is not None and (size.estimate.low, size.estimate.high) == (32, 1024)


def test_a_monotone_fit_is_scipys() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(40, 6)), rng.integers(1, 9, (40, 6)).astype(float)
    fits = [optimize.isotonic_regression(v, weights=w).x for v, w in zip(values, weights, strict=True)]
    np.testing.assert_allclose(isotonic(values, weights), fits, atol=1e-12)


def test_the_counts_of_the_page_follow_from_its_parquet_files_alone() -> None:
    folder = Path(__file__).parents[2] / "results" / "fate"
    runs, designs = (pd.read_parquet(folder / "store" / kind) for kind in ("runs", "designs"))
    accuracy = runs.set_index("run_id")["val_acc"]
    children = designs[(designs["role"] == "child") & designs["run_id"].isin(accuracy.index)]
    unit = children["unit"].map(json.loads)
    moved, back = unit.map(lambda u: "ulps" in u), unit.map(lambda u: u.get("reverse", False))
    step = children["from_step"].fillna(0).astype(int)
    change = pd.Series("another order from the step on", index=children.index)
    change = change.mask(step == 0, "another order from the start").mask(back, "another order up to the step")
    rows = children.assign(
        change=change.mask(moved, "moved by one ulp at the step"),
        step=step,
        parents=np.where(accuracy.reindex(children["parent_run_id"]) > 0.98, "super", "ordinary"),
        hit=(accuracy.reindex(children["run_id"]) > 0.98).to_numpy(),
    )
    rows = rows[~moved | unit.map(lambda u: u.get("ulps") == 1)].drop_duplicates(["run_id", "parent_run_id", "change"])
    left = rows[rows["step"] > 0]["parent_run_id"]
    rows = rows[rows["parent_run_id"].isin(left)]
    counted = rows.groupby(["parents", "change", "step"])["hit"].agg(["sum", "size"]).reset_index()
    page = pd.read_csv(folder / "tables" / "fate_steps.csv")
    shown = page[["parents", "change", "step", "super"]].itertuples(index=False)
    assert sorted(shown) == sorted((a, b, c, f"{k} of {n}") for a, b, c, k, n in counted.itertuples(index=False))
