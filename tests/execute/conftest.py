"""Small runs for the execution's tests, and sweeps as commands."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grok.commands.compose import apply, values_of
from grok.config import RunConfig, load_config
from grok.execute.worker import WorkerSettings
from grok.store import Provenance
from tests.doors.conftest import TINY as SETTINGS
from tests.doors.conftest import command, start
from tests.doors.conftest import door as door  # a fixture
from tests.execute.content import content
from tests.kills import end_all
from tests.store.contract import MACHINE

Begin = Callable[..., subprocess.Popen[str]]
Content = tuple[object, object]

TINY = apply({}, values_of(SETTINGS))


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


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Content:
    """Train the module's ``SWEEP`` in one process, and return what its store holds."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = command(*request.module.SWEEP, "executor=inline", folder=folder, timeout=900)
    assert ended.status == 0, ended
    return content(folder / "S")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a command in ``tmp_path``; whatever is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*words: str) -> subprocess.Popen[str]:
        started.append(start(*words, folder=tmp_path))
        return started[-1]

    yield start_one
    for process in started:
        end_all(process)
