"""Records of conflicts: a file in ``conflicts/`` for each, until the user removes it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grok.files import write_json
from grok.store.compare import Conflict, as_json
from grok.store.designs import FACTS
from grok.store.layout import Layout
from grok.untrusted import is_plain


def record_conflict(layout: Layout, conflict: Conflict, sides: dict[str, Any]) -> Path:
    """Write a conflict as JSON to ``conflicts/`` and return the file; an equal conflict replaces its file."""
    other = "" if conflict.run_id == conflict.other_run_id else f"-{conflict.other_run_id}"
    name = f"{conflict.run_id}{other}-{conflict.step}-{conflict.what}"
    if not is_plain(name):  # too long: the names of two branches
        name = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
    path = layout.conflicts / f"{name}.json"
    write_json(path, as_json(conflict, sides), layout.tmp)
    return path


def record_design_conflicts(layout: Layout, groups: Iterable[list[dict[str, Any]]]) -> list[Conflict]:
    """Record rows of designs that have one key and other facts; each may say its ``source``, where it is from."""
    conflicts = []
    for rows in groups:
        one, other, name = next((rows[0], row, fact) for row in rows for fact in FACTS if rows[0][fact] != row[fact])
        what = f"{name} in design {one['design_id']} as {one['role']} {one['unit']}"
        conflict = Conflict(one["run_id"], one["run_id"], None, None, None, what, one[name], other[name])
        record_conflict(layout, conflict, {f"row {at}": row for at, row in enumerate(rows, 1)})
        conflicts.append(conflict)
    return conflicts


def conflict_files(layout: Layout) -> list[Path]:
    """Return the files of the recorded conflicts, sorted by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(layout.conflicts.glob("*.json"))
    return []


def origin(runs: pa.Table, run_id: str) -> dict[str, Any]:
    """Return the machine, code and final weights of a run in ``runs``, by column name."""
    columns = ["host", "device", "numerics", "git_commit", "git_dirty", "torch_version", "weights_hash", "steps"]
    return dict(runs.filter(pc.equal(runs["run_id"], run_id)).select(columns).to_pylist()[0])
