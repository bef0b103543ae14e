"""A sweep that died before a reboot, on another machine or in another container: its runs are taken over.

Nobody here can tell whether such a sweep's process lives: only its heartbeat says so. The store,
the workers' claims and the training are real; the minutes pass at the watching process's looks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from grok.execute.executors.base import InlineExecutor
from grok.execute.groups import Group, PlannedRun, lane_groups, prepare_runs
from grok.execute.live import LiveFolder
from grok.execute.retry import GroupRunner, Totals
from grok.execute.worker import WorkerSettings
from grok.processes import Owner
from grok.store import StoreWriter, open_store
from grok.store.contract import MACHINE
from grok.store.layout import Layout
from grok.store.leases import STALE_AFTER, Leases
from tests.execute.conftest import tiny

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


def test_a_living_sweep_of_another_machine_is_never_robbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it trains: a heartbeat just within the time is enough."""
    sweep = SweepBesideALease(tmp_path, monkeypatch, RUNS[:2])
    look = sweep.look

    def look_after_its_heartbeat() -> set[str]:
        if sweep.looks % 12 == 11:
            sweep.beat.write_text(str(sweep.looks))
        return look()

    sweep.look = look_after_its_heartbeat  # type: ignore[method-assign]
    totals = sweep.run()
    assert sweep.looks == LOOKS and sweep.now > 1000 + 10 * STALE_AFTER
    assert sweep.lease.exists()
    assert sweep.stored() == totals.finished.keys() == {RUNS[2].run_id}
    assert len(sweep.executor.started) == 1


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
