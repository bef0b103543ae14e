"""Commands that look at a store: lists, one run, two sets of runs, and what is in flight."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from grok import run
from grok.analysis import compare, listing, show
from grok.analysis.observations import Observations
from grok.analysis.show import draw
from grok.commands.words import matching
from grok.errors import ConfigError
from grok.store import Purpose, Purposes, StoreWriter, open_store
from tests.analysis.simulate import Truth, census, repeat, row, run_ids, simulate, sweep, write
from tests.doors.conftest import TINY, Door
from tests.store.contract import example_row, failed

FRAME = pd.DataFrame(
    {
        "seed": [8, 80, 3],
        "class": ["super", "normal", "super"],
        "val accuracy": [0.99, 0.1, 1.0],
        "generalised": pd.array([500, None, 2500], "Int64"),
        "run": ["3f2a", "90bc", "3f77"],
        "design": ["sweep member, branch parent", "sweep member", "unknown"],
    }
)


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["seed=8"], [0]),
        (["class=SUPER"], [0, 2]),
        (["gen<2000"], [0]),
        (["generalised>=500", "val_acc>0.995"], [2]),
        (["run=3f"], [0, 2]),
        (["design=branch"], [0]),
        (["normal"], [1]),
        (["norm", "seed=8"], []),
        ([], [0, 1, 2]),
    ],
)
def test_rows_satisfy_all_filters(words: list[str], rows: list[int]) -> None:
    assert list(np.flatnonzero(matching(FRAME, words))) == rows


@pytest.fixture
def store(tmp_path: Path) -> str:
    rows = [row(truth) for truth in census(6, np.random.default_rng(0))]
    ids = [r.result.run_id for r in rows]
    with StoreWriter(tmp_path / "S") as writer:
        writer.record_design(Purposes("sweep", [Purpose(unit={"seed": n}) for n in range(4)]).named(ids[:4]))
        writer.commit(rows)
    return str(tmp_path / "S")


def test_every_run_is_listed_with_its_purpose(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert listing.main([store, "--json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {r["seed"]: r["design"] for r in rows} == {n: "sweep member" if n < 4 else "unknown" for n in range(6)}
    assert listing.main([store, "design=unknown", "--csv"]) == 0
    assert [line.split(",")[1] for line in capfd.readouterr().out.splitlines()] == ["seed", "4", "5"]
    assert listing.main([store, "seed<3", "optim.weight_decay>=0", "layers=2", "--csv", "--sort=-seed"]) == 0
    assert [line.split(",")[1] for line in capfd.readouterr().out.splitlines()] == ["seed", "2", "1", "0"]


def test_a_run_is_found_by_the_filters_of_the_list(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert listing.main([store, "seed=4", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)
    by_class = next(f"class={listed[name]}" for name in ("class", "early or late") if listed.get(name))
    assert show.main([by_class, "design=unknown", "seed=4", "--store", store]) == 0
    assert listed["run"] in capfd.readouterr().out


def test_on_another_task_the_classes_are_early_and_late(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = str(write(census(20, np.random.default_rng(0), steps=20_000, task__modulus=97), tmp_path / "S"))
    assert listing.main([store, "--json"]) == 0
    classes = {json.loads(line)["class"] for line in capfd.readouterr().out.splitlines()}
    assert "late" in classes and classes <= {"early", "late", "not within 20,000 steps"}


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(
    st.lists(st.lists(numbers, min_size=1, max_size=30), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(20, 120),
)
@settings(max_examples=60, deadline=None)
def test_any_curve_fits_its_frame(curves: list[list[float]], log: bool, ascii_only: bool, width: int) -> None:
    lines = [pd.Series(c, np.arange(len(c)) * 10.0, dtype=float) for c in curves]
    rows = draw(lines, width=width, height=6, log=log, marks={"a": 10}, ascii_only=ascii_only)
    assert max(map(len, rows)) <= max(width, 20)
    assert not ascii_only or all(row.isascii() for row in rows)
    if any(np.isfinite(c).any() for c in curves):
        assert len(rows) == 6 + 3


def test_a_run_is_shown_whole(door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert door(*TINY, "seed=3", "seeds.order=8", "seeds.layers={head:5}", "store.path=S").status == 0
    (row,) = open_store("S").runs().to_dict("records")
    capfd.readouterr()
    assert show.main([row["run_id"][:7], "--store", "S"]) == 0
    out = capfd.readouterr().out
    for part in (row["run_id"], row["weights_hash"], row["numerics"], row["rerun"], "head: 5", "task.modulus=7"):
        assert part in out
    (again,) = (line for line in out.splitlines() if line.startswith("compare its bits: "))
    assert run.main(shlex.split(again.partition("grok run ")[2])) == 0, "what it proposes runs as it stands"


def test_events_are_lettered_in_their_order_and_a_failed_run_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [example_row(1, memorised_step=50, grokked_step=150, val_loss_peak_step=100), failed(example_row(2))]
    with StoreWriter("S") as writer:
        writer.commit(rows)
    assert show.main([rows[0].result.run_id, "--store", "S"]) == 0
    assert "a memorised 50, b val_loss_peak 100, c grokked 150" in capsys.readouterr().out
    assert show.main([rows[1].result.run_id, "--store", "S"]) == 0
    out = capsys.readouterr().out
    assert "failed (exception)" in out and "error       made up" in out and "nothing was measured" in out


RNG = np.random.default_rng


def both(path: Path, seeds: range) -> Path:
    """Write a store of 30 seeds with weight decay 1 and of ``seeds`` with 0, half as fast."""
    fast = census(30, RNG(0), steps=80_000, optim__weight_decay=1.0)
    pairs = zip(fast, seeds, strict=True)
    slow = [Truth({**t.overrides, "seed": s, "optim.weight_decay": 0.0}, 2 * t.time) for t, s in pairs]
    return write([*fast, *slow], path)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the same 30 seeds under two weight decays: it is only read."""
    return both(tmp_path_factory.mktemp("pairs") / "S", range(30))


@pytest.mark.parametrize("paired", [True, False])
def test_the_numbers_are_those_of_plain_pandas(pairs: Path, tmp_path: Path, paired: bool) -> None:
    observations = Observations.read(store := pairs if paired else both(tmp_path / "S", range(100, 130)))
    sides = compare.Sides.of(observations, store, ("weight_decay=1", "optim.weight_decay=0"))
    assert sides.paired == paired and [len(rows) for rows in sides.rows] == [30, 30]
    table = compare.compared(observations, sides).tables[0].frame.set_index("")
    opened = open_store(store)
    runs, curves = opened.runs(["config.optim.weight_decay", "seed"]), opened.curves()
    last = curves[curves["step"] == 80_000].merge(runs, on="run_id").sort_values("seed")
    a, b = (last.loc[last["config.optim.weight_decay"] == w, "weight_norm"].to_numpy() for w in (1.0, 0.0))
    independent = CompareMeans(DescrStatsW(b), DescrStatsW(a))
    low, high = DescrStatsW(b - a).tconfint_mean() if paired else independent.tconfint_diff(usevar="unequal")
    line = table.loc["mean weight norm at step 80,000"]
    assert numbers_in(line["weight_decay=1"])[0] == pytest.approx(a.mean(), abs=0.05)  # as many digits as n deserves
    assert numbers_in(line[compare.DIFFERENCE]) == pytest.approx([(b - a).mean(), low, high], abs=0.05)
    ratio = str(table[compare.DIFFERENCE].iloc[2]).rpartition("×")[2]
    assert float(ratio.split()[0]) == pytest.approx(2, rel=0.02)


def test_the_numbers_of_crossing_curves_are_no_bound() -> None:
    times = {1.0: [3000.0 + 10 * i for i in range(30)], 0.0: [1000.0 + 10 * i if i < 20 else 1e6 for i in range(30)]}
    settings = {decay: {"optim.weight_decay": decay, "train.steps": 4000, "eval.every": 50} for decay in times}
    read = simulate([Truth({"seed": i, **settings[d]}, t) for d in times for i, t in enumerate(times[d])])
    study = compare.compared(read, compare.Sides.of(read, Path("S"), ("weight_decay=1", "weight_decay=0")))
    assert "the curves may cross" in study.tables[0].frame[compare.DIFFERENCE][2]
    ratio = next(iter(study.files.values())).query("what.str.contains('geometric mean step')").iloc[0]
    assert 0 < ratio["low"] < ratio["value"] < ratio["high"] < np.inf


def test_a_stream_with_one_seed_a_side_is_what_differs_and_a_failed_run_is_counted() -> None:
    times = {o: [(i, t * (1.2 if o == 9 else 1)) for i, t in enumerate(RNG(1).uniform(900, 3000, 20))] for o in (8, 9)}
    short = {"train.steps": 4000, "eval.every": 50}
    by_order = {o: {"seeds.order": o, "optim.lr": o / 1000, **short} for o in times}
    tags = {8: "device=cpu", 9: "device=cuda"}
    truths = [Truth({"seeds.init": i, **by_order[o]}, t, numerics=tags[o]) for o in times for i, t in times[o]]
    truths.append(Truth({"seeds.init": 20, **by_order[9]}, 900, status="failed"))
    sides = compare.Sides.of(read := simulate(truths), Path("S"), ("config.seeds.order=8", "config.seeds.order=9"))
    assert sides.paired and sides.shared == 20
    study = compare.compared(read, sides)
    assert "0 of A and 1 of B failed" in study.scope and study.summary.startswith("optim.lr, numerics (device): ")
    by_rate = compare.compared(read, compare.Sides.of(read, Path("S"), ("lr=0.008", "lr=0.009")))
    assert by_rate.summary.startswith("seeds.order, numerics"), "of a side has one, and they differ"
    one_rate = simulate([Truth({**t.overrides, "optim.lr": 0.01}, t.time) for t in truths[:40]])
    halves = compare.Sides.of(one_rate, Path("S"), ("config.seeds.init<10", "config.seeds.init>9"))
    assert "share init and order seeds" in compare.compared(one_rate, halves).summary
    ratio = next(iter(study.files.values())).query("what.str.contains('geometric mean step')").iloc[0]
    assert 1.15 < ratio["low"] <= 1.2 <= ratio["high"] < 1.25, "in pairs"
    best = [Truth({**t.overrides, "seeds.order": 9}, 1500) for t in sorted(truths[:20], key=lambda t: t.time)[:9]]
    late = simulate([*truths[:20], *best])
    chosen = late.designs["run_id"].isin(run_ids(best))
    late.designs = late.designs.assign(planned_at=np.where(chosen, "2041", "2020").astype("datetime64[us]"))
    assert compare.Sides.of(late, Path("S"), sides.names).by_results


@pytest.mark.parametrize(("choice", "asked", "paired"), [("best", 0, False), ("best", 1, True), ("drawn", 0, True)])
def test_repeats_of_seeds_that_a_result_chose_are_not_paired_with_it(choice: str, asked: int, paired: bool) -> None:
    first = [Truth({"seed": i, "train.steps": 4000}, t) for i, t in enumerate(RNG(1).uniform(900, 3000, 60))]
    own = sorted(first, key=lambda t: t.time)[:12] if choice == "best" else first[:12]
    again = [Truth({**t.overrides, "perturb.ulps": 1}, RNG(i).uniform(900, 3000)) for i, t in enumerate(own)]
    designs = [sweep(again)] * asked + [repeat(a, [b], choice=choice) for a, b in zip(own, again, strict=True)]
    read = simulate([*first, *again], *designs)
    sides = compare.Sides.of(read, Path("S"), ("perturb.ulps=0", "perturb.ulps=1"))
    assert (sides.paired, sides.by_results) == (paired, not paired), "the chosen ones fall back to the mean"
    assert asked or set(compare.chosen(read, Path("S"), "seed<60")[0].index) == set(run_ids(first)), "nor replace it"


def numbers_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]


def test_what_biases_a_comparison_is_said(pairs: Path) -> None:
    observations = Observations.read(pairs)
    sides = compare.Sides.of(observations, pairs, ("seed<15 weight_decay=1 gen<4000", "seed>=15 weight_decay=1"))
    assert len(sides.rows[1]) == 15 and not sides.paired
    assert "about results" in " ".join(compare.compared(observations, sides).notes)


@pytest.mark.parametrize("filters", [("seed=1", "seed<3"), ("weight_decay=7", "seed=1"), ("nothing=1", "seed=1")])
def test_filters_that_choose_nothing_or_overlap_are_refused(pairs: Path, filters: tuple[str, str]) -> None:
    with pytest.raises(ConfigError):
        compare.Sides.of(Observations.read(pairs), pairs, filters)


def test_the_command_writes_table_and_figure(pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main([str(pairs), "weight_decay=1", "weight_decay=0", "--out", str(tmp_path / "out")]) == 0
    name = "compare_weight_decay_1_weight_decay_0"  # another comparison leaves these files
    assert "weight_decay=1" in (tmp_path / "out" / f"{name}.html").read_text(encoding="utf-8")
    assert all((tmp_path / "out" / made).exists() for made in (f"figures/{name}.png", f"tables/{name}_both.csv"))
    assert compare.main(["seed=1"]) == compare.main([str(pairs), "seed=1"]) == 2
    assert "the only filter: expected two" in capsys.readouterr().err
