"""The origin of a report's numbers: counts of runs, their statuses, and the numerics, devices and code of the runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.observations import Observations
from analysis.own_versions import hashes_in_words
from analysis.proposals import given_again
from analysis.purposes import roles

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
    """A sentence for each design with planned runs that are not in the store yet."""

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
    summary.notes += _about_designs(observations)
    if summary.dirty:
        summary.notes.append(f"{summary.dirty:,} runs were trained from uncommitted code.")
    return summary


@dataclass(frozen=True)
class Unfinished:
    """A design with planned runs that are not stored."""

    kind: str
    command: str
    """The command that planned it; empty if no record has one of the missing runs."""
    missing: int
    planned: int
    stops_early: bool
    """Whether runs stop when they generalise."""


def unfinished(observations: Observations) -> list[Unfinished]:
    """Return each design with runs that are neither stored nor given up, in the order of planning."""
    commands = {
        str(run["run_id"]): given_again(sweep["argv"], observations.path)
        for sweep in observations.sweeps
        if sweep.get("argv")
        for run in sweep.get("config", {}).get("runs", ())
    }
    runs = observations.all_runs
    stopping = set(runs["run_id"][runs["config.train.stop_when_generalised"].fillna(False).astype(bool)])
    return [
        Unfinished(
            of.kind,
            next((commands[run] for run in sorted(of.missing) if run in commands), ""),
            len(of.missing),
            of.planned,
            not stopping.isdisjoint(of.stored),
        )
        for of in observations.once(roles).missing
    ]


def pending(observations: Observations) -> list[str]:
    """Return a sentence for each design with planned runs that are not in the store yet."""
    return [
        f"{of.missing:,} of {of.planned:,} planned runs are not in the store yet: "
        f"{of.command or f'a design of kind {of.kind}'}.{BIASED if of.stops_early else ''}"
        for of in unfinished(observations)
    ]


def _about_designs(observations: Observations) -> list[str]:
    """Return what is not known, or known only from a reconstruction, of the purposes of all runs."""
    purposes = observations.once(roles)
    counts = {
        "have no row in designs/, so what they were for is unknown": len(purposes.unknown()),
        "were planned without saying how they were chosen (choice=unstated)": len(purposes.unstated()),
        "were stored before a plan named them as members (results_seen)": len(purposes.seen),
    }
    reconstructed = purposes.rows[purposes.rows["origin"] == "reconstructed"]["run_id"].nunique()
    counts["have designs that were reconstructed after their training (origin=reconstructed)"] = reconstructed
    return [f"{number:,} runs {words}." for words, number in counts.items() if number]


def _counts(column: pd.Series) -> dict[str, int]:
    return {str(k): int(v) for k, v in column.fillna("unknown").value_counts().items()}
