"""The record of a command beside the store: its words, its settings and the runs that it planned. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grok.config import flatten
from grok.execute.plan import Plan, varying
from grok.execute.planned import PlannedRun
from grok.execute.replicates import RECORD_KEY
from grok.masking import without_secrets
from grok.store import Store


def runs_to_record(plan: Plan, requested: Sequence[PlannedRun], store: Store, argv: Sequence[str]) -> list[PlannedRun]:
    """Return the runs to train, and those requested that no record of the same command names.

    Runs that another command trained belong to this one, too: its words say how they were chosen. With ``force=true``,
    or without words, only the runs to train are returned.
    """
    runs = {run.run_id: run for run in plan.to_train}
    if argv and plan.replicates is None and plan.stored:
        known = _recorded(store, argv)
        runs |= {run.run_id: run for run in requested if run.run_id not in known and run.run_id not in runs}
    return list(runs.values())


def content(runs: Sequence[PlannedRun], replicates: Any = None) -> dict[str, Any]:
    """Return the effective settings of ``runs``: what all share, and what differs between them."""
    flat = [flatten(run.config) for run in runs]
    differing = varying(flat)
    return {
        "settings": {name: value for name, value in flat[0].items() if name not in differing},
        **({} if replicates is None else {RECORD_KEY: replicates}),
        "runs": [
            {"run_id": run.run_id, **{name: settings[name] for name in differing}}
            for run, settings in zip(runs, flat, strict=True)
        ],
    }


def _recorded(store: Store, argv: Sequence[str]) -> set[str]:
    """Return the ids of the runs in the records of commands with these words."""
    known: set[str] = set()
    words = without_secrets(list(argv))  # as it is written
    for path in store.layout.sweeps.glob("*.json"):
        # a record is a help, never a condition
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["argv"] == words:
                known |= {str(run["run_id"]) for run in record["config"]["runs"]}
    return known
