"""``force=true``: what the store holds is trained once more, as the next replicate.

Which replicates a forced command makes is written beside the store before it trains, so
that the same command, given again after an interruption, goes on with its own instead of
making yet further ones. Once they are all stored, it makes the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from grok.config import RunConfig, identify
from grok.execute.planned import PlannedRun
from grok.store import Store


def forced_runs(asked: Sequence[PlannedRun], store: Store | None) -> list[PlannedRun]:
    """Return the replicates that a forced command trains for the runs ``asked`` for, in their order."""
    statuses = store.statuses() if store is not None else {}
    last = _last(asked, store)
    if last is not None:
        runs = [_replicate(run, last.get(run.run_id)) for run in asked]
        if not all(run.run_id in statuses for run in runs):
            return runs
    # there was none, or the last one came to its end: this command is meant anew
    return [_next(run, statuses) for run in asked]


def forced_record(asked: Sequence[PlannedRun], runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return what a sweep's record keeps of a forced command: which replicate each run asked for became."""
    replicates = {a.run_id: r.config.replicate for a, r in zip(asked, runs, strict=True)}
    return {"command": _key(asked), "replicates": replicates}


def _key(asked: Sequence[PlannedRun]) -> str:
    return hashlib.sha256(json.dumps(sorted({run.run_id for run in asked})).encode()).hexdigest()[:20]


def _last(asked: Sequence[PlannedRun], store: Store | None) -> Mapping[str, int] | None:
    """Return the replicates of the last forced command for the same runs.

    The last is the one with the highest: each takes what is free above the others. No clock says it.
    """
    found = list(_earlier(asked, store)) if store is not None else []
    return max(found, key=lambda replicates: sum(replicates.values()), default=None)


def _earlier(asked: Sequence[PlannedRun], store: Store) -> Iterator[Mapping[str, int]]:
    """Yield the replicates of each earlier forced command for the same runs."""
    key = _key(asked)
    for path in store.layout.sweeps.glob("*.json"):
        with suppress(
            OSError, ValueError, KeyError, TypeError, AttributeError
        ):  # a record is a help, never a condition
            forced = json.loads(path.read_text(encoding="utf-8"))["config"].get("forced")
            if forced is not None and forced["command"] == key:
                yield {str(run_id): int(replicate) for run_id, replicate in forced["replicates"].items()}


def _replicate(run: PlannedRun, replicate: int | None) -> PlannedRun:
    if replicate is None or replicate == run.config.replicate:
        return run
    config: RunConfig = replace(run.config, replicate=replicate)
    return PlannedRun(config, identify(config, run.data_hash), run.data_hash)


def _next(run: PlannedRun, taken: Mapping[str, str]) -> PlannedRun:
    while run.run_id in taken:
        run = _replicate(run, run.config.replicate + 1)
    return run
