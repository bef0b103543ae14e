"""What the records of a store's sweeps say about its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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


def recorded_parents(observations: Observations, runs: pd.Index) -> tuple[dict[str, set[str]], set[str]]:
    """Return the possible parents of each child by the records of ``grok branch --parents``, and all those parents."""
    recorded: dict[str, set[str]] = {}
    named: set[str] = set()
    for sweep in observations.sweeps:
        words = [str(word) for word in sweep.get("argv", [])]
        options = options_of(words)
        if BRANCH not in words or not options.get("--parents"):
            continue
        names = tuple(options["--parents"].split(","))
        parents = set(runs[runs.str.startswith(names)])
        named |= parents
        for run in sweep.get("config", {}).get("runs", []):
            recorded.setdefault(str(run["run_id"]), set()).update(parents)
    return recorded, named
