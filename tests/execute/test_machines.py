"""What machines do to a sweep: no memory, no room, no right to write, and another sweep in the same store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grok.store.contract import assert_contract
from tests.doors.conftest import TINY, Door, command
from tests.execute.content import content, raw_run_ids

SWEEP = ["-m", *TINY, "executor=inline"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of two megabytes."""
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


def undisturbed(door: Door, tmp_path: Path, seeds: str) -> tuple[object, object]:
    store = tmp_path / "undisturbed" / "S"
    assert door(*SWEEP, f"seed={seeds}", f"store.path={store}").status == 0
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
    words = [*SWEEP, f"store.path={disk / 'S'}"]
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
    words = [*SWEEP, "seed=range(0,24)", "store.flush_seconds=0.05", f"store.path={disk / 'S'}"]
    assert door(*SWEEP, "seed=range(0,2)", f"store.path={disk / 'S'}").status == 0
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
    assert content(disk / "S") == undisturbed(door, tmp_path, "range(0,24)")
    assert_contract(disk / "S")


@pytest.mark.slow  # a full disk is refused above
def test_a_store_that_turns_read_only_loses_nothing(disk: Path, door: Door, tmp_path: Path) -> None:
    words = [*SWEEP, f"store.path={disk / 'S'}"]
    assert door(*words, "seed=range(0,2)").status == 0
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    ended = door(*words, "seed=range(0,4)")
    assert ended.status == 2, ended
    assert "Read-only file system" in ended.err or "not writable" in ended.err
    assert "Traceback" not in ended.err
    assert door(*words, "seed=range(0,4)", "dry_run=true").status == 0
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert door(*words, "seed=range(0,4)").status == 0
    assert content(disk / "S") == undisturbed(door, tmp_path, "range(0,4)")


@pytest.mark.slow
def test_two_sweeps_into_one_store_share_the_work(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes at once, their runs partly the same: nothing twice, nothing missing, neither waits for ever."""
    words = ["-m", *TINY, "train.steps=100", "executor=inline", "store.flush_seconds=0.5", "store.path=S"]
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(command, *words, "seed=range(0,6)", folder=tmp_path)
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
