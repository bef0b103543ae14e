"""Kills, signals and machines: no finished run is lost, none counted twice, and the store ends as if undisturbed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grok.commands.compose import arithmetic, compose
from grok.execute.groups import prepare_runs
from grok.records import RunResult
from grok.store import Provenance, Row, open_store
from tests.doors.conftest import TINY, Door
from tests.doors.conftest import command as run_command
from tests.execute.conftest import Begin, wait_for
from tests.execute.content import content, raw_run_ids
from tests.store.conftest import store_of
from tests.store.contract import assert_contract


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


LONG = [*TINY, "train.steps=200000", "eval.every=500"]


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
def test_a_signal_while_planning_is_said(begin: Begin, tmp_path: Path, number: signal.Signals) -> None:
    process = begin("-m", "seed=range(0,300000)", *TINY, "dry_run=true", "store.path=S")
    wait_for(lambda: listens(process.pid, signal.SIGHUP))  # the last to be heard
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert out.strip().splitlines()[-1].endswith("The same command goes on where it stopped.")
    assert "Traceback" not in out


@pytest.mark.slow
def test_an_interruption_is_said_although_the_store_has_a_row_of_every_run(begin: Begin, tmp_path: Path) -> None:
    settings = compose(LONG)
    runs = prepare_runs([arithmetic(settings, seed=seed) for seed in range(2)])
    result = {"status": "failed", "stop_reason": "exception", "error": "made up", "steps": 0}
    rows = [
        Row(RunResult(run_id=r.run_id, **result), r.config, r.identity, Provenance.collect())  # type: ignore[arg-type]
        for r in runs
    ]
    store_of(tmp_path / "S", rows)
    process = begin("-m", "seed=0,1", *LONG, "checkpoint.every=20", "retry_failed=true", "workers=1", "store.path=S")
    wait_for(lambda: any((tmp_path / "S").glob("checkpoints/*/*/*")))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 1, out
    assert out.startswith("2 planned, 0 stored, 0 duplicates, 2 to train"), out
    assert out.strip().splitlines()[-1].startswith("Interrupted: 2 runs stored in S (0 new)."), out
    assert set(open_store(tmp_path / "S").statuses().values()) == {"failed"}


INLINE_SWEEP = ["-m", *TINY, "executor=inline"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    for _ in range(100):  # a worker that was told to end may still be on its way out
        if subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.2)
    subprocess.run(["umount", str(folder)], check=True)


def content_undisturbed(door: Door, tmp_path: Path, seeds: str) -> tuple[object, object]:
    store = tmp_path / "undisturbed" / "S"
    assert door(*INLINE_SWEEP, f"seed={seeds}", f"store.path={store}").status == 0
    return content(store)


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk up to ``leave`` bytes; return the file that does."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    os.truncate(ballast, ballast.stat().st_size - leave)
    return ballast


def test_a_full_disk_is_refused(disk: Path, door: Door) -> None:
    words = [*INLINE_SWEEP, f"store.path={disk / 'S'}"]
    assert door(*words, "seed=range(0,2)").status == 0
    before = raw_run_ids(disk / "S")
    fill(disk, 0)
    ended = door(*words, "seed=range(0,6)")
    assert ended.status == 2, ended
    assert "the disk is full: free some space; what was stored before is unchanged" in ended.err
    assert "Traceback" not in ended.err
    assert raw_run_ids(disk / "S") == before


@pytest.mark.slow  # a full disk is refused above
def test_a_disk_that_fills_up_loses_nothing(disk: Path, door: Door, tmp_path: Path) -> None:
    words = [*INLINE_SWEEP, "seed=range(0,24)", "store.flush_seconds=0.05", f"store.path={disk / 'S'}"]
    assert door(*INLINE_SWEEP, "seed=range(0,2)", f"store.path={disk / 'S'}").status == 0
    ballast = fill(disk, 120_000)
    ended = door(*words)
    assert ended.status == 1, ended
    assert "Traceback" not in ended.out + ended.err
    assert ended.last.startswith("Stopped: ") and "the disk is full" in ended.last, ended
    assert ended.last.endswith("The same command goes on where it stopped."), ended
    there = raw_run_ids(disk / "S")
    assert 2 <= len(there) == len(set(there)) < 24
    ballast.unlink()
    assert door(*words).status == 0
    assert set(there) <= set(raw_run_ids(disk / "S"))
    assert content(disk / "S") == content_undisturbed(door, tmp_path, "range(0,24)")
    assert_contract(disk / "S")


@pytest.mark.slow  # a full disk is refused above
def test_a_store_that_turns_read_only_loses_nothing(disk: Path, door: Door, tmp_path: Path) -> None:
    words = [*INLINE_SWEEP, f"store.path={disk / 'S'}"]
    assert door(*words, "seed=range(0,2)").status == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    ended = door(*words, "seed=range(0,4)")
    assert ended.status == 2, ended
    assert "Read-only file system" in ended.err or "not writable" in ended.err
    assert "Traceback" not in ended.err
    assert door(*words, "seed=range(0,4)", "dry_run=true").status == 0
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert door(*words, "seed=range(0,4)").status == 0
    assert content(disk / "S") == content_undisturbed(door, tmp_path, "range(0,4)")


@pytest.mark.slow
def test_two_sweeps_into_one_store_share_the_work(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes at once, their runs partly the same: nothing twice, nothing missing, neither waits for ever."""
    words = ["-m", *TINY, "train.steps=100", "executor=inline", "store.flush_seconds=0.5", "store.path=S"]
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run_command, *words, "seed=range(0,6)", folder=tmp_path)
        while not (tmp_path / "S" / "leases").exists() and not other.done():
            time.sleep(0.02)  # it has taken its first runs
        ended = [door(*words, "seed=range(2,8)"), other.result()]
    assert [e.status for e in ended] == [0, 0], ended
    assert all(e.last.startswith("6 runs stored in S") for e in ended)
    new = [int(e.last.partition("(")[2].partition(" new")[0]) for e in ended]
    assert sum(new) == 8, "each run is trained by one of them"
    imported = {line.rpartition("|")[2].strip() for line in ended[1].err.splitlines()}
    assert "torch" in imported and "torch._dynamo" not in imported, "what compiles nothing imports no compiler"
    assert len(raw_run_ids(tmp_path / "S")) == 8
    assert_contract(tmp_path / "S")


@pytest.mark.slow
def test_a_run_that_needs_more_memory_than_there_is_fails_alone(tmp_path: Path) -> None:
    """The kernel's own out-of-memory kill, in a control group of 1 GB."""
    group = Path("/sys/fs/cgroup/memory/grok-tests")
    if os.geteuid() != 0 or not group.parent.is_dir():
        pytest.skip("limiting memory needs root and a mounted memory control group")
    group.mkdir(exist_ok=True)
    try:
        (group / "memory.limit_in_bytes").write_text(str(10**9))
        words = ["-m", "train.batch_size=12,18000", "task.modulus=193", *(w for w in TINY if "batch" not in w)]
        words = [w for w in words if w != "task.modulus=7"] + ["model.d_ff=4096", "workers=1", "executor=loky"]
        bring = f"echo $$ > {group}/cgroup.procs && exec "
        line = bring + " ".join(f"'{w}'" for w in [sys.executable, "-m", "grok.run", *words, "store.path=S"])
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 1, done.stdout + done.stderr
        last = done.stdout.strip().splitlines()[-1]
        assert last.startswith("2 runs stored in S (2 new). 1 failed: "), done.stdout
        assert "memory" in last
    finally:
        end = time.monotonic() + 30
        while (group / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.2)  # what tracks resources outlives its parent by a moment
        group.rmdir()
