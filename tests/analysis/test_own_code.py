"""Runs of changed code of the user's own are another condition, and proposed commands name the code."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from analysis.observations import Observations
from analysis.populations import populations
from analysis.proposals import proposal
from grok.cli.compose import compose
from tests.analysis.simulate import census, simulate

MINE = {"_target_": "mine.task", "bits": 6}
METRIC = {"norm": {"_target_": "mine.norm"}}


def store_of(codes: list[dict[str, str]]) -> Observations:
    """Return 24 random seeds; run i has ``codes[i % len(codes)]``."""
    simulated = simulate(census(24, np.random.default_rng(5), steps=300, every=25))
    runs = simulated.all_runs.assign(
        own_code=[json.dumps(codes[i % len(codes)]) for i in range(24)],
        **{"config.task.plugin": json.dumps(MINE), "config.eval.metric_plugins": json.dumps(METRIC)},
    )
    return Observations(runs, simulated.curves)


def test_changed_code_is_another_condition() -> None:
    observations = store_of(
        [{"mine.task": "5c27bca497", "mine.norm": "aa"}, {"mine.task": "3828f112f6", "mine.norm": "aa"}]
    )
    grouped = populations(observations)
    assert sorted(p.name for p in grouped.every) == ["own_code=mine.task 3828f112", "own_code=mine.task 5c27bca4"]
    assert [len(p) for p in grouped.every] == [12, 12]


def test_a_changed_metric_moves_no_run() -> None:
    grouped = populations(store_of([{"mine.task": "5c", "mine.norm": "aa"}, {"mine.task": "5c", "mine.norm": "bb"}]))
    assert [len(p) for p in grouped.every] == [24]


@pytest.mark.parametrize("command", ["grok sweep sweep=crossed", "grok repeat --best 12"])
def test_proposed_commands_name_the_code_as_hydra_reads_it(command: str) -> None:
    words = shlex.split(proposal(command, store_of([{"mine.task": "5c", "mine.norm": "aa"}]), any_task=True))
    named = [word for word in words if word.startswith(("task.plugin=", "eval.metric_plugins="))]
    settings = compose(named)
    assert (settings["task"]["plugin"], settings["eval"]["metric_plugins"]) == (MINE, METRIC)
