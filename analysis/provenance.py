"""The origin of a report's numbers: counts of runs, their statuses, and the numerics, devices and code of the runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.observations import Observations
from analysis.own_versions import hashes_in_words
from analysis.proposals import given_again

BIASED = " Runs that generalise early end early, so until then the times of this sweep are biased low."


@dataclass
class Provenance:
    """Counts over all rows of the store."""

    runs: int
    trajectories: int
    evaluations: int
    statuses: dict[str, int] = field(default_factory=dict)
    mixes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of runs by value, by the column's name in words."""
    hours: float = 0.0
    dirty: int = 0
    notes: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    """A sentence for each sweep with planned runs that are not in the store yet."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return dict(vars(self))


MIXES = {
    "numerics": "numerics tags",
    "torch_version": "torch versions",
    "device": "devices",
    "host": "hosts",
    "git_commit": "code versions",
    "own_code": "own code",
}


def provenance(observations: Observations) -> Provenance:
    """Return the provenance of everything in the store."""
    runs = observations.all_runs
    summary = Provenance(
        runs=len(runs),
        trajectories=int(runs["trajectory_id"].nunique()),
        evaluations=len(observations.curves),
        statuses=_counts(runs["status"]),
        hours=float(runs["seconds"].fillna(0).sum()) / 3600,
        dirty=int(runs["git_dirty"].fillna(False).astype(bool).sum()),
    )
    summary.pending = pending(observations)
    for column, words in MIXES.items():
        if column in runs and (column != "own_code" or runs[column].notna().any()):
            summary.mixes[words] = _counts(runs[column].map(hashes_in_words) if column == "own_code" else runs[column])
    if len(summary.mixes.get("numerics tags", {})) > 1:
        summary.notes.append(
            "The runs were computed with several numerics tags: equal seeds need not give equal bits between them."
        )
    if summary.dirty:
        summary.notes.append(f"{summary.dirty:,} runs were trained from uncommitted code.")
    return summary


def unfinished(observations: Observations) -> list[tuple[str, int, int, bool]]:
    """Return each different sweep command with planned runs that are not in the store.

    Returns:
        The command, the number of missing runs, that of planned runs, and whether runs stop when they generalise.
    """
    stored = set(observations.all_runs["run_id"])
    planned: dict[str, set[str]] = {}
    stops_early: dict[str, bool] = {}
    for sweep in observations.sweeps:
        config = sweep.get("config", {})
        command = given_again(sweep.get("argv", []), observations.path)
        planned.setdefault(command, set()).update(str(run["run_id"]) for run in config.get("runs", []))
        stops_early[command] = bool(config.get("settings", {}).get("train.stop_when_generalised"))
    return [
        (command, len(runs - stored), len(runs), stops_early[command])
        for command, runs in planned.items()
        if runs - stored
    ]


def pending(observations: Observations) -> list[str]:
    """Return a sentence for each different sweep command with planned runs that are not in the store."""
    return [
        f"{missing:,} of {runs:,} planned runs are not in the store yet: {command}.{BIASED if stops else ''}"
        for command, missing, runs, stops in unfinished(observations)
    ]


def _counts(column: pd.Series) -> dict[str, int]:
    return {str(k): int(v) for k, v in column.fillna("unknown").value_counts().items()}
