"""Runs in flight: the last state that their workers wrote to ``live/``.

A run has no row before it ends, so its evaluations and steps so far are not in the tables: each run has one file, which
is replaced every few seconds and removed with its sweep's folder. No result depends on these files.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grok.files import replace_text
from grok.processes import Owner, alive_here
from grok.records import CurvePoint, Progress, StepPoint
from grok.untrusted import is_plain, read_json, read_json_object

if TYPE_CHECKING:
    import pandas as pd

OWNER: Final = ".owner"
"""In a sweep's folder: which process it belongs to."""
SUFFIX: Final = ".run"
MOST_STEPS: Final = 1000
"""Largest number of steps of a log that are written; of a longer log every n-th step and the last."""
COLUMNS: Final = {
    "runs": ("run_id", "step", "steps", "written"),
    "curves": ("run_id", *(f.name for f in fields(CurvePoint))),
    "steps": ("run_id", *(f.name for f in fields(StepPoint))),
}


def is_owner_alive(folder: Path) -> bool | None:
    """Return whether the process of a sweep's ``folder`` is alive; None if that cannot be known from this machine."""
    try:
        return alive_here(Owner.from_json(read_json(folder / OWNER)))
    except (OSError, ValueError):
        return None


def write_in_flight(folder: Path, progress: Progress) -> None:
    """Replace the file of a run in flight in a sweep's ``folder``; an error of the disk is ignored."""
    log = progress.step_log
    apart = -(-len(log) // MOST_STEPS) or 1
    shown = [p for i, p in enumerate(log) if (len(log) - 1 - i) % apart == 0]
    content = {
        "run_id": progress.run_id,
        "step": progress.step,
        "steps": progress.steps,
        "written": time.time(),
        "curves": list(map(_plain, progress.curve)),
        "steps_log": list(map(_plain, shown)),
    }
    with suppress(OSError):
        replace_text(folder / f"{progress.run_id}{SUFFIX}", json.dumps(content))


def remove_in_flight(folder: Path, run_ids: Iterable[str]) -> None:
    """Remove the files of runs that ended."""
    for run_id in run_ids:
        with suppress(OSError):
            (folder / f"{run_id}{SUFFIX}").unlink()


def read_in_flight(live: Path, kind: str, stored: Collection[str]) -> pd.DataFrame:
    """Return ``runs`` in flight, or their ``curves`` or ``steps``; ``written`` is in seconds since 1970.

    Left out are runs in ``stored``, which have rows by now, runs of a sweep that was killed on this machine, and files
    that cannot be parsed.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for known in _files(live):
        run_id = str(known["run_id"])
        if run_id in stored:
            continue
        points = [known] if kind == "runs" else known["curves" if kind == "curves" else "steps_log"]
        rows += [{**point, "run_id": run_id} for point in points]
    frame = pd.DataFrame(rows, columns=list(COLUMNS[kind]))
    texts = {"run_id", "sample", "event", "block_norms", "metrics"}
    return frame.astype({name: "float64" for name in frame if name not in texts})


def _files(live: Path) -> Iterator[dict[str, Any]]:
    killed = {folder for folder in live.glob("*") if is_owner_alive(folder) is False}
    for file in sorted(live.glob(f"*/*{SUFFIX}")):
        if file.parent in killed:
            continue
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            known = read_json_object(file)
            names = {kind: set(COLUMNS[kind]) for kind in ("curves", "steps")}
            whole = is_plain(known["run_id"]) and all(set(p) <= names["curves"] for p in known["curves"])
            if whole and all(set(p) <= names["steps"] for p in known["steps_log"]):
                yield known


def _plain(point: CurvePoint | StepPoint) -> dict[str, Any]:
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in asdict(point).items()}
