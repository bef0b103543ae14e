"""Retraining (``force=true``): what the store holds is trained once more, as the next replicate.

Which replicates a command makes is written beside the store before it trains, so
that the same command, given again after an interruption, goes on with its own instead of
making yet further ones. Once they are all stored, it makes the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from grok.config import RunConfig, identify
from grok.execute.planned import PlannedRun
from grok.store import Store

RECORD_KEY: Final = "forced"
"""Where a sweep's record holds them."""


def replicates_to_train(requested: Sequence[PlannedRun], store: Store | None) -> list[PlannedRun]:
    """Return the replicates that a command with ``force=true`` trains for the ``requested`` runs, in their order."""
    statuses = store.statuses() if store is not None else {}
    last = _last(requested, store)
    if last is not None:
        runs = [_replicate(run, last.get(run.run_id)) for run in requested]
        if not all(run.run_id in statuses for run in runs):
            return runs
    # no earlier command, or all its replicates are stored: this one makes new ones
    return [_next(run, statuses) for run in requested]


def replicates_record(requested: Sequence[PlannedRun], runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return what the sweep's record keeps: which replicate each requested run became."""
    replicates = {a.run_id: r.config.replicate for a, r in zip(requested, runs, strict=True)}
    return {"command": _key(requested), "replicates": replicates}


def _key(requested: Sequence[PlannedRun]) -> str:
    return hashlib.sha256(json.dumps(sorted({run.run_id for run in requested})).encode()).hexdigest()[:20]


def _last(requested: Sequence[PlannedRun], store: Store | None) -> Mapping[str, int] | None:
    """Return the replicates of the last command for the same runs.

    The last is the one with the highest: each takes what is free above the others. No clock says it.
    """
    earlier = list(_earlier(requested, store)) if store is not None else []
    return max(earlier, key=lambda replicates: sum(replicates.values()), default=None)


def _earlier(requested: Sequence[PlannedRun], store: Store) -> Iterator[Mapping[str, int]]:
    """Yield the replicates of each earlier command for the same runs."""
    key = _key(requested)
    for path in store.layout.sweeps.glob("*.json"):
        # a record is a help, never a condition
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(path.read_text(encoding="utf-8"))["config"].get(RECORD_KEY)
            if record is not None and record["command"] == key:
                yield {str(run_id): int(replicate) for run_id, replicate in record["replicates"].items()}


def _replicate(run: PlannedRun, replicate: int | None) -> PlannedRun:
    if replicate is None or replicate == run.config.replicate:
        return run
    config: RunConfig = replace(run.config, replicate=replicate)
    return PlannedRun(config, identify(config, run.data_hash, run.code), run.data_hash, run.code)


def _next(run: PlannedRun, taken: Mapping[str, str]) -> PlannedRun:
    while run.run_id in taken:
        run = _replicate(run, run.config.replicate + 1)
    return run
