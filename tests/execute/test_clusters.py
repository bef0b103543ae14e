"""A Dask cluster that others started, as a user finds it: it is used, it may be lost, it may not be there."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.doors.conftest import TINY, command, environment
from tests.execute.conftest import Begin, Content, wait_for
from tests.execute.content import content
from tests.execute.slurm_cluster import free_port
from tests.kills import end_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

if importlib.util.find_spec("distributed") is None:
    pytest.skip("distributed is not installed (the extra 'dask')", allow_module_level=True)

SWEEP = [
    "-m", "seed=range(0,4)", *(word for word in TINY if not word.startswith(("train.steps", "eval"))),
    "train.steps=5000", "eval.every=500", "checkpoint.every=50", "store.flush_seconds=0.5", "store.path=S",
]  # fmt: skip


def answers(port: int) -> bool:
    with socket.socket() as there:
        return there.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Start `dask scheduler` and `dask worker`, name them in DASK_SCHEDULER_ADDRESS; return the scheduler."""
    port, dask = free_port(), str(Path(sys.executable).parent / "dask")
    address = f"tcp://127.0.0.1:{port}"
    (tmp_path / "dask").mkdir()
    running: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> None:
        with (tmp_path / "dask" / f"{words[0]}.log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    [dask, *words],
                    cwd=tmp_path / "dask",
                    env=environment(),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    begin("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    wait_for(lambda: answers(port))
    begin("worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
    yield running[0]
    for process in running:
        end_all(process)


def test_a_cluster_that_is_there_is_used(
    cluster: subprocess.Popen[bytes], tmp_path: Path, undisturbed: Content
) -> None:
    ended = command(*SWEEP, "executor=dask", "workers=2", folder=tmp_path)
    assert ended.status == 0, ended
    assert ended.last.startswith("4 runs stored in S (4 new).")
    assert content(tmp_path / "S") == undisturbed
    assert cluster.poll() is None, "the cluster is others', and goes on"


def test_a_lost_scheduler_is_no_runs_fault(
    cluster: subprocess.Popen[bytes], begin: Begin, tmp_path: Path, undisturbed: Content
) -> None:
    process = begin(*SWEEP, "executor=dask", "workers=2")
    wait_for(lambda: any((tmp_path / "S").glob("checkpoints/*/*/*")))
    os.kill(cluster.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1, out
    last = out.strip().splitlines()[-1]
    assert last.startswith("Stopped: the connection to the Dask scheduler is lost."), out
    assert " is lost. At least " in last and " of 4 runs stored in S (" in last, out
    assert "Traceback" not in out, out
    assert last.endswith("The same command goes on where it stopped.")
    assert "fails (" not in out, "a run was blamed"
    ended = command(*SWEEP, "executor=loky", "workers=2", folder=tmp_path)
    assert ended.status == 0, ended
    assert content(tmp_path / "S") == undisturbed


def test_a_lost_head_of_ray_is_no_runs_fault(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Content
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "200")
    port, ray = free_port(), str(Path(sys.executable).parent / "ray")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as short:  # its sockets' names have 107 bytes at most
        words = f"start --head --block --port {port} --num-cpus 2 --include-dashboard false --temp-dir {short}"
        head = subprocess.Popen([ray, *words.split()], env=environment(), stdout=subprocess.DEVNULL, stderr=2)
        try:
            wait_for(lambda: answers(port))
            monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
            process = begin(*SWEEP, "executor=ray", "workers=2")
            wait_for(lambda: any((tmp_path / "S").glob("checkpoints/*/*/*")))
            (server,) = (p for p in psutil.Process(head.pid).children(recursive=True) if p.name() == "gcs_server")
            server.kill()
            out, _ = process.communicate(timeout=300)
        finally:
            end_all(head)
    assert process.returncode == 1, out
    assert "Stopped: Ray's head at " in out and "Traceback" not in out, out
    ended = command(*SWEEP, "executor=loky", "workers=2", folder=tmp_path)
    assert ended.status == 0, ended
    assert content(tmp_path / "S") == undisturbed


def test_a_local_ray_that_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "a file" / "tmp"))
    (tmp_path / "a file").touch()
    ended = command(*SWEEP, "executor=ray", folder=tmp_path)
    assert ended.status == 2, ended
    assert "executor=ray: Ray does not start here (" in ended.err and "Traceback" not in ended.err
