"""The study's results as plain JSON in the store, for readers without Optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grok.files import write_json
from sweeps.search.record import ASKED, ENDED, StudyRecord

VERSION: Final = 1


def write_summary(path: Path, study: Mapping[str, Any], record: StudyRecord, temporary: Path) -> None:
    """Write a study's summary to ``path``: the facts in ``study``, and every trial with its runs.

    ``temporary`` is a folder of the same file system.
    """
    best = {trial.number for trial in record.best()}
    write_json(
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
        temporary,
    )


def _finite(values: list[float] | None) -> list[Any] | None:
    return None if values is None else [v if math.isfinite(v) else None for v in values]
