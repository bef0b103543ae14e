"""Runs groups to their end although workers die: retry, halve, name the single culprit, go on with the rest.

A group whose worker died is tried once more beside the others. If it dies again it is
run alone where the death of one worker takes the others' groups along, because only a
group that dies alone is at fault; then it is halved until a single run is left, which
is recorded as failed. An exception that came out of an engine names its group itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from grok.execute.executors.base import Executor, WorkerDied
from grok.execute.groups import Group, PlannedRun
from grok.execute.live import LiveFolder
from grok.execute.worker import Ended
from grok.store.leases import STALE_AFTER

PATIENCE: Final = 0.5
"""Seconds between two looks at the workers."""

ASK_AGAIN: Final = 5.0
"""Seconds between two looks at the leases of runs that another sweep is training."""

TRIES: Final = 2
"""Tries of a whole group before it is halved."""


@dataclass(slots=True)
class Totals(Ended):
    """What a sweep's groups came to."""

    elsewhere: set[str] = field(default_factory=set)
    """Runs that another sweep finished meanwhile."""
    failed: dict[str, str] = field(default_factory=dict)
    """Error of every run that is at fault for itself."""


@dataclass(slots=True)
class GroupRunner:
    """Feeds an executor until no group is left, or until a stop."""

    executor: Executor
    stored: Callable[[], Mapping[str, str]]
    """Asks the store for the status of every run: the truth after a worker died."""
    leased: Callable[[], Collection[str]]
    """Asks the store which runs other living sweeps have leased. It must be one and the same observer every
    time: that a sweep on another machine is dead shows only between two looks."""
    groups: Callable[[Sequence[PlannedRun]], Sequence[Group]]
    """Divides runs into groups for the workers."""
    record_failure: Callable[[PlannedRun, str], None]
    live: LiveFolder
    stop: Callable[[], bool]
    tell: Callable[[str], None]
    """Shows one line to the user."""
    totals: Totals = field(default_factory=Totals)
    _waiting: deque[Group] = field(default_factory=deque)
    _suspects: deque[Group] = field(default_factory=deque)
    """Groups to run alone."""
    _held: list[Group] = field(default_factory=list)
    """Runs that another sweep, or a lost worker of this one, had leased when a worker claimed them."""
    _flying: dict[Any, tuple[Group, int]] = field(default_factory=dict)
    """Group and slot by ticket."""
    _next_look: float = 0.0
    _said_held: bool = False

    def run(self, groups: Sequence[Group]) -> Totals:
        """Run ``groups``; return what they came to. Runs left over on a stop are in no total."""
        self._waiting.extend(groups)
        while not self._ending() or self._flying:
            self._free_held()
            self._start()
            if not self._flying:
                if self._held and not self._ending():
                    time.sleep(PATIENCE)
                continue
            for ticket in self.executor.wait(list(self._flying), PATIENCE):
                if ticket in self._flying:  # a death before it in this round may have taken it along
                    self._collect(ticket)
        return self.totals

    def _ending(self) -> bool:
        left = self._waiting or self._suspects or self._held
        return not left or self.stop() or self.totals.fatal is not None

    def _free_held(self) -> None:
        """Queue the held runs that no living sweep has leased any more, after all suspects.

        The leases are read here, so that no worker (on SLURM: no job) starts for runs that are still held.
        """
        if not self._held or self._suspects or self._ending() or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + ASK_AGAIN
        leased = self.leased()
        held, self._held = self._held, []
        fresh: list[PlannedRun] = []
        for group in held:
            if still := tuple(run for run in group.runs if run.run_id in leased):
                self._held.append(replace(group, runs=still))
            free = self._left(group, leased)
            if free is not None and free.deaths:  # its count of deaths must not begin anew
                self._waiting.append(free)
            elif free is not None:
                fresh += free.runs
        self._waiting.extend(self.groups(fresh))

    def _start(self) -> None:
        """Fill free workers: what waits first, then suspects one at a time."""
        while not self._ending() and len(self._flying) < self.executor.workers:
            if self._waiting:
                group = self._waiting.popleft()
            elif self._suspects and not self._flying:
                group = self._suspects.popleft()
            else:
                return
            busy = {slot for _, slot in self._flying.values()}
            slot = next(i for i in range(self.executor.workers) if i not in busy)
            self._flying[self.executor.submit(group, slot)] = (group, slot)

    def _collect(self, ticket: Any) -> None:
        try:
            report = self.executor.result(ticket)
        except WorkerDied as death:
            self._bury(ticket, str(death))
            return
        group, _ = self._flying.pop(ticket)
        self.totals.add(report)
        self.totals.elsewhere |= set(report.stored)
        if report.held:
            self._hold(group, report.held)
        left = self._left(group, {*report.finished, *report.stored, *report.held, *report.paused})
        if report.fatal is not None:
            if self._flying and not (report.workers_go_on or self.live.stop_requested()):
                self.tell(f"stopping the other workers: {report.fatal}")
                self.live.request_stop()
        elif report.error is not None:
            self._retry(left, report.error, alone=True, into=self._waiting)
        elif left is not None and not self.stop():
            self._waiting.append(left)  # this worker alone was told to leave

    def _hold(self, group: Group, held: Mapping[str, str]) -> None:
        if not self._said_held:
            self._said_held = True
            lost, other = "leased by a lost worker of this sweep", "being trained by another sweep in this store"
            self.tell(
                f"{len(held)} run(s) {lost if group.deaths else other} ({', '.join(sorted(set(held.values())))}), "
                "waiting for them; if that one is dead or stands still, its runs are taken over after about "
                f"{STALE_AFTER / 60:.0f} minutes without a sign of it"
            )
        self._held.append(replace(group, runs=tuple(run for run in group.runs if run.run_id in held)))

    def _bury(self, ticket: Any, reason: str) -> None:
        """Take stock after a worker died, and with it its neighbours where one's death takes them along."""
        lost = list(self._flying) if self.executor.spreads_deaths else [ticket]
        groups = [self._flying.pop(other)[0] for other in lost]
        self.executor.renew()
        statuses = self.stored()
        for group in groups:
            self.live.retract(group.name)
            done = {r.run_id: statuses[r.run_id] for r in group.runs if statuses.get(r.run_id, "failed") != "failed"}
            self.totals.finished |= done
            self._retry(self._left(group, set(done)), reason, alone=len(groups) == 1, into=self._suspects)

    def _left(self, group: Group, gone: Collection[str]) -> Group | None:
        runs = tuple(run for run in group.runs if run.run_id not in gone)
        return replace(group, runs=runs) if runs else None

    def _retry(self, group: Group | None, reason: str, *, alone: bool, into: deque[Group]) -> None:
        """Queue what is left of a lost group once more, in halves, or as failed."""
        if group is None:
            return
        group = replace(group, deaths=group.deaths + 1)
        size = f"{len(group.runs)} run{'s' if len(group.runs) > 1 else ''}"
        if group.deaths < TRIES:
            self.tell(f"a group of {size} ended early ({reason}); trying it again")
            self._waiting.append(group)
        elif not alone:
            into.append(group)
        elif len(group.runs) > 1:
            self.tell(f"a group of {size} ended early again ({reason}); trying its halves")
            middle = len(group.runs) // 2
            into.extend(Group(half, deaths=TRIES - 1) for half in (group.runs[:middle], group.runs[middle:]))
        else:
            run = group.runs[0]
            self.tell(f"run {run.run_id} fails ({reason}); going on without it")
            self.totals.failed[run.run_id] = reason
            self.record_failure(run, reason)
