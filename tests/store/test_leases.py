"""Two sweeps in one store: who trains what, and what becomes of a dead sweep's claims."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from grok.processes import Owner, alive_here
from grok.store import StoreWriter, open_store
from grok.store.contract import example_row, failed
from grok.store.layout import Layout
from grok.store.leases import Leases

CLAIMANT = """
import sys
from grok.store import StoreWriter
writer = StoreWriter(sys.argv[1])
print(*writer.claim(sys.argv[2:]).granted, flush=True)
sys.stdin.read()
"""


def claimant(path: Path, *runs: str) -> subprocess.Popen[str]:
    """Start a process that claims ``runs`` and lives until its input is closed or it is killed."""
    command = [sys.executable, "-c", CLAIMANT, str(path), *runs]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().split() == list(runs)
    return process


def test_a_living_sweep_keeps_its_runs_and_a_killed_one_loses_them(tmp_path: Path) -> None:
    path = tmp_path / "S"
    with StoreWriter(path) as writer, claimant(path, "a", "b") as other:
        claim = writer.claim(["a", "c"])
        assert claim.granted == ["c"]
        assert claim.held == {"a": f"process {other.pid} on {Owner.this_process().host}"}
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert writer.claim(["a", "b"]).granted == ["a", "b"]


def test_leases_are_given_back_on_leaving(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "S") as first, StoreWriter(tmp_path / "S") as second:
        assert first.claim(["a"]).granted == ["a"]
        assert first.claim(["a"]).granted == ["a"]  # one's own lease is no obstacle
        assert second.claim(["a", "b"]).granted == ["b"]
        first.close()
        assert second.claim(["a"]).granted == ["a"]
    assert not list(Layout(tmp_path / "S").leases.glob("*.json"))


def test_what_is_stored_is_not_leased(tmp_path: Path) -> None:
    row, broken = example_row(0), failed(example_row(1))
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([row, broken])
        runs = [row.result.run_id, broken.result.run_id, "new"]
        claim = writer.claim(runs)
        assert (claim.granted, sorted(claim.done)) == (["new"], sorted(runs[:2]))
        assert writer.claim(runs, retry_failed=True).granted == runs[1:]


def test_a_sweep_on_another_machine_is_judged_by_its_heartbeat_alone(tmp_path: Path) -> None:
    StoreWriter(tmp_path / "S").close()
    layout = Layout(tmp_path / "S")
    elsewhere = replace(Owner.this_process(), name="far", machine="elsewhere", host="far")
    assert alive_here(elsewhere) is None
    (layout.leases / "far.json").write_text(json.dumps({"owner": asdict(elsewhere), "run_ids": ["a"]}))
    beat = layout.leases / "far.beat"
    beat.write_text("1")
    now = [1000.0]
    leases = Leases(layout, stale_after=60, clock=lambda: now[0])

    def granted() -> bool:
        with leases.locked():
            return leases.claim(["a"]).granted == ["a"]

    assert not granted()
    now[0] += 59
    assert not granted()
    beat.write_text("2")
    now[0] += 59
    assert not granted()  # the change was seen only now
    now[0] += 59
    assert not granted()
    now[0] += 2
    assert granted()
    assert not (layout.leases / "far.json").exists()


def test_a_stopped_sweep_on_this_machine_is_named_and_taken_over(tmp_path: Path) -> None:
    """It waits for a debugger, a Ctrl-Z or a hung disk: its process is alive, and nobody knows for how long."""
    path = tmp_path / "S"
    now = [1000.0]
    StoreWriter(path).close()
    leases = Leases(Layout(path), stale_after=60, clock=lambda: now[0])
    with claimant(path, "a") as other:
        other.send_signal(signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)
        named = f"process {other.pid} on {Owner.this_process().host}, which is stopped"
        with leases.locked():
            assert leases.claim(["a"]).held == {"a": named}
            now[0] += 59
            assert leases.claim(["a"]).held
            now[0] += 2
            assert leases.claim(["a"]).granted == ["a"]
        other.kill()


def test_a_copy_of_a_store_in_use_waits_for_nobody(tmp_path: Path) -> None:
    with claimant(tmp_path / "S", "a"):
        shutil.copytree(tmp_path / "S", tmp_path / "copy")
        (tmp_path / "again").symlink_to(tmp_path / "S")
        with StoreWriter(tmp_path / "copy") as copied, StoreWriter(tmp_path / "again") as same:
            assert copied.claim(["a"]).granted == ["a"]
            assert same.claim(["a"]).held


def test_a_heartbeat_says_when_the_leases_were_taken_over(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "S") as writer:
        assert writer.heartbeat()
        writer.claim(["a"])
        (beat,) = Layout(tmp_path / "S").leases.glob("*.beat")
        before = beat.read_text()
        assert writer.heartbeat()
        assert beat.read_text() != before
        beat.with_suffix(".json").unlink()
        assert not writer.heartbeat()


def test_a_recycled_process_number_keeps_no_lease_alive() -> None:
    me = Owner.this_process()
    assert alive_here(me) is True
    assert alive_here(replace(me, started="1")) is False


@pytest.mark.parametrize("damage", ["", "{", '{"owner": {}}', "[]"])
def test_an_unreadable_lease_is_nobodys(tmp_path: Path, damage: str) -> None:
    with StoreWriter(tmp_path / "S") as writer:
        (tmp_path / "S" / "leases" / "x.json").write_text(damage)
        assert writer.claim(["a"]).granted == ["a"]
    assert open_store(tmp_path / "S").runs().empty
