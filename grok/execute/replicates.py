"""Retraining (``force=true``): what the store holds is trained once more, as the next replicate.

Which replicates a command makes is in its design, written before it trains, so that the same command, given again after
an interruption, goes on with its own instead of making yet further ones. Once they are all stored, it makes the next.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from grok.execute.planned import PlannedRun
from grok.store import Store

FORCED: Final = "forced"
"""In the ``choice_detail`` of a run that ``force=true`` trains again: which replicate it is (of the run ``asked``)."""


def replicates_to_train(
    requested: Sequence[PlannedRun], store: Store | None, statuses: Mapping[str, str]
) -> list[PlannedRun]:
    """Return the replicates that a command with ``force=true`` trains for the ``requested`` runs, in their order.

    ``statuses``: those of the stored runs.
    """
    if store is None:
        return list(requested)
    last = _last(requested, store)
    runs = [_replicate(run, last[run.run_id]) for run in requested] if last is not None else []
    if not all(run.run_id in statuses for run in runs):
        return runs
    # no earlier command, or all its replicates are stored: this one makes new ones
    return [_next(run, statuses) for run in requested]


def _last(requested: Sequence[PlannedRun], store: Store) -> Mapping[str, int] | None:
    """Return the replicates of the last command for the same runs: the highest. No clock says which was the last."""
    earlier: dict[str, dict[str, int]] = defaultdict(dict)
    for row in store.designs_table().select(["design_id", "choice_detail"]).to_pylist():
        if FORCED in (detail := json.loads(row["choice_detail"] or "{}")):
            earlier[row["design_id"]][detail["asked"]] = detail[FORCED]
    wanted = {run.run_id for run in requested}
    same = [replicates for replicates in earlier.values() if replicates.keys() == wanted]
    return max(same, key=lambda replicates: sum(replicates.values()), default=None)


def _replicate(run: PlannedRun, replicate: int) -> PlannedRun:
    if replicate == run.config.replicate:
        return run
    return replace(run.under("replicate", replicate), repeats=run.repeats or run.run_id)


def _next(run: PlannedRun, taken: Mapping[str, str]) -> PlannedRun:
    while run.run_id in taken:
        run = _replicate(run, run.config.replicate + 1)
    return run
