"""What the records of a store's sweeps say about its runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import yaml

from analysis.observations import CONDITION_SETTINGS, Observations, as_text

BRANCH: Final = "sweeps.branch"
"""The module of ``grok branch`` in a recorded command."""
REPEAT: Final = "sweeps.repeat"
"""That of ``grok repeat``."""
RUN: Final = "grok.run"
"""That of ``grok run`` and ``grok sweep``."""
LAYERS: Final = "sweeps.layers"
"""That of ``grok layers``."""

_WORDS: Final = {"null": None, "true": True, "false": False}
_DIGITS: Final = r"(0|[1-9](_?\d)*)"
_WHOLE: Final = re.compile(rf"[+-]?{_DIGITS}", re.ASCII)
_POINT: Final = rf"({_DIGITS}\.|{_DIGITS}?\.\d(_?\d)*)"
_FRACTION: Final = re.compile(rf"[+-]?({_POINT}|({_DIGITS}|{_POINT})e[+-]?\d(_?\d)*|inf|nan)", re.ASCII | re.IGNORECASE)
LONGEST_NUMBER: Final = 400
"""Characters of a whole number that are read as one; Python refuses very long ones."""


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
    others = every.assign(standing=every["trajectory_id"].map(known)).dropna()
    return {**dict(zip(others["run_id"], others["standing"], strict=True)), **{run: run for run in runs}}


def recorded_parents(observations: Observations, runs: pd.Index) -> tuple[dict[str, set[str]], set[str]]:
    """Return the possible parents of each child by the records of ``grok branch --parents``, and all those parents.

    Parents and children are among ``runs``; one of these can stand for a recorded one (`standing`).
    """
    recorded: dict[str, set[str]] = {}
    named: set[str] = set()
    stands: dict[str, str] | None = None
    for sweep in observations.sweeps:
        words = [str(word) for word in sweep.get("argv", [])]
        options = options_of(words)
        if BRANCH not in words or not options.get("--parents"):
            continue
        stands = standing(observations, runs) if stands is None else stands
        names = tuple(options["--parents"].split(","))
        parents = {other for run, other in stands.items() if run.startswith(names)}
        named |= parents
        for child in planned(sweep):
            if child in stands:
                recorded.setdefault(stands[child], set()).update(parents)
    return recorded, named


def planned(sweep: Mapping[str, Any]) -> set[str]:
    """Return the ids of the runs that a sweep's record says it planned."""
    return {str(run["run_id"]) for run in sweep.get("config", {}).get("runs", [])}


def repeats_elsewhere(observations: Observations) -> dict[str, str]:
    """Return the runs that `grok repeat` planned under another setting or precision, with that setting as typed.

    Their seeds were chosen by results under the first setting, so they are no sample of seeds under the other one. Runs
    that a plain sweep planned, too, are not returned: that sweep did not choose.
    """
    settings = observations.all_runs.set_index("run_id")
    commands = [([str(word) for word in sweep.get("argv", [])], sweep) for sweep in observations.sweeps]
    of_sweeps = {run for words, sweep in commands if RUN in words for run in planned(sweep)}
    changed: dict[str, str] = {}
    for words, sweep in commands:
        if REPEAT not in words:
            continue
        kinds = options_of(words).get("--kinds", "").split(",")
        changes = [f"precision={kind}" if kind == "float64" else kind for kind in kinds]
        changes += [word for word in words if "precision" in kinds and word.startswith("precision=")]
        for change in changes:
            name, separator, value = change.partition("=")
            if not separator or f"config.{name}" not in settings or name not in CONDITION_SETTINGS:
                continue  # a longer run of a seed is no other setting
            runs = settings.index.intersection(sorted(planned(sweep) - of_sweeps))
            stored = settings.loc[runs, f"config.{name}"].map(as_text)
            changed.update(dict.fromkeys(runs[stored == as_text(typed(value))], f"{name}={value}"))
    return changed


def typed(value: str) -> object:
    """Return a setting's value from its text on a command line, by the grammar of Hydra: YAML takes 5e-4 for text.

    >>> typed("0.0"), typed("5e-4"), typed("1_000"), typed("null"), typed("adamw"), typed("[0.9,0.98]")
    (0.0, 0.0005, 1000, None, 'adamw', [0.9, 0.98])
    """
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _WHOLE.fullmatch(value):
        return int(value) if len(value) <= LONGEST_NUMBER else value
    if _FRACTION.fullmatch(value):
        return float(value)
    if value[:1] not in ("[", "{", "'", '"'):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:  # a store may come from anybody
        return value
