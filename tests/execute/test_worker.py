"""A worker and its sweep: what a report says, rows, lineage, device errors, and the runs of a sweep that died."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grok.store.provenance
from grok.execute import live, worker
from grok.execute.executors.base import InlineExecutor, WorkerDied
from grok.execute.groups import Group, lane_groups, prepare_runs
from grok.execute.live import Ledger, LiveFolder
from grok.execute.retry import GroupRunner, Totals
from grok.execute.worker import GroupReport, WorkerSettings, run_group, run_group_in_worker
from grok.runs import is_device_error
from grok.store import StoreWriter, open_store
from tests.execute.conftest import tiny, worker_settings
from tests.store.contract import MACHINE, example_row, example_rows


def test_damage_that_a_worker_puts_right_is_in_its_report(tmp_path: Path) -> None:
    store, (first, second) = tmp_path / "S", example_rows(range(2))
    with StoreWriter(store) as writer:
        writer.commit([second])
        (victim,) = set((store / "runs").glob("*.parquet")) - {store / "runs" / "empty.parquet"}
        writer.commit([first])
    victim.write_bytes(victim.read_bytes()[:-50])
    report = run_group(Group(tuple(prepare_runs([first.config]))), worker_settings(tmp_path))
    assert report.stored == [first.result.run_id]
    assert report.notes[0].startswith(f"Repaired: moved shard {victim.stem} to quarantine")


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
        (beat,) = (tmp_path / "S" / "leases").glob("*.json")
        first = beat.read_text()
        with Ledger(writer, 0.05, lambda row: stored.append(row.result.run_id)) as silent:
            silent.add(row)
            latest = time.monotonic() + 60  # a busy machine may be slow, and without the thread neither ever comes
            while not (stored and beat.read_text() != first):
                assert time.monotonic() < latest, "no row, or no sign of life"
                time.sleep(0.01)
            assert open_store(tmp_path / "S").run_ids() == {row.result.run_id} == set(stored)


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
        settings = worker_settings(folder, replace(MACHINE, git_commit=commit, git_dirty=dirty))
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


GROUP = Group(tuple(prepare_runs([tiny(0), tiny(1)])))


@pytest.fixture
def sweeps_settings(tmp_path: Path) -> WorkerSettings:
    StoreWriter(tmp_path / "S").close()  # a worker makes no store: the sweep has
    return worker_settings(tmp_path)


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
    sweeps_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(worker, "train", failing("CUDA error: unspecified launch failure"))
    run_group_in_worker(GROUP, sweeps_settings)
    assert ends == [1] and "unspecified launch failure" in capsys.readouterr().err
    monkeypatch.setattr(worker, "train", failing("boom"))
    report = run_group_in_worker(GROUP, sweeps_settings)
    assert ends == [1] and report.error is not None and "boom" in report.error


def test_the_sweep_s_own_process_stops_instead(
    sweeps_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "train", failing("CUDA error: unspecified launch failure"))
    executor = InlineExecutor(sweeps_settings)
    report = executor.result(executor.submit(GROUP, 0))
    assert report.fatal is not None and "can no longer use its GPU" in report.fatal


FORTY = prepare_runs([tiny(seed) for seed in range(40)])


class LossyExecutor:
    """Commits a group's runs one after another until it meets a deadly one."""

    def __init__(self, workers: int, deadly: set[str], raising: set[str], spreads_deaths: bool = True) -> None:
        self.workers = workers
        self.spreads_deaths = spreads_deaths
        self.stored: dict[str, str] = {}
        self.started: list[Group] = []
        self._deadly, self._raising = deadly, raising
        self._flying: list[Group] = []
        self._broken = False

    def submit(self, group: Group, slot: int) -> str:
        assert 0 <= slot < self.workers
        assert len(self._flying) < self.workers
        self.started.append(group)
        self._flying.append(group)
        return group.name

    def wait(self, tickets: Sequence[str], seconds: float) -> Sequence[str]:
        return tickets[-1:]

    def result(self, ticket: str) -> GroupReport:
        (group,) = [g for g in self._flying if g.name == ticket]
        report = GroupReport()
        for run in group.runs:
            if run.run_id in self._deadly:
                self._broken = True
            if self._broken:
                if self.spreads_deaths:
                    self._flying.clear()
                else:
                    self._flying.remove(group)
                    self._broken = False
                raise WorkerDied("killed")
            if run.run_id in self._raising:
                report.error = "boom"
                break
            self.stored[run.run_id] = report.finished[run.run_id] = "completed"
        self._flying.remove(group)
        return report

    def renew(self) -> None:
        self._broken = False

    def close(self) -> None:
        pass


def runner_of(executor: LossyExecutor, folder: Path, **changed: Any) -> GroupRunner:
    """Return a runner that nobody stops and beside which no other sweep runs; ``changed`` replaces its parts."""
    parts: dict[str, Any] = {
        "stored": lambda: executor.stored,
        "leased": set,
        "groups": partial(lane_groups, workers=executor.workers),
        "record_failure": lambda run, error: None,
        "live": LiveFolder(folder),
        "stop": lambda: False,
        "tell": lambda text: None,
    }
    return GroupRunner(executor=executor, **parts | changed)


def run_all(
    tmp_path: Path, workers: int, deadly: set[str], raising: set[str], spreads_deaths: bool = True
) -> tuple[Totals, LossyExecutor]:
    executor = LossyExecutor(workers, deadly, raising, spreads_deaths)
    failures: dict[str, str] = {}
    runner = runner_of(executor, tmp_path, record_failure=lambda run, error: failures.update({run.run_id: error}))
    totals = runner.run(lane_groups(FORTY, workers=workers))
    assert failures == totals.failed
    return totals, executor


@settings(deadline=None, max_examples=150)
@given(
    workers=st.integers(1, 4),
    deadly=st.sets(st.integers(0, 39), max_size=4),
    raising=st.sets(st.integers(0, 39), max_size=4),
    spreads_deaths=st.booleans(),
)
def test_only_the_culprits_fail(workers: int, deadly: set[int], raising: set[int], spreads_deaths: bool) -> None:
    bad = {FORTY[i].run_id for i in deadly | raising}
    totals, executor = run_all(
        Path("unused"),
        workers,
        {FORTY[i].run_id for i in deadly},
        {FORTY[i].run_id for i in raising - deadly},
        spreads_deaths,
    )
    assert set(totals.failed) == bad
    assert set(executor.stored) == set(totals.finished) == {run.run_id for run in FORTY} - bad


def test_a_stop_leaves_the_rest(tmp_path: Path) -> None:
    executor = LossyExecutor(1, set(), set())
    runner = runner_of(executor, tmp_path, stop=lambda: len(executor.started) > 1)
    totals = runner.run(lane_groups(FORTY, workers=1))
    assert 0 < len(totals.finished) < 40
    assert len(executor.started) == 2


class Fatal(LossyExecutor):
    """The first group meets an error that no run is at fault for."""

    def __init__(self, workers_go_on: bool) -> None:
        super().__init__(2, set(), set())
        self.workers_go_on = workers_go_on

    def wait(self, tickets: Sequence[str], seconds: float) -> Sequence[str]:
        return tickets[:1]

    def result(self, ticket: str) -> GroupReport:
        if ticket != self.started[0].name:
            return super().result(ticket)
        self._flying.remove(self.started[0])
        return GroupReport(fatal="the disk is full", workers_go_on=self.workers_go_on)


@pytest.mark.parametrize("workers_go_on", [False, True])
def test_a_fatal_error_of_one_worker_stops_the_others(tmp_path: Path, workers_go_on: bool) -> None:
    executor, said = Fatal(workers_go_on), list[str]()
    runner = runner_of(executor, tmp_path / "live" / "sweep", tell=said.append)
    totals = runner.run(lane_groups(FORTY, workers=2))
    assert totals.fatal == "the disk is full"
    assert len(executor.started) == 2
    assert runner.live.stop_requested() is not workers_go_on
    assert said == ([] if workers_go_on else ["stopping the other workers: the disk is full"])


class Leased(LossyExecutor):
    """Another sweep holds every run at first, and has stored it when it is asked for again."""

    def result(self, ticket: str) -> GroupReport:
        (group,) = [g for g in self._flying if g.name == ticket]
        self._flying.remove(group)
        ids = [run.run_id for run in group.runs]
        if len(self.started) == 1:
            return GroupReport(held=dict.fromkeys(ids, "process 7 on far"))
        return GroupReport(stored=dict.fromkeys(ids, "completed"))


def test_runs_of_another_sweep_are_waited_for_and_it_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grok.execute.retry.ASK_AGAIN", 0.01)
    executor, said = Leased(1, set(), set()), list[tuple[int, str]]()
    runner = runner_of(executor, tmp_path, tell=lambda text: said.append((len(executor.started), text)))
    totals = runner.run(lane_groups(FORTY[:3], workers=1))
    assert totals.elsewhere == {run.run_id for run in FORTY[:3]}
    assert len(said) == 1 and said[0][0] == 1, "said once, before the runs are asked for again"
    assert "being trained by another sweep in this store (process 7 on far), waiting for them" in said[0][1]


class OnOtherNodes(LossyExecutor):
    """A worker that dies leaves leases behind that nobody on another node knows to be a dead one's."""

    def __init__(self, workers: int, deadly: set[str], frees_at: int) -> None:
        super().__init__(workers, deadly, set(), spreads_deaths=False)
        self.leased: set[str] = set()
        self.claimed_in_vain = self.looks = 0
        self.frees_at = frees_at

    def look(self) -> set[str]:
        """Return the runs that are held; at every few looks all become free."""
        self.looks += 1
        if self.looks % self.frees_at == 0:
            self.leased.clear()
        return set(self.leased)

    def result(self, ticket: str) -> GroupReport:
        (group,) = [g for g in self._flying if g.name == ticket]
        if held := [run.run_id for run in group.runs if run.run_id in self.leased]:
            assert len(held) == len(group.runs)
            self.claimed_in_vain += 1
            self._flying.remove(group)
            return GroupReport(held=dict.fromkeys(held, "process 7 on far"))
        try:
            return super().result(ticket)
        except WorkerDied:
            self.leased |= {run.run_id for run in group.runs} - self.stored.keys()
            raise


def test_a_run_that_kills_its_workers_on_other_nodes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries its group waits for the lost worker's leases: how often it died must not be forgotten."""
    monkeypatch.setattr("grok.execute.retry.ASK_AGAIN", 0.0)
    monkeypatch.setattr("grok.execute.retry.PATIENCE", 0.001)
    executor = OnOtherNodes(2, {FORTY[7].run_id}, frees_at=3)
    groups = lane_groups(FORTY, workers=2)
    totals = runner_of(executor, tmp_path, leased=executor.look, stop=lambda: executor.looks > 1000).run(groups)
    assert totals.failed.keys() == {FORTY[7].run_id}
    assert totals.finished.keys() == {run.run_id for run in FORTY} - totals.failed.keys()
    assert executor.claimed_in_vain > 0


def test_runs_that_become_free_are_shared_by_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grok.execute.retry.ASK_AGAIN", 0.0)
    monkeypatch.setattr("grok.execute.retry.PATIENCE", 0.001)
    executor = OnOtherNodes(4, set(), frees_at=20)
    executor.leased = {run.run_id for run in FORTY}
    groups = lane_groups(FORTY, workers=4)
    totals = runner_of(executor, tmp_path, leased=executor.look, stop=lambda: executor.looks > 1000).run(groups)
    assert len(totals.finished) == len(FORTY)
    assert executor.claimed_in_vain == len(groups), "each was claimed once while it was held"
    assert [len(g.runs) for g in executor.started[len(groups) :]] == [len(g.runs) for g in groups]
