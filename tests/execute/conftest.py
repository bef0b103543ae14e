"""Small runs for the execution's tests."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grok.config import RunConfig, load_config
from grok.execute.worker import WorkerSettings
from grok.store import Provenance
from grok.store.contract import MACHINE
from tests.doors.conftest import door  # noqa: F401 (a fixture)

TINY: dict[str, Any] = {
    "task": {"operation": "x+y", "modulus": 7},
    "model": {"layers": 1, "d_model": 8, "heads": 2, "d_ff": 16},
    "train": {"steps": 6, "batch_size": 12},
    "eval": {"every": 3},
    "numerics": {"compile": False},
}


def tiny(seed: int = 0, **sections: Any) -> RunConfig:
    """Return a run of a fraction of a second; sections replace settings: ``train={"steps": 9}``."""
    merged = {name: dict(values) for name, values in TINY.items()}
    plain: dict[str, Any] = {"seed": seed}
    for name, value in sections.items():
        if isinstance(value, dict):
            merged.setdefault(name, {}).update(value)
        else:
            plain[name] = value
    return load_config({**merged, **plain})


def worker_settings(folder: Path, provenance: Provenance = MACHINE) -> WorkerSettings:
    """Return the settings of a worker that trains into the store ``S`` of ``folder``."""
    return WorkerSettings(
        store_path=str(folder / "S"), live_path=str(folder / "live"), flush_seconds=30.0, device="cpu", lanes=None,
        retry_failed=False, provenance=provenance, parent=None,
    )  # fmt: skip


def wait_for(what: Callable[[], object], seconds: float = 200.0) -> None:
    """Return as soon as ``what`` is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
