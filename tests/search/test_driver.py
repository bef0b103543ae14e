"""A study finds what is there, spends no run twice, stops what is hopeless, and compares on fresh seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.observations import searches
from grok.errors import ConfigError, TrainingError
from grok.plugins import Code, activate
from grok.store import open_store
from sweeps.search.config import FRESH
from sweeps.search.driver import Comparison, Search
from sweeps.search.space import SeedOutcome
from tests.search.world import BASE, World

STUDY = {"trials": 30, "seeds": 5, "parallel": 5, "sampler": {"startup": 8}}


def test_it_finds_the_optimum_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    search = world.search(STUDY)
    record = search.record()
    assert search.run(record)
    (best,) = record.best()
    assert best.values[0] < 0.5 * record.trials()[0].values[0], "trial 0 is the default"
    assert record.trials()[0].params == {"optim.lr": 1e-3, "optim.weight_decay": 0.1}
    assert 10**-2.5 < best.params["optim.lr"] < 10**-1.5
    assert open_store(tmp_path).run_ids() == set(world.trained)
    assert len(world.trained) == 150
    (data,) = searches(tmp_path)
    assert capfd.readouterr().err == "", "Optuna logs its own lines"
    assert [t["number"] for t in data["trials"] if t["best"]] == [best.number]
    assert all(len(t["runs"]) == 5 for t in data["trials"])


def test_seeds_are_instances(tmp_path: Path) -> None:
    """Every trial has the same seeds, and they are in no distribution."""
    world = World(tmp_path)
    world.run({"trials": 4, "seeds": 3, "first_seed": 7})
    runs = open_store(tmp_path).runs()
    assert set(runs["seed"]) == {7, 8, 9}
    assert set(runs.groupby("config_id")["seed"].nunique()) == {3}


def test_stored_runs_are_used(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"trials": 6, "name": "first"})
    before = len(world.trained)
    world.run({"trials": 6, "name": "second"})  # the same sampler seed asks the same settings
    assert len(world.trained) == before


def test_a_grid_makes_every_setting_once(tmp_path: Path) -> None:
    """The default beside it takes nothing away, and conditions make nothing twice."""
    space = {
        "optim.lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "optim.grokfast": {"choices": ["none", "ema"]},
        "optim.grokfast_lamb": {"low": 1.0, "high": 5.0, "when": {"optim.grokfast": "ema"}},
    }
    grid = {"trials": 99, "seeds": 1, "sampler": {"name": "grid", "points": 2}}
    tried = [trial[2] for trial in World(tmp_path / "a").run(grid, space)]
    assert tried[0] == {"optim.lr": 1e-3, "optim.grokfast": "none"}, "the default, which is not on the grid"
    wanted = [
        {"optim.lr": lr, "optim.grokfast": kind, **lamb}
        for lr in (1e-4, 1e-2)
        for kind, lambs in (("none", [{}]), ("ema", [{"optim.grokfast_lamb": 1.0}, {"optim.grokfast_lamb": 5.0}]))
        for lamb in lambs
    ]
    assert sorted(map(str, tried[1:])) == sorted(map(str, wanted))


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("nsga2", marks=pytest.mark.slow)])
def test_a_trial_with_a_failed_run_fails_and_the_study_goes_on(sampler: str, tmp_path: Path) -> None:
    """Fast settings fail, here for one seed of three: such a trial is never the best, whatever its other seeds did."""
    world = World(tmp_path, lambda config: config.optim.lr > 2e-3 and config.seed == 1)
    search = world.search({"trials": 10, "seeds": 3, "sampler": {"name": sampler, "startup": 3, "population": 4}})
    record = search.record()
    assert search.run(record)
    found = {t.number: t for t in record.trials()}
    failed = {n for n, t in found.items() if t.params["optim.lr"] > 2e-3}
    assert failed
    assert failed == {n for n, t in found.items() if t.state.name == "FAIL"}
    assert {t.state.name for n, t in found.items() if n not in failed} == {"COMPLETE"}
    assert all("1 of 3 runs failed" in found[n].user_attrs["reason"] for n in failed)
    assert all(trial.params["optim.lr"] <= 2e-3 for trial in record.best())


def test_another_definition_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run({"trials": 3})
    with pytest.raises(ConfigError, match=r"study\.seeds"):
        world.run({"trials": 3, "seeds": 5})
    with pytest.raises(ConfigError, match=r"eval\.every"):
        world.search({"trials": 3}, eval={"every": 50}).record()
    with pytest.raises(ConfigError, match=r"space\.optim\.lr"):
        world.run({"trials": 3}, {"optim.lr": {"low": 1e-3, "high": 1e-1}})


def test_the_comparison_is_pinned_before_and_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    fresh = {"compare": 12}
    search = world.search({**STUDY, **fresh})
    record = search.record()
    with pytest.raises(ConfigError, match="still to be made"):
        Comparison.pin(search, record)
    assert search.run(record)
    comparison = Comparison.pin(search, record)
    before = set(world.trained)
    outcomes = Search.outcomes

    def one_failed(*words: Any) -> list[SeedOutcome]:
        first, *rest = outcomes(*words)
        return [replace(first, status="failed", error="killed", grokked_step=None), *rest]

    with monkeypatch.context() as patch:  # a run that failed says nothing about its setting
        patch.setattr(Search, "outcomes", one_failed)
        with pytest.raises(TrainingError, match=r"2 of 24 runs of the comparison failed \(killed\): give the same"):
            comparison.run(search)
    assert [sorted(part) == sorted(comparison.pinned) for part in searches(tmp_path)] == [False, True]
    assert comparison.run(search)
    seeds = open_store(tmp_path).runs().set_index("run_id").loc[list(set(world.trained) - before), "seed"]
    assert set(seeds) == set(range(FRESH, FRESH + 12))
    _, _, compared = searches(tmp_path)
    assert compared["pinned"]["trial"] == record.best()[0].number
    assert [run[0] for run in compared["runs"]["best"]] == list(range(FRESH, FRESH + 12))
    # more trials may find a better setting; what was pinned stays
    longer = world.search({**STUDY, **fresh, "trials": 36})
    assert longer.run(longer.record())
    assert Comparison.pin(longer, longer.record()).pinned == comparison.pinned
    assert "not used" not in " ".join(world.said)
    other = world.search({**STUDY, "trials": 36, "compare": 20})
    assert Comparison.pin(other, other.record()).pinned == comparison.pinned
    assert f"seeds {FRESH} to {FRESH + 11} are pinned" in world.said[-1]


def test_a_study_of_changed_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "class Same:\n    def __init__(self, parameters): pass\n    def weights(self, step, parameters): pass\n"
    (tmp_path / "mine.py").write_text(code)
    optim = {**BASE["optim"], "intervention": {"_target_": "mine.Same"}}
    world = World(tmp_path / "S")
    try:
        search = world.search(optim=optim)
        record = search.record()
        world.search(optim=optim).record()
        elsewhere = replace(search, train=lambda settings, design: True)  # as if they were stored under other names
        with pytest.raises(TrainingError, match="your own code or the data changed while they trained"):
            elsewhere.run(record)
        (tmp_path / "mine.py").write_text(code + "# changed\n")
        with pytest.raises(
            ConfigError, match=r"has other settings \(code.mine.Same\): use those, or another study.name"
        ):
            world.search(optim=optim).record()
    finally:
        activate(Code())
