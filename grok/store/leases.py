"""Which sweep trains which run, when several sweeps share one store.

A lease only saves work: if two sweeps train one run all the same, the later commit is
compared and dropped. So a lease may be lost without harm, and a dead sweep's leases
are taken over:

* on the same machine when its process is gone (number and start time, so that a
  recycled process number does not keep a lease alive);
* on another machine when its heartbeat counter has not moved for ``stale_after``
  seconds of *this* machine's monotonic clock. No two clocks are ever compared.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from grok.files import disk_errors, locked, remove_quietly, unique
from grok.store.layout import Layout

STALE_AFTER: Final = 120.0
"""Seconds without a heartbeat, as seen from here, after which a sweep on another machine counts as dead."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a sweep asked to train, sorted."""

    granted: list[str]
    """Leased to this sweep."""
    done: list[str]
    """In the store already."""
    held: dict[str, str]
    """Leased to another sweep, with its name: ask again later."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One sweep's process, so that others can tell whether it still lives."""

    name: str
    machine: str
    """Host, boot and process namespace: where process numbers mean the same."""
    pid: int
    started: str
    """Start time of the process in the kernel's ticks since boot."""
    host: str

    @classmethod
    def this_process(cls) -> Owner:
        host = socket.gethostname()
        return cls(f"{host}-{os.getpid()}-{unique()}", machine(), os.getpid(), start_of(os.getpid()) or "", host)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def machine() -> str:
    """Return a name that two processes share exactly when they see the same process numbers."""
    boot, namespace = "", ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()} {boot} {namespace}"


def start_of(pid: int) -> str | None:
    """Return when a living process started, or None where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _start_without_proc(pid)
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def _start_without_proc(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return None


class Leases:
    """This process's leases in one store.

    Args:
        layout: the store.
        stale_after: seconds without a visible heartbeat after which a sweep on another
            machine counts as dead.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, layout: Layout, stale_after: float = STALE_AFTER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = layout.leases
        self._stale_after, self._clock = stale_after, clock
        self._me: Owner | None = None
        self._held: set[str] = set()
        self._beats = 0
        self._watched: dict[str, tuple[str, float]] = {}
        """Per foreign owner: the last heartbeat seen, and when this clock saw it change."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other sweeps from claiming meanwhile."""
        with disk_errors(f"leases ({self._folder})"):
            self._folder.mkdir(exist_ok=True)
            with locked(self._folder / "lock"):
                yield

    def claim(self, run_ids: Sequence[str], done: Collection[str] = ()) -> Claim:
        """Lease what no living sweep has leased. The caller holds :meth:`locked`."""
        holders = self._living()
        held = {run_id: str(holders[run_id]) for run_id in run_ids if run_id in holders}
        granted = [run_id for run_id in run_ids if run_id not in held]
        if granted:
            self._held |= set(granted)
            self._write()
        return Claim(granted, sorted(done), held)

    def heartbeat(self) -> bool:
        """Move the counter; False when the leases are no longer this sweep's."""
        if self._me is None or not self._held:
            return True
        with disk_errors(f"leases ({self._folder})"):
            if not self._lease(self._me.name).exists():
                self._held.clear()
                return False
            self._beats += 1
            self._put(self._beat(self._me.name), str(self._beats))
        return True

    def release(self) -> None:
        """Give everything back."""
        if self._me is not None:
            with suppress(OSError):  # a disk that turned read-only has been said; a dead owner's leases are free
                self._forget(self._me.name)
            self._me = None
        self._held.clear()

    def holders(self) -> dict[str, Owner]:
        """Return every leased run with its owner, dead or alive, this process's own included."""
        return {run_id: owner for owner, runs in self._all() for run_id in runs}

    def owners(self) -> list[tuple[Owner, int, bool | None]]:
        """Return every owner with the number of its runs and whether it lives (None: on another machine)."""
        return [(owner, len(runs), alive_here(owner)) for owner, runs in self._all()]

    def _living(self) -> dict[str, Owner]:
        living: dict[str, Owner] = {}
        for owner, runs in self._all(remove_damaged=True):
            if self._me is not None and owner.name == self._me.name:
                continue
            if self._is_dead(owner):
                self._forget(owner.name)
                continue
            living |= dict.fromkeys(runs, owner)
        return living

    def _is_dead(self, owner: Owner) -> bool:
        here = alive_here(owner)
        if here is not None:
            return not here
        beat = ""
        with suppress(FileNotFoundError):
            beat = self._beat(owner.name).read_text()
        now = self._clock()
        last, since = self._watched.get(owner.name, (None, now))
        if beat != last:
            self._watched[owner.name] = (beat, now)
            return False
        return now - since > self._stale_after

    def _all(self, remove_damaged: bool = False) -> Iterator[tuple[Owner, list[str]]]:
        for path in sorted(self._folder.glob("*.json")):
            with suppress(FileNotFoundError):
                try:
                    content = json.loads(path.read_text(encoding="utf-8"))
                    yield Owner(**content["owner"]), list(content["run_ids"])
                except (ValueError, KeyError, TypeError):
                    if remove_damaged:  # unreadable, so nobody's
                        remove_quietly(path)

    def _write(self) -> None:
        if self._me is None:
            self._me = Owner.this_process()
        content = {"owner": asdict(self._me), "run_ids": sorted(self._held)}
        self._beats += 1
        self._put(self._beat(self._me.name), str(self._beats))
        self._put(self._lease(self._me.name), json.dumps(content))

    def _put(self, path: Path, text: str) -> None:
        # no flush: after a power cut there is no living owner
        staged = path.with_name(f".{path.name}.{unique()}")
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)

    def _lease(self, owner: str) -> Path:
        return self._folder / f"{owner}.json"

    def _beat(self, owner: str) -> Path:
        return self._folder / f"{owner}.beat"

    def _forget(self, owner: str) -> None:
        remove_quietly(self._lease(owner))
        remove_quietly(self._beat(owner))


def alive_here(owner: Owner) -> bool | None:
    """Return whether the owner's process lives, or None where it runs on another machine."""
    if owner.machine != machine():
        return None
    return start_of(owner.pid) == owner.started
