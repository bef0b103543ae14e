"""What the records of a store's sweeps say about its runs."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analysis.observations import Observations

BRANCH: Final = "sweeps.branch"
"""The module of ``grok branch`` in a recorded command."""


def recorded_parents(observations: Observations, runs: pd.Index) -> tuple[dict[str, set[str]], set[str]]:
    """Return the possible parents of each child by the records of ``grok branch --parents``, and all those parents."""
    recorded: dict[str, set[str]] = {}
    named: set[str] = set()
    for sweep in observations.sweeps:
        words = [str(word) for word in sweep.get("argv", [])]
        if BRANCH not in words or "--parents" not in words[:-1]:
            continue
        names = tuple(words[words.index("--parents") + 1].split(","))
        parents = set(runs[runs.str.startswith(names)])
        named |= parents
        for run in sweep.get("config", {}).get("runs", []):
            recorded.setdefault(str(run["run_id"]), set()).update(parents)
    return recorded, named
