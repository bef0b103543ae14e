"""The study's results as plain JSON in the store, for readers without Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grok.files import locked, write_json
from grok.store.layout import Layout
from sweeps.search.record import ASKED, ENDED, StudyRecord

VERSION: Final = 1


def write_locked(store: Path, path: Path, value: Any) -> None:
    """Write ``value`` as JSON to ``path`` in the store: under its lock, else a sweep that opens it empties ``tmp/``.

    Raises:
        StoreError: another process has been writing to the store for too long.
    """
    layout = Layout(store)
    with locked(layout.lock):
        layout.tmp.mkdir(exist_ok=True)
        write_json(path, value, layout.tmp)


def write_summary(store: Path, path: Path, study: Mapping[str, Any], record: StudyRecord) -> None:
    """Write a study's summary to ``path`` in the store: the facts in ``study``, and every trial with its runs."""
    best = {trial.number for trial in record.best()}
    write_locked(
        store,
        path,
        {
            "version": VERSION,
            "optuna": record.begun_with,
            **study,
            "trials": [
                {
                    "number": trial.number,
                    "state": trial.state.name.lower(),
                    "best": trial.number in best,
                    "params": dict(trial.params),
                    "values": _finite(trial.values),
                    "intermediate": {str(k): v for k, v in sorted(trial.intermediate_values.items())},
                    "asked": trial.user_attrs.get(ASKED),
                    "ended": trial.user_attrs.get(ENDED),
                    "reason": trial.user_attrs.get("reason"),
                    "runs": trial.user_attrs.get("runs", []),
                }
                for trial in record.trials()
            ],
        },
    )


def _finite(values: list[float] | None) -> list[Any] | None:
    return None if values is None else [v if math.isfinite(v) else None for v in values]
