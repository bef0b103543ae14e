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
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from grok.files import disk_errors, locked, remove_quietly, replace_text
from grok.processes import Owner, alive_here
from grok.store.layout import Layout
from grok.untrusted import is_file, is_plain, plain_name, read_json_object

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
            replace_text(self._beat(self._me.name), str(self._beats))
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
        for owner, runs in self._all():
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
            beat = self._beat(owner.name).read_text(errors="replace") if is_file(self._beat(owner.name)) else ""
        now = self._clock()
        last, since = self._watched.get(owner.name, (None, now))
        if beat != last:
            self._watched[owner.name] = (beat, now)
            return False
        return now - since > self._stale_after

    def _all(self) -> Iterator[tuple[Owner, list[str]]]:
        for path in sorted(self._folder.glob("*.json")):
            with suppress(FileNotFoundError):
                try:
                    content = read_json_object(path)
                    owner, runs = Owner.from_json(content.get("owner")), content.get("run_ids")
                    if owner.name != path.stem or not isinstance(runs, list) or not all(map(is_plain, runs)):
                        raise ValueError("not a lease")
                except FileNotFoundError:
                    raise
                except (ValueError, OSError):
                    continue  # nobody's, whatever it is
                yield owner, runs

    def _write(self) -> None:
        if self._me is None:
            self._me = Owner.this_process()
        content = {"owner": asdict(self._me), "run_ids": sorted(self._held)}
        self._beats += 1
        # no flush: after a power cut there is no living owner
        replace_text(self._beat(self._me.name), str(self._beats))
        replace_text(self._lease(self._me.name), json.dumps(content))

    def _lease(self, owner: str) -> Path:
        return self._folder / f"{plain_name(owner, 'owner')}.json"

    def _beat(self, owner: str) -> Path:
        return self._folder / f"{plain_name(owner, 'owner')}.beat"

    def _forget(self, owner: str) -> None:
        remove_quietly(self._lease(owner))
        remove_quietly(self._beat(owner))
