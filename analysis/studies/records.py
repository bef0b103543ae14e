"""What the records of a store's sweeps say about its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from analysis.observations import Observations

BRANCH: Final = "sweeps.branch"
"""The module of ``grok branch`` in a recorded command."""


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a recorded command by name, typed as ``--name value`` or ``--name=value``."""
    options = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, separator, value = word.partition("=")
            options[name] = value if separator else following
    return options


def standing(observations: Observations, runs: pd.Index) -> dict[str, str]:
    """Return which of ``runs`` stands for each run of the store: itself, else one with the same trajectory.

    A longer run of the same trajectory stands for a shorter one. Runs that none stands for are missing.
    """
    every = observations.all_runs[["run_id", "trajectory_id"]]
    known = every[every["run_id"].isin(runs)].drop_duplicates("trajectory_id").set_index("trajectory_id")["run_id"]
    found = every.assign(standing=every["trajectory_id"].map(known)).dropna()
    return {**dict(zip(found["run_id"], found["standing"], strict=True)), **{run: run for run in runs}}


def recorded_parents(observations: Observations, runs: pd.Index) -> tuple[dict[str, set[str]], set[str]]:
    """Return the possible parents of each child by the records of ``grok branch --parents``, and all those parents.

    Parents and children are among ``runs``; one of these can stand for a recorded one (`standing`).
    """
    recorded: dict[str, set[str]] = {}
    named: set[str] = set()
    found: dict[str, str] | None = None
    for sweep in observations.sweeps:
        words = [str(word) for word in sweep.get("argv", [])]
        options = options_of(words)
        if BRANCH not in words or not options.get("--parents"):
            continue
        found = standing(observations, runs) if found is None else found
        names = tuple(options["--parents"].split(","))
        parents = {stands for run, stands in found.items() if run.startswith(names)}
        named |= parents
        for child in planned(sweep):
            if child in found:
                recorded.setdefault(found[child], set()).update(parents)
    return recorded, named


def planned(sweep: Mapping[str, Any]) -> set[str]:
    """Return the ids of the runs that a sweep's record says it planned."""
    return {str(run["run_id"]) for run in sweep.get("config", {}).get("runs", [])}
