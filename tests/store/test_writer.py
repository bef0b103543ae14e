"""Committing, refusing, and putting right what kills and bad disks leave."""

import errno
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grok.checkpoints import run_folder, save_weights
from grok.errors import StoreError
from grok.processes import Owner, alive_here
from grok.records import StepPoint
from grok.store import DamagedShardWarning, Row, StoreWriter, check_path, open_store
from grok.store.layout import Layout
from grok.store.leases import Leases
from grok.store.schema import SCHEMA_VERSION, TABLES
from grok.store.upkeep import compact, verify
from tests.store.contract import (
    assert_contract,
    contents,
    example_design,
    example_row,
    example_rows,
    failed,
    read_raw,
    with_other_bits,
)


def ids(rows: list[Row]) -> set[str]:
    return {row.result.run_id for row in rows}


def listing(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


class TestRefused:
    """What is refused, and that nothing is written then."""

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(StoreError, match="is a file"):
                check_path(path)
            with pytest.raises(StoreError, match="is a file"):
                StoreWriter(path)
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_folder_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("mine")
        with pytest.raises(StoreError, match=r"has other files \(thesis.tex\).*choose an empty"):
            StoreWriter(tmp_path)
        assert [p.name for p in listing(tmp_path)] == ["thesis.tex"]

    def test_a_store_of_a_newer_schema(self, tmp_path: Path) -> None:
        StoreWriter(tmp_path / "S").close()
        marker = tmp_path / "S" / "store.json"
        content = json.loads(marker.read_text())
        for change, words in (
            ({"schema_version": SCHEMA_VERSION + 1}, f"schema {SCHEMA_VERSION + 1}, which this version does not know"),
            ({"columns": {**content["columns"], "runs": {"mood": "string"}}}, "the column 'mood' of runs, which"),
        ):
            marker.write_text(json.dumps({**content, **change}))
            before = listing(tmp_path)
            for use in (StoreWriter, open_store, check_path):
                with pytest.raises(StoreError, match=words):
                    use(tmp_path / "S")
            assert listing(tmp_path) == before

    def test_reading_where_there_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match=r"no store at .*does not exist"):
            open_store(tmp_path / "S")
        with pytest.raises(StoreError, match=r"has no store.json"):
            open_store(tmp_path)
        assert not listing(tmp_path)

    def test_a_place_where_writing_is_not_allowed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
            place = Path(folder)
            StoreWriter(place / "made").close()
            for shut in (place / "made", place):
                shut.chmod(0o555)
            script = (
                "import os, sys\n"
                "from grok.store import StoreWriter, check_path\n"
                "from grok.errors import StoreError\n"
                "os.getuid() == 0 and os.setuid(65534)\n"
                "for use in (check_path, StoreWriter):\n"
                "    try: use(sys.argv[1]); sys.exit('allowed')\n"
                "    except StoreError as error: assert 'is not writable: choose another' in str(error), error\n"
                "assert check_path(os.path.dirname(sys.argv[1]) + '/made', to_write=False)\n"
            )
            subprocess.run([sys.executable, "-c", script, str(place / "S")], check=True, cwd="/")
            for shut in (place, place / "made"):
                shut.chmod(0o755)

    def test_a_name_for_a_sweep_that_leads_elsewhere(self, tmp_path: Path) -> None:
        with StoreWriter(tmp_path / "S") as writer:
            for name in ("../x", "", ".x", "a/b"):
                with pytest.raises(StoreError, match="sweep_id"):
                    writer.record_sweep(name, [], {})
            path = writer.record_sweep("sweep-1", ["seed=range(0,3)"], {"seed": 0})
        assert json.loads(path.read_text())["argv"] == ["seed=range(0,3)"]


def test_a_disk_that_refuses_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The kernel's file size limit stands in for a full disk: the write fails half-way, as there."""
    script = """
import resource, signal, sys
from grok.errors import StoreError
from grok.store import StoreWriter
from tests.store.contract import example_rows
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with StoreWriter(sys.argv[1]) as writer:
    writer.commit(example_rows(range(2)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
    rows = example_rows(range(2, 60), every=1)
    try: writer.commit(rows); sys.exit("written")
    except StoreError as error: assert "unchanged" in str(error) and "\\n" not in str(error), error
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(writer.commit(rows).written) == 58  # the same rows again, once there is room
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "S")], check=True)
    assert_contract(tmp_path / "S")
    assert len(open_store(tmp_path / "S").runs()) == 60


def test_what_is_stored_is_on_the_disk(tmp_path: Path, lost_in_a_power_cut: set[str]) -> None:
    row = example_row(0)
    with StoreWriter(tmp_path / "S") as writer:
        writer.record_sweep("s1", ["x"], {})
        save_weights(run_folder(tmp_path / "S", row.result.run_id), "final", {"w": torch.ones(2)})
        writer.commit([row])
    assert lost_in_a_power_cut == set()
    tmp = os.open(tmp_path / "S" / "tmp", os.O_RDONLY)
    StoreWriter(tmp_path / "S").close()
    assert os.fstat(tmp).st_nlink > 0, "the folder, whose name is on the disk, stays"
    os.close(tmp)


class TestDamage:
    """Damaged shards go to quarantine with a reason; the rest stays readable; their runs count as not stored."""

    @pytest.mark.parametrize(
        ("kind", "damage"), [("runs", "truncated"), ("runs", "flipped"), ("curves", "empty"), ("curves", "not parquet")]
    )
    def test_a_damaged_shard(self, store: Path, kind: str, damage: str) -> None:
        victim = sorted((store / kind).iterdir())[1]
        whole = victim.read_bytes()
        middle = len(whole) // 3
        victim.write_bytes(
            {
                "truncated": whole[: len(whole) // 2],
                "flipped": whole[:200] + bytes(b ^ 0xFF for b in whole[200:middle]) + whole[middle:],
                "empty": b"",
                "not parquet": b"hello",
            }[damage]
        )
        with pytest.warns(DamagedShardWarning, match=victim.name):
            frame = open_store(store).runs() if kind == "runs" else open_store(store).curves()
        assert frame["run_id"].nunique() == 3
        with StoreWriter(store) as writer:
            (recovered,) = writer.recovered
            assert recovered.name == victim.stem
            assert kind in str(recovered)
            left = open_store(store).run_ids()
            assert len(left) == 3
            assert (store / "quarantine" / f"{kind}-{victim.name}").exists()
            assert recovered.reason in (store / "quarantine" / f"{victim.stem}.json").read_text()
            report = writer.commit(example_rows(range(6)))
        assert set(report.written) == ids(example_rows(range(6))) - left
        assert_contract(store)

    @pytest.mark.parametrize("use", ["commit", "claim", "holds"])
    def test_damage_while_in_use_is_met_by_whatever_is_asked(self, store: Path, use: str) -> None:
        row = example_row(20)
        asked = {"commit": [row], "claim": [row.result.run_id], "holds": row.result.run_id}[use]
        with StoreWriter(store) as writer:
            victim = sorted((store / "runs").iterdir())[0]
            victim.write_bytes(victim.read_bytes()[:-100])
            found = getattr(writer, use)(asked)
            recovered = found.recovered if use == "commit" else writer.recovered
            assert [r.name for r in recovered] == [victim.stem]
        assert_contract(store)
        assert len(open_store(store).run_ids()) == 3 + (use == "commit")

    def test_an_orphan_that_appears_while_in_use(self, store: Path, tmp_path: Path) -> None:
        """A commit that was killed after its curves: the same run's points would be in the table twice."""
        with StoreWriter(tmp_path / "killed") as killed:
            killed.commit([example_row(20)])
        with StoreWriter(store) as writer:
            (orphan,) = (tmp_path / "killed" / "curves").iterdir()
            shutil.copy(orphan, store / "curves")
            report = writer.commit([example_row(20)])
            assert [r.name for r in report.recovered] == [orphan.stem]
        assert_contract(store)

    def test_reading_never_writes(self, store: Path) -> None:
        victim = sorted((store / "curves").iterdir())[0]
        victim.write_bytes(b"hello")
        (store / "curves" / "orphan.parquet").write_bytes(sorted((store / "curves").iterdir())[1].read_bytes())
        before = [(p, p.stat().st_mtime_ns) for p in listing(store)]
        with pytest.warns(DamagedShardWarning):
            opened = open_store(store)
            opened.runs()
            assert opened.curves()["run_id"].nunique() == 3
            opened.steps()
        assert [(p, p.stat().st_mtime_ns) for p in listing(store)] == before


@pytest.mark.parametrize("text", [None, "", '{"store": "grok-lab"}'])
def test_a_lost_marker_can_be_had_from_any_other_store(tmp_path: Path, text: str | None) -> None:
    for name in ("S", "other"):
        with StoreWriter(tmp_path / name) as writer:
            writer.commit([example_row(1)])
    marker = tmp_path / "S" / "store.json"
    marker.unlink()
    if text is not None:
        marker.write_text(text)
    with pytest.raises(StoreError, match=r"copy store\.json from any other store of the same version"):
        StoreWriter(tmp_path / "S")
    shutil.copy(tmp_path / "other" / "store.json", marker)
    with StoreWriter(tmp_path / "S") as writer:
        assert writer.recovered == []
    assert len(open_store(tmp_path / "S").runs()) == 1


def test_a_run_given_twice_in_one_commit(tmp_path: Path) -> None:
    row = example_row(0)
    with StoreWriter(tmp_path / "S") as writer:
        report = writer.commit([failed(row), row, row])
        run = [row.result.run_id]
        assert (report.written, report.replaced, report.duplicates, report.conflicts) == (run, run, run, [])
        assert writer.commit([]).written == []
    assert_contract(tmp_path / "S")


def test_a_failed_run_leaves_its_shard_without_touching_its_neighbours(tmp_path: Path) -> None:
    rows = example_rows(range(3))
    broken = replace(rows[0], result=replace(rows[0].result, status="failed", step_log=[StepPoint(step=1)]))
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([broken, *rows[1:]])
        (shard,) = (tmp_path / "S" / "runs").iterdir()
        writer.commit([rows[0]])
        assert shard.exists()
    assert_contract(tmp_path / "S")
    assert open_store(tmp_path / "S").steps().empty
    with StoreWriter(tmp_path / "S") as writer:
        assert writer.recovered == []
    assert len(open_store(tmp_path / "S").curves()) == sum(len(row.result.curve) for row in rows)


@pytest.mark.parametrize(
    ("call", "alone"),
    [
        ("fsync", False),
        ("unlink", True),
        *(pytest.param(call, True, marks=pytest.mark.slow) for call in ("rename", "close")),
    ],
)
def test_no_refused_call_costs_a_failed_row_or_denies_a_stored_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, alone: bool
) -> None:
    """Each call in turn is the first that the disk refuses; all after it are refused, too."""
    rows, close = example_rows(range(2)), os.close
    before = [failed(row) for row in rows[: 1 if alone else 2]]
    for refused in itertools.count():
        path = tmp_path / f"S{refused}"
        with StoreWriter(path) as writer:
            writer.commit(before)
            calls = itertools.count()

            def maybe(real: Callable[..., Any], *words: Any, calls: Any = calls, refused: int = refused) -> Any:
                if next(calls) >= refused:
                    if real is close:  # the kernel closes it all the same
                        real(*words)
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(*words)

            with monkeypatch.context() as patch:
                names = {"rename": ["rename", "replace"]}.get(call, [call])
                for name in names:
                    patch.setattr(os, name, functools.partial(maybe, getattr(os, name)))
                try:
                    writer.commit([rows[0]])
                    said = "completed"
                except StoreError as error:
                    assert "unchanged" in str(error)
                    said = "failed"
            met = next(calls) > refused
        StoreWriter(path).close()
        assert open_store(path).statuses() == {
            row.result.run_id: said if row is before[0] else "failed" for row in before
        }
        assert_contract(path)
        if not met:
            break


def test_threads_and_processes_write_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "S"
    script = (
        "import sys\nfrom grok.store import StoreWriter\nfrom tests.store.contract import example_rows\n"
        "with StoreWriter(sys.argv[1], thorough=False) as writer:\n"
        "    for start in range(0, 40, 4): writer.commit(example_rows(range(start, start + 4)))\n"
    )
    others = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(2)]
    with StoreWriter(path) as writer, ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(lambda start: writer.commit(example_rows(range(start, start + 5))), range(0, 40, 5)))
    assert [other.wait() for other in others] == [0, 0]
    assert not [c for report in reports for c in report.conflicts]
    assert_contract(path)
    assert open_store(path).run_ids() == ids(example_rows(range(40)))


def test_a_half_made_store_is_finished(tmp_path: Path) -> None:
    (tmp_path / "S" / "tmp").mkdir(parents=True)
    (tmp_path / "S" / "tmp" / "store.json.0123").write_text("{")
    (tmp_path / "S" / "runs").mkdir()
    StoreWriter(tmp_path / "S").close()
    assert_contract(tmp_path / "S")
    for folder in ("leases", "quarantine"):
        shutil.rmtree(tmp_path / "S" / folder)
    (tmp_path / "S" / "steps" / "empty.parquet").write_bytes(b"")
    with StoreWriter(tmp_path / "S") as writer:
        assert writer.recovered == []
        assert_contract(tmp_path / "S")
        shutil.rmtree(tmp_path / "S" / "tmp")
        assert len(writer.commit(example_rows(range(2))).written) == 2
    assert_contract(tmp_path / "S")


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
        assert writer.leased_by_others() == {"a", "b"}
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert not writer.leased_by_others()
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


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the clock by which leases go stale."""
    now = [1000.0]
    monkeypatch.setattr("grok.store.leases.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_sweep_on_another_machine_is_judged_by_its_heartbeat_alone(tmp_path: Path, now: list[float]) -> None:
    StoreWriter(tmp_path / "S").close()
    layout = Layout(tmp_path / "S")
    elsewhere = replace(Owner.this_process(), name="far", machine="elsewhere", host="far")
    assert alive_here(elsewhere) is None
    leases = Leases(layout)

    def beat(number: int) -> None:
        content = {"owner": asdict(elsewhere), "run_ids": ["a"], "beat": number}
        (layout.leases / "far.json").write_text(json.dumps(content))

    def granted() -> bool:
        with leases.locked():
            return leases.claim(["a"]).granted == ["a"]

    beat(1)
    assert not granted()
    now[0] += 119
    assert not granted()
    beat(2)
    now[0] += 119
    assert not granted()  # the change was seen only now
    now[0] += 119
    assert not granted()
    now[0] += 2
    assert granted()
    assert not (layout.leases / "far.json").exists()


def test_a_stopped_sweep_on_this_machine_is_named_and_taken_over(tmp_path: Path, now: list[float]) -> None:
    """It waits for a debugger, a Ctrl-Z or a hung disk: its process is alive, and nobody knows for how long."""
    path = tmp_path / "S"
    StoreWriter(path).close()
    leases = Leases(Layout(path))
    with claimant(path, "a") as other:
        other.send_signal(signal.SIGSTOP)
        os.waitpid(other.pid, os.WUNTRACED)
        named = f"process {other.pid} on {Owner.this_process().host}, which is stopped"
        with leases.locked():
            assert leases.claim(["a"]).held == {"a": named}
            now[0] += 119
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


def test_a_heartbeat_renews_leases_that_were_not_taken_over(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "S") as writer:
        writer.heartbeat()
        writer.claim(["a"])
        (beat,) = Layout(tmp_path / "S").leases.glob("*.json")
        before = beat.read_text()
        writer.heartbeat()
        assert beat.read_text() != before
        beat.unlink()
        writer.heartbeat()
        assert not beat.exists()


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


def test_a_late_duplicate_is_compared_and_dropped(tmp_path: Path) -> None:
    first, late = StoreWriter(tmp_path / "S"), StoreWriter(tmp_path / "S")
    row = example_row(1)
    assert first.commit([row]).written
    assert late.commit([row]).duplicates == [row.result.run_id]
    (conflict,) = late.commit([with_other_bits(row, 100)]).conflicts
    assert (conflict.run_id, conflict.step, conflict.what) == (row.result.run_id, 100, "val_loss")
    recorded = list((tmp_path / "S" / "conflicts").iterdir())
    assert len(recorded) == 1
    assert [p for p in verify(tmp_path / "S") if str(recorded[0]) in p], "verify does not report a conflict"
    recorded[0].unlink()
    assert_contract(tmp_path / "S")
    val_loss = open_store(tmp_path / "S").curves(columns=["val_loss"])["val_loss"].tolist()
    assert val_loss == [point.val_loss for point in row.result.curve], "the first commit's bits stay"


def test_compaction_keeps_every_row_in_sight(tmp_path: Path) -> None:
    path = tmp_path / "S"
    with StoreWriter(path) as writer:
        for row in example_rows(range(12)):
            writer.commit([row])
            writer.record_design(example_design([row.result.run_id]))
    before = {kind: contents(path, kind) for kind in TABLES}
    every = sorted(before["runs"]["run_id"].to_pylist())
    with ThreadPoolExecutor() as pool:
        compacting = pool.submit(compact, path)
        while not compacting.done():
            with suppress(FileNotFoundError):  # listed, then exchanged: a raw reader must list again
                assert sorted(row["run_id"] for row in read_raw(path, "runs")) == every
    compacted = compacting.result()
    assert (compacted.before, compacted.after, compacted.designs) == (12, 1, 11)
    assert_contract(path)
    assert all(contents(path, kind).equals(before[kind]) for kind in TABLES)


def test_a_design_is_stored_once_whoever_plans_it(tmp_path: Path) -> None:
    path, design = tmp_path / "S", example_design(["a", "b"], kind="repeat", parent="a")
    first, late = StoreWriter(path), StoreWriter(path)
    assert (first.record_design(design), late.record_design(design, {"a"})) == (2, 0)
    assert open_store(path).designs()["results_seen"].tolist() == [False, False]
    first.retire_design(design.design_id[:6], "a try")
    assert open_store(path).designs()["retired"].tolist() == ["a try", "a try"]
    assert late.record_design(example_design(["a"])) == 1 and late.planned_again == {}
    assert late.record_design(design) == 0 and late.planned_again == {design.design_id: "a try"}
    assert open_store(path).designs()["retired"].isna().all(), "the same plan again brings it back"
    assert_contract(path)
