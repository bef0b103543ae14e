"""Runs that must have equal bits and have not, on record in ``conflicts/`` until somebody has settled them."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grok.files import write_json
from grok.store.compare import Conflict, as_json
from grok.store.layout import Layout
from grok.untrusted import is_plain


def record_conflict(layout: Layout, conflict: Conflict, sides: dict[str, Any]) -> Path:
    """Keep a conflict as JSON in ``conflicts/``; the same one twice is one file."""
    other = "" if conflict.run_id == conflict.other_run_id else f"-{conflict.other_run_id}"
    name = f"{conflict.run_id}{other}-{conflict.step}-{conflict.what}"
    if not is_plain(name):  # too long: the names of two branches
        name = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
    path = layout.conflicts / f"{name}.json"
    write_json(path, as_json(conflict, sides), layout.tmp)
    return path


def conflict_files(layout: Layout) -> list[Path]:
    """Return the recorded conflicts, by name."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(layout.conflicts.glob("*.json"))
    return []


def origin(runs: pa.Table, run_id: str) -> dict[str, Any]:
    """Return where a run's row comes from."""
    columns = ["host", "device", "numerics", "git_commit", "git_dirty", "torch_version", "weights_hash", "steps"]
    return dict(runs.filter(pc.equal(runs["run_id"], run_id)).select(columns).to_pylist()[0])
