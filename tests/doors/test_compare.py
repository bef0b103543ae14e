"""``grok compare``: two sets of runs against recomputation by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from analysis import compare
from analysis.observations import Observations
from grok.errors import ConfigError
from grok.store import open_store
from tests.analysis.simulate import Truth, census, write

RNG = np.random.default_rng


def both(tmp_path: Path, seeds: range) -> Path:
    """Return a store of 30 seeds with weight decay 1 and of ``seeds`` with 0, half as fast."""
    fast = census(30, RNG(0), steps=80_000, optim__weight_decay=1.0)
    pairs = zip(fast, seeds, strict=True)
    slow = [Truth({**t.overrides, "seed": s, "optim.weight_decay": 0.0}, 2 * t.time) for t, s in pairs]
    return write([*fast, *slow], tmp_path / "S")


@pytest.mark.parametrize(("seeds", "paired"), [(range(30), True), (range(100, 130), False)])
def test_the_numbers_are_those_of_plain_pandas(tmp_path: Path, seeds: range, paired: bool) -> None:
    store = both(tmp_path, seeds)
    observations = Observations.read(store)
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
    assert line["weight_decay=1"].startswith(f"{a.mean():,.3f} (")
    assert line[compare.DIFFERENCE] == f"{(b - a).mean():,.3f} ({low:,.3f} to {high:,.3f})"
    ratio = str(table.loc["median step of generalising", compare.DIFFERENCE]).rpartition("×")[2]
    assert float(ratio.split()[0]) == pytest.approx(2, rel=0.02)


def test_what_biases_a_comparison_is_said(tmp_path: Path) -> None:
    store = both(tmp_path, range(30))
    observations = Observations.read(store)
    by_result = compare.compared(observations, compare.Sides.of(observations, store, ("seed<15 gen<4000", "seed>=15")))
    assert any("about results" in note for note in by_result.notes)
    assert any("optim.weight_decay" in note for note in by_result.notes)


@pytest.mark.parametrize("filters", [("seed=1", "seed<3"), ("weight_decay=7", "seed=1"), ("nothing=1", "seed=1")])
def test_filters_that_choose_nothing_or_overlap_are_refused(tmp_path: Path, filters: tuple[str, str]) -> None:
    store = both(tmp_path, range(30))
    with pytest.raises(ConfigError):
        compare.Sides.of(Observations.read(store), store, filters)


def test_the_command_writes_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = both(tmp_path, range(30))
    assert compare.main([str(store), "weight_decay=1", "weight_decay=0", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "figures" / "compare.png").exists()
    assert (tmp_path / "out" / "tables" / "compare_both.csv").exists()
    assert "30 runs, B: 30 runs" in capsys.readouterr().out
    assert compare.main(["seed=1"]) != 0
