"""The study's results as plain JSON in the store, for whoever reads the store without Optuna."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from grok.config.fields import flatten
from grok.files import write_json
from sweeps.search.record import ASKED, ENDED, StudyRecord

if TYPE_CHECKING:
    from sweeps.search.driver import Search

VERSION = 1


def write_summary(search: Search, record: StudyRecord) -> None:
    """Write ``STORE/search/NAME.json``: the definition, and every trial with the runs behind it."""
    best = {trial.number for trial in record.best()}
    write_json(
        search.folder / f"{search.study.name}.json",
        {
            "version": VERSION,
            "name": search.study.name,
            "optuna": record.begun_with,
            "storage": record.where if search.study.storage is None else "url",
            "objectives": [{"name": o.name, "direction": o.direction} for o in search.objectives],
            "definition": search.definition(),
            "planned": search.limit,
            "default": {name: flatten(search.default).get(name) for name in search.space.describe()},
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
        search.store_path / "tmp",
    )


def _finite(values: list[float] | None) -> list[Any] | None:
    return None if values is None else [v if math.isfinite(v) else None for v in values]
