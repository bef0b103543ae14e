"""Runs of changed code of the user's own are another condition, and proposed commands name the code."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from analysis.observations import Observations
from analysis.populations import populations
from analysis.proposals import code_needed, proposal
from analysis.studies import QUESTIONS, seeds
from analysis.studies.base import Missing
from grok.commands.compose import compose
from grok.config.values import literal
from tests.analysis.simulate import census, simulate

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


@pytest.mark.parametrize("command", ["grok sweep sweep=crossed", "grok repeat --best 12"])
def test_proposed_commands_name_the_code_as_hydra_reads_it(command: str) -> None:
    words = shlex.split(proposal(command, store_of([{"mine.task": "5c", "mine.norm": "aa"}]), any_task=True))
    named = [word for word in words if word.startswith(("task.plugin=", "eval.metric_plugins="))]
    settings = compose(named)
    assert (settings["task"]["plugin"], settings["eval"]["metric_plugins"]) == (MINE, METRIC)


def test_commands_say_which_version_of_the_code_they_need() -> None:
    """The code on the disk may have changed; the store has only its hashes."""
    observations = store_of([{"mine.task": "5c27bca497"}, {"mine.task": "3828f112f6"}])
    runs = observations.all_runs.drop(columns="config.own_code")
    runs["started_at"] = pd.to_datetime(["2026-11-20", "2026-11-22"] * 12)
    observations = Observations(runs, observations.curves, designs=observations.designs)
    first, second = populations(observations).every
    assert [code_needed(observations, p.rows) for p in (first, second)] == [
        "mine.task 3828f112",
        "mine.task 5c27bca4 (an older version: the store has later runs of 3828f112)",
    ]
    (gap,) = [q.ask(observations) for q in QUESTIONS if q.name == "repeatability"]
    assert isinstance(gap, Missing)
    assert "needs your code as the store's runs had it: mine.task 3828f112. With other code" in gap.code
    (census_study,) = [q.ask(observations) for q in QUESTIONS if q.name == "census"]
    assert any("needs your code as these runs had it: mine.task 5c27bca4 (an older" in n for n in census_study.notes)
    assert set(seeds.seed_table(observations)["own_code"]) == {"mine.task 5c27bca497", "mine.task 3828f112f6"}


def test_values_of_two_versions_of_a_metric_are_not_pooled() -> None:
    """Twelve seeds were measured by both versions: the later run counts. Six have the older one only."""
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
