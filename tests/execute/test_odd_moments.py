"""Signals where nobody waits for them, and runs that are tried once more when the signal comes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grok.config import load_config
from grok.execute.groups import prepare_runs
from grok.records import RunResult
from grok.store import Provenance, Row, StoreWriter, open_store
from tests.doors.conftest import TINY, start
from tests.execute.conftest import wait_for
from tests.kills import end_all

LONG = [*TINY, "train.steps=200000", "eval.every=500"]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in ``tmp_path``; whatever is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        started.append(start(*words, folder=tmp_path))
        return started[-1]

    yield begin
    for process in started:
        end_all(process)


def listens(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux which signals a process handles")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGHUP,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)),
    ],
)
def test_a_signal_while_planning_is_said(
    command: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    """A scheduler that wants its place back does not wait until training has begun."""
    process = command("-m", "seed=range(0,300000)", *TINY, "dry_run=true", "store.path=S")
    wait_for(lambda: listens(process.pid, signal.SIGHUP))  # the last to be heard
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert out.strip().splitlines()[-1].endswith("The same command goes on where it stopped.")
    assert "Traceback" not in out


@pytest.mark.slow
def test_an_interruption_is_said_although_the_store_has_a_row_of_every_run(
    command: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """With ``retry_failed`` the failed rows of what was not got to are still there."""
    settings: dict[str, dict[str, object]] = {}
    for word in LONG:
        name, _, value = word.partition("=")
        group, _, key = name.partition(".")
        settings.setdefault(group, {})[key] = value if not value.isdecimal() else int(value)
    settings["numerics"] = {"compile": False}
    runs = prepare_runs([load_config({**settings, "seed": seed}) for seed in range(2)])
    result = {"status": "failed", "stop_reason": "exception", "error": "made up", "steps": 0}
    rows = [
        Row(RunResult(run_id=r.run_id, **result), r.config, r.identity, Provenance.collect())  # type: ignore[arg-type]
        for r in runs
    ]
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit(rows)
    process = command("-m", "seed=0,1", *LONG, "checkpoint.every=20", "retry_failed=true", "workers=1", "store.path=S")
    wait_for(lambda: any((tmp_path / "S").glob("checkpoints/*/*/*")))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 1, out
    assert out.startswith("2 planned, 0 stored, 0 duplicates, 2 to train"), out
    assert out.strip().splitlines()[-1].startswith("Interrupted: 2 runs stored in S (0 new)."), out
    assert set(open_store(tmp_path / "S").statuses().values()) == {"failed"}
