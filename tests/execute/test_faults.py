"""Whatever is killed, whenever: no finished run is lost, none counted twice, and the store ends as if undisturbed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from grok import run
from grok.store import open_store
from tests.doors.conftest import TINY, Door, start
from tests.execute.conftest import wait_for
from tests.execute.content import content
from tests.kills import RUNS, SWEEP, end_all, workers_of


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, object]:
    store = tmp_path_factory.mktemp("undisturbed") / "S"
    assert run.main([*SWEEP, "executor=inline", f"store.path={store}"]) == 0
    return content(store)


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the sweep in ``tmp_path``; whatever is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        started.append(start(*SWEEP, *words, folder=tmp_path))
        return started[-1]

    yield begin
    for process in started:
        end_all(process)


def checkpointed(store: Path) -> set[str]:
    return {file.parts[-3] for file in store.glob("checkpoints/*/*/*")}


def training(store: Path, runs: int = 1) -> Callable[[], bool]:
    """Return whether at least ``runs`` runs are on their way."""
    return lambda: len(checkpointed(store)) >= runs


def finish(door: Door) -> None:
    """Give the same sweep again until the end; in this process, which is another one for the store."""
    ended = door(*SWEEP, "executor=inline")
    assert ended.status == 0, ended
    assert ended.last.startswith(f"{RUNS} runs stored in S")


def test_a_killed_parent_is_gone_on_from(
    sweep: Callable[..., subprocess.Popen[str]], tmp_path: Path, undisturbed: tuple[object, object], door: Door
) -> None:
    process = sweep("workers=1")
    wait_for(training(tmp_path / "S"))
    workers = workers_of(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers))
    finish(door)
    assert content(tmp_path / "S") == undisturbed


def test_a_run_that_cannot_be_trained_fails_alone(door: Door, tmp_path: Path) -> None:
    """Weights of some terabytes: the engine's own exception, in the middle of a sweep."""
    words = ["-m", "model.d_model=8,400000,16", *(w for w in TINY if "d_model" not in w), "executor=inline"]
    ended = door(*words, "store.path=S")
    assert ended.status == 1, ended
    assert ended.last.startswith("3 runs stored in S (3 new). 1 failed: MemoryError")
    assert "retry_failed=true" in ended.last
    stored = open_store(tmp_path / "S").runs().set_index("config.model.d_model")
    assert stored["status"].to_dict() == {8: "completed", 16: "completed", 400000: "failed"}
    assert "Unable to allocate" in str(stored.loc[400000, "error"])
    again = door(*words, "store.path=S")
    assert again.status == 1
    assert again.out.startswith("3 planned, 3 stored (1 failed), 0 duplicates, 0 to train")
