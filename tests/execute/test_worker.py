"""A worker and its sweep: what a report says, rows, lineage, device errors, and the runs of a sweep that died."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import grok.store.provenance
from grok.execute import live, worker
from grok.execute.executors.base import InlineExecutor
from grok.execute.groups import Group, PlannedRun, lane_groups, prepare_runs
from grok.execute.live import Ledger, LiveFolder
from grok.execute.retry import GroupRunner, Totals
from grok.execute.sweep import Sweep
from grok.execute.worker import Lineage, WorkerSettings, run_group, run_group_in_worker
from grok.processes import Owner
from grok.records import Checkpoint, Job
from grok.runs import is_device_error
from grok.store import Provenance, StoreWriter, open_store
from grok.store.contract import MACHINE, example_row, example_rows
from grok.store.layout import Layout
from grok.store.leases import STALE_AFTER, Leases
from tests.execute.conftest import tiny

# A group of runs in a worker: what its report says of the store.


def test_damage_that_a_worker_puts_right_is_in_its_report(tmp_path: Path) -> None:
    store, (first, second) = tmp_path / "S", example_rows(range(2))
    with StoreWriter(store) as writer:
        writer.commit([second])
        (victim,) = set((store / "runs").glob("*.parquet")) - {store / "runs" / "empty.parquet"}
        writer.commit([first])
    victim.write_bytes(victim.read_bytes()[:-50])
    settings = WorkerSettings(
        store_path=str(store), live_path=str(store / "live" / "x"), flush_seconds=30.0, device="cpu", lanes=None,
        retry_failed=False, provenance=Provenance.collect(), parent=None,
    )  # fmt: skip
    report = run_group(Group(tuple(prepare_runs([first.config]))), settings)
    assert report.stored == [first.result.run_id]
    assert len(report.notes) == 1
    assert report.notes[0].startswith(f"Repaired: moved shard {victim.stem} to quarantine")


# The thread of a worker: it stores finished runs and gives signs of life while the engine is silent.


def test_a_row_that_is_dropped_is_not_said_to_be_stored(tmp_path: Path) -> None:
    """Another sweep stored its run meanwhile: its checkpoints belong to the row that stays."""
    stored: list[str] = []
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([example_row(0)])
        with Ledger(writer, 30.0, lambda row: stored.append(row.result.run_id)) as late:
            late.add(example_row(0))
            late.add(example_row(1))
    assert stored == [example_row(1).result.run_id]


def test_a_silent_engine_stops_neither_the_store_nor_the_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK", 0.01)
    monkeypatch.setattr(live, "HEARTBEAT", 0.01)
    row = example_row(0)
    stored: list[str] = []
    with StoreWriter(tmp_path / "S") as writer:
        writer.claim([row.result.run_id])
        (beat,) = (tmp_path / "S" / "leases").glob("*.beat")
        first = beat.read_text()
        with Ledger(writer, 0.05, lambda row: stored.append(row.result.run_id)) as silent:
            silent.add(row)
            latest = time.monotonic() + 60  # a busy machine may be slow, and without the thread neither ever comes
            while not (stored and beat.read_text() != first):
                assert time.monotonic() < latest, "no row, or no sign of life"
                time.sleep(0.01)
            assert open_store(tmp_path / "S").run_ids() == {row.result.run_id} == set(stored)


# A run that goes on from a checkpoint says under which code it was trained, all of it.


def train(folder: Path, patch: pytest.MonkeyPatch, commit: str | None, dirty: bool | None, *, dies: bool) -> None:
    """Train one run under ``commit``; one that dies leaves the checkpoint of half the way."""
    real = worker.keep_checkpoint

    def last_deed(*words: Any) -> None:
        real(*words)
        raise RuntimeError("the power goes")

    with patch.context() as inside:
        inside.setattr(grok.store.provenance, "git_state", lambda: (commit, dirty))
        if dies:
            inside.setattr(worker, "keep_checkpoint", last_deed)
        settings = WorkerSettings(
            store_path=str(folder / "S"), live_path=str(folder / "live"), flush_seconds=30.0, device="cpu", lanes=None,
            retry_failed=False, provenance=replace(MACHINE, git_commit=commit, git_dirty=dirty), parent=None,
        )  # fmt: skip
        StoreWriter(folder / "S").close()
        report = run_group(Group(tuple(prepare_runs([tiny(checkpoint={"every": 3})]))), settings)
    assert report.fatal is None
    assert (report.error is not None) is dies


@pytest.mark.parametrize(
    ("began", "ended", "said"),
    [
        (("a" * 40, False), ("b" * 40, False), ("a" * 40 + " | " + "b" * 40, False)),
        (("a" * 40, True), ("b" * 40, False), ("a" * 40 + " | " + "b" * 40, True)),
        (("a" * 40, False), ("a" * 40, False), ("a" * 40, False)),
        ((None, None), ("b" * 40, False), ("unknown | " + "b" * 40, None)),
        ((None, None), (None, None), (None, None)),
    ],
)
def test_a_row_names_every_code_that_trained_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: Any, ended: Any, said: Any
) -> None:
    train(tmp_path, monkeypatch, *began, dies=True)
    train(tmp_path, monkeypatch, *ended, dies=False)
    (row,) = open_store(tmp_path / "S").table("runs", None, ["git_commit", "git_dirty"]).to_pylist()
    assert (row["git_commit"], row["git_dirty"]) == said


def lineage(checkpoint: Checkpoint | None, commit: str = "c") -> Lineage:
    job = Job(run_id="run", config=tiny(), resume=checkpoint)
    return Lineage(replace(MACHINE, git_commit=commit), [job])


def test_three_sittings_are_three_names() -> None:
    checkpoint: Checkpoint | None = None
    for commit in ("a", "b", "a", "c"):
        sitting = lineage(checkpoint, commit)
        checkpoint = sitting.marked(Checkpoint(run_id="run", step=1, tensors={}, state={}))
    assert sitting.of("run").git_commit == "a | b | c"
    assert sitting.of("another").git_commit == "c"


def test_a_checkpoint_without_word_of_its_code_is_gone_on_from() -> None:
    sitting = lineage(Checkpoint(run_id="run", step=1, tensors={}, state={}))
    assert sitting.of("run") == sitting.present


# A CUDA error stays in its process: that process ends, and the sweep goes on with another or says it once.

GROUP = Group(tuple(prepare_runs([tiny(0), tiny(1)])))


@pytest.fixture
def settings(tmp_path: Path) -> WorkerSettings:
    with StoreWriter(tmp_path / "S"):  # a worker makes no store: the sweep has
        pass
    return WorkerSettings(
        store_path=str(tmp_path / "S"), live_path=str(tmp_path / "live"), flush_seconds=30.0, device="cpu", lanes=None,
        retry_failed=False, provenance=MACHINE, parent=None,
    )  # fmt: skip


def failing(message: str) -> Any:
    def train(*jobs: Any, **options: Any) -> Iterator[Any]:
        raise RuntimeError(message)

    return train


def test_only_errors_that_stay_in_the_process_are_the_device_s() -> None:
    assert is_device_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert is_device_error(torch.AcceleratorError("device-side assert triggered"))
    assert not is_device_error(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_device_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_worker_ends_with_its_device_and_only_then(
    settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(worker, "train", failing("CUDA error: unspecified launch failure"))
    run_group_in_worker(GROUP, settings)
    assert ends == [1] and "unspecified launch failure" in capsys.readouterr().err
    monkeypatch.setattr(worker, "train", failing("boom"))
    report = run_group_in_worker(GROUP, settings)
    assert ends == [1] and report.error is not None and "boom" in report.error


def test_the_sweep_s_own_process_stops_instead(settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "train", failing("CUDA error: unspecified launch failure"))
    executor = InlineExecutor(settings)
    report = executor.result(executor.submit(GROUP, 0))
    assert report.fatal is not None and "can no longer use its GPU" in report.fatal


# The last line of a sweep names all that the user has to do.


def test_a_paused_sweep_names_its_failures_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store: Any = SimpleNamespace(
        statuses=lambda: {"a": "failed"}, layout=SimpleNamespace(checkpoints=tmp_path / "checkpoints")
    )
    shared: Any = SimpleNamespace(store=SimpleNamespace(path="S"), save="none")
    plan: Any = SimpleNamespace(requested=("a", "b"), stored={}, to_train=())
    sweep = Sweep(shared, plan, cast(Any, None), store, cast(Any, None), ())
    totals = Totals(finished={"a": "failed"}, failed={"a": "too large"}, paused={"b": "train.hours=2 is used"})
    assert sweep.conclude(totals).exit_status == 1
    (line,) = (text for text in capsys.readouterr().out.splitlines() if text.startswith("Paused: "))
    assert "Of run b, train.hours=2 is used." in line
    assert line.endswith("1 failed: too large. The same command with retry_failed=true tries them again.")


# A sweep that died before a reboot, on another machine or in another container: its runs are taken over.

RUNS = prepare_runs([tiny(seed) for seed in range(3)])
OTHER_BOOT = replace(Owner.this_process(), name="gone", machine="this host, another boot, the same processes")
LOOKS = 200
"""Looks after which a sweep that still waits is stopped: it would wait for ever."""


class Counted(InlineExecutor):
    """Trains in this process and notes what it was given."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.started: list[Group] = []

    def submit(self, group: Group, slot: int) -> str:
        self.started.append(group)
        return super().submit(group, slot)


class SweepBesideALease:
    """A sweep of :data:`RUNS` in a store in which a process of another boot has leased some of them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, leased: list[PlannedRun]) -> None:
        patch.setattr("grok.execute.retry.ASK_AGAIN", 0.0)
        patch.setattr("grok.execute.retry.PATIENCE", 0.001)
        patch.setattr("grok.store.writer.Leases", lambda layout: Leases(layout, clock=lambda: self.now))
        self.now = 1000.0
        self.looks = 0
        self.told: list[str] = []
        self.folder = folder
        self.writer = StoreWriter(folder / "S")
        leases = Layout(folder / "S").leases
        self.lease, self.beat = leases / "gone.json", leases / "gone.beat"
        self.lease.write_text(json.dumps({"owner": asdict(OTHER_BOOT), "run_ids": [run.run_id for run in leased]}))
        self.beat.write_text("7")
        self.executor = Counted(
            WorkerSettings(
                store_path=str(folder / "S"), live_path=str(folder / "live"), flush_seconds=30.0, device="cpu",
                lanes=None, retry_failed=False, provenance=MACHINE, parent=None,
            )
        )  # fmt: skip

    def look(self) -> set[str]:
        """Look at the leases, ten seconds after the last look."""
        self.looks += 1
        self.now += 10
        return self.writer.leased_by_others()

    def run(self) -> Totals:
        runner = GroupRunner(
            executor=self.executor,
            stored=open_store(self.folder / "S").statuses,
            leased=self.look,
            groups=lambda runs: lane_groups(runs, workers=1),
            record_failure=lambda run, error: pytest.fail(error),
            live=LiveFolder(self.folder / "live"),
            stop=lambda: self.looks >= LOOKS,
            tell=self.told.append,
        )
        return runner.run([Group(tuple(RUNS))])

    def stored(self) -> set[str]:
        return open_store(self.folder / "S").run_ids("completed")


def test_the_runs_of_a_sweep_of_another_boot_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = SweepBesideALease(tmp_path, monkeypatch, RUNS[:2])
    totals = sweep.run()
    assert totals.fatal is None
    assert sweep.stored() == totals.finished.keys() == {run.run_id for run in RUNS}
    assert not sweep.lease.exists() and not sweep.beat.exists()
    assert sweep.looks == STALE_AFTER / 10 + 2, "the first look begins the watch, one past the time ends it"
    assert [len(group.runs) for group in sweep.executor.started] == [3, 1, 1], "no claim while the runs are held"
    assert len(sweep.told) == 1 and "its runs are taken over after about 2 minutes" in sweep.told[0]


def test_the_runs_that_a_living_sweep_gives_back_are_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was interrupted, say: nobody waits for the two minutes then."""
    sweep = SweepBesideALease(tmp_path, monkeypatch, RUNS[:2])
    look = sweep.look

    def given_back() -> set[str]:
        if sweep.looks == 3:
            sweep.lease.unlink()
        return look()

    sweep.look = given_back  # type: ignore[method-assign]
    sweep.run()
    assert sweep.stored() == {run.run_id for run in RUNS}
    assert sweep.looks == 4
