"""Leases: they keep several sweeps in one store from training the same run.

A lease only saves work. If two sweeps train one run nevertheless, the later commit is
compared and dropped. So the loss of a lease does no harm, and a sweep takes over the
leases of a dead one. A sweep counts as dead

* on the same machine, at once: when its process has ended (compared by number and start time,
  because the system reuses process numbers), or its lease is of another store, of which this
  one is a copy;
* anywhere: when its heartbeat counter has not changed for ``STALE_AFTER`` seconds of *this*
  machine's monotonic clock, because it is gone or stands still. Clocks of two machines are
  never compared. That takes two looks by one :class:`Leases`: the process that waits for the
  runs keeps one and looks again and again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from grok.files import disk_errors, locked, replace_text
from grok.processes import Owner, alive_here, is_stopped
from grok.store.layout import Layout
from grok.untrusted import is_plain, plain_name, read_json_object

STALE_AFTER: Final = 120.0
"""Seconds without a heartbeat after which a sweep counts as dead."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a sweep's claim: every ``run_id`` of the claim is in one of the three."""

    granted: list[str]
    """Leased to this sweep."""
    done: list[str]
    """Already in the store."""
    held: dict[str, str]
    """Leased to another sweep, with its process and state: claim again later."""


class Leases:
    """This process's leases in one store."""

    def __init__(self, layout: Layout) -> None:
        self._folder = layout.leases
        self._me = Owner.this_process()
        self._held: set[str] = set()
        self._beats = 0
        self._watched: dict[str, tuple[object, float]] = {}
        """For each other owner: its last heartbeat, and when it changed by this machine's clock."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock without which no sweep may claim."""
        with disk_errors(f"leases ({self._folder})"):
            self._folder.mkdir(exist_ok=True)
            with locked(self._folder / "lock"):
                yield

    def claim(self, run_ids: Sequence[str], done: Collection[str] = ()) -> Claim:
        """Lease the runs that no living sweep has leased. The caller holds :meth:`locked`."""
        holders = self._living()
        owners = {run_id: holders[run_id] for run_id in run_ids if run_id in holders}
        held = {run_id: f"{owner}{', which is stopped' * is_stopped(owner)}" for run_id, owner in owners.items()}
        granted = [run_id for run_id in run_ids if run_id not in held]
        if granted:
            self._held |= set(granted)
            self._write()
        return Claim(granted, sorted(done), held)

    def of_others(self) -> set[str]:
        """Return the runs that other living sweeps have leased; remove the leases of dead ones.

        Needs no lock and never waits: nobody but its owner writes a lease, and no owner's name is used again.
        """
        return set(self._living())

    def heartbeat(self) -> None:
        """Raise the heartbeat counter, unless another sweep has taken the leases over."""
        with disk_errors(f"leases ({self._folder})"):
            if not self._lease(self._me.name).exists():
                self._held.clear()
            if self._held:
                self._write()

    def release(self) -> None:
        """Release all leases. Later ones get another name, as none is used again."""
        with suppress(OSError):  # read-only disk, reported elsewhere: the leases end with this process
            self._lease(self._me.name).unlink(missing_ok=True)
        self._me = Owner.this_process()
        self._held.clear()

    def owners(self) -> list[tuple[Owner, int, bool | None]]:
        """Return every owner with the number of its runs and whether it is alive.

        None: it is on another machine, or was before a reboot; only its heartbeat tells.
        """
        return [(owner, len(lease["run_ids"]), alive_here(owner)) for owner, lease in self._all()]

    def _living(self) -> dict[str, Owner]:
        living: dict[str, Owner] = {}
        for owner, lease in self._all():
            if owner.name == self._me.name:
                continue
            if self._is_dead(owner, lease):
                with suppress(OSError):  # read-only disk, reported when this sweep writes a lease of its own
                    self._lease(owner.name).unlink(missing_ok=True)
                continue
            living |= dict.fromkeys(lease["run_ids"], owner)
        return living

    def _is_dead(self, owner: Owner, lease: Mapping[str, Any]) -> bool:
        here = alive_here(owner)
        if here is False or (here and self._is_of_another_store(lease.get("folder"))):
            return True
        beat, now = lease.get("beat"), time.monotonic()
        last, since = self._watched.setdefault(owner.name, (beat, now))
        if beat != last:
            self._watched[owner.name] = (beat, now)
            return False
        return now - since > STALE_AFTER

    def _is_of_another_store(self, folder: object) -> bool:
        """Return whether an owner on this machine made its lease in another folder that is still there."""
        with suppress(OSError, ValueError):
            return isinstance(folder, str) and not self._folder.samefile(folder)
        return False

    def _all(self) -> list[tuple[Owner, dict[str, Any]]]:
        leases = []
        for path in sorted(self._folder.glob("*.json")):
            with suppress(ValueError, OSError):  # it ended meanwhile, or is not a lease: it protects no run
                content = read_json_object(path)
                owner, runs = Owner.from_json(content.get("owner")), content.get("run_ids")
                if owner.name == path.stem and isinstance(runs, list) and all(map(is_plain, runs)):
                    leases.append((owner, content))
        return leases

    def _write(self) -> None:
        self._beats += 1
        content = {
            "owner": asdict(self._me),
            "run_ids": sorted(self._held),
            "folder": str(self._folder.resolve()),
            "beat": self._beats,
        }
        # not flushed to disk: what a power failure leaves is a dead owner's lease, or none
        replace_text(self._lease(self._me.name), json.dumps(content))

    def _lease(self, owner: str) -> Path:
        return self._folder / f"{plain_name(owner, 'owner')}.json"
