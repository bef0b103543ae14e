"""Groups whose worker dies: retried, then halved, then the single culprit is named, whatever dies when.

The executor here is real in all but its processes: it trains nothing, commits to a set
and loses every group in flight when a poisoned run kills a worker, as loky does.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.execute.executors.base import WorkerDied
from grok.execute.groups import Group, lane_groups, prepare_runs
from grok.execute.live import LiveFolder
from grok.execute.retry import GroupRunner, Totals
from grok.execute.worker import GroupReport
from tests.execute.conftest import tiny

RUNS = prepare_runs([tiny(seed) for seed in range(40)])


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
    totals = runner.run(lane_groups(RUNS, workers=workers))
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
    bad = {RUNS[i].run_id for i in deadly | raising}
    totals, executor = run_all(
        Path("unused"),
        workers,
        {RUNS[i].run_id for i in deadly},
        {RUNS[i].run_id for i in raising - deadly},
        spreads_deaths,
    )
    assert set(totals.failed) == bad
    assert set(executor.stored) == set(totals.finished) == {run.run_id for run in RUNS} - bad


def test_a_worker_that_dies_once_costs_one_retry(tmp_path: Path) -> None:
    executor = LossyExecutor(2, {RUNS[0].run_id}, set())
    told: list[str] = []

    def renew() -> None:
        executor._broken = False
        executor._deadly.clear()

    executor.renew = renew  # type: ignore[method-assign]
    runner = runner_of(
        executor, tmp_path, record_failure=lambda run, error: pytest.fail("nothing is at fault"), tell=told.append
    )
    totals = runner.run(lane_groups(RUNS, workers=2))
    assert len(totals.finished) == 40
    assert totals.deaths == 1
    assert all("trying it again" in line for line in told)


def test_a_stop_leaves_the_rest(tmp_path: Path) -> None:
    executor = LossyExecutor(1, set(), set())
    runner = runner_of(executor, tmp_path, stop=lambda: len(executor.started) > 1)
    totals = runner.run(lane_groups(RUNS, workers=1))
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
    totals = runner.run(lane_groups(RUNS, workers=2))
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
    totals = runner.run(lane_groups(RUNS[:3], workers=1))
    assert totals.elsewhere == {run.run_id for run in RUNS[:3]}
    assert len(said) == 1 and said[0][0] == 1, "said once, before the runs are asked for again"
    assert "being trained by another sweep in this store (process 7 on far), waiting for them" in said[0][1]


class OnOtherNodes(LossyExecutor):
    """A worker that dies leaves leases behind that nobody on another node knows to be a dead one's."""

    def __init__(self, workers: int, deadly: set[str]) -> None:
        super().__init__(workers, deadly, set(), spreads_deaths=False)
        self.leased: set[str] = set()
        self.claimed_in_vain = 0

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
    executor = OnOtherNodes(2, {RUNS[7].run_id})
    looks = 0

    def leased() -> set[str]:
        nonlocal looks
        looks += 1
        if looks % 3 == 0:
            executor.leased.clear()
        return set(executor.leased)

    totals = runner_of(executor, tmp_path, leased=leased, stop=lambda: looks > 1000).run(lane_groups(RUNS, workers=2))
    assert totals.failed.keys() == {RUNS[7].run_id}
    assert totals.finished.keys() == {run.run_id for run in RUNS} - totals.failed.keys()
    assert executor.claimed_in_vain > 0


def test_runs_that_become_free_are_shared_by_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before that no worker is sent for them."""
    monkeypatch.setattr("grok.execute.retry.ASK_AGAIN", 0.0)
    monkeypatch.setattr("grok.execute.retry.PATIENCE", 0.001)
    executor = OnOtherNodes(4, set())
    executor.leased = {run.run_id for run in RUNS}
    looks = 0

    def leased() -> set[str]:
        nonlocal looks
        looks += 1
        if looks == 20:
            executor.leased.clear()
        return set(executor.leased)

    groups = lane_groups(RUNS, workers=4)
    totals = runner_of(executor, tmp_path, leased=leased, stop=lambda: looks > 1000).run(groups)
    assert len(totals.finished) == len(RUNS)
    assert executor.claimed_in_vain == len(groups), "each was claimed once while it was held"
    assert [len(g.runs) for g in executor.started[len(groups) :]] == [len(g.runs) for g in groups]
