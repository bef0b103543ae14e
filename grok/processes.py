"""Which process wrote something, and whether it still lives; and a process's place among those of one run.

No clock is compared: a process is known by its number *and* its start time, on one
machine and boot, so that a number that was given out again keeps nothing alive.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, so that others can tell whether it still lives."""

    name: str
    machine: str
    """Host, boot and process namespace: where process numbers mean the same."""
    pid: int
    started: str
    """Start time of the process in the kernel's ticks since boot."""
    host: str

    @classmethod
    def this_process(cls) -> Owner:
        pid = os.getpid()
        name = f"{host_in_names()}-{pid}-{os.urandom(8).hex()}"
        return cls(name, machine(), pid, start_of(pid) or "", socket.gethostname())

    @classmethod
    def from_json(cls, content: Any) -> Owner:
        """Return the owner that a file names.

        Raises:
            ValueError: it names none.
        """
        known = {f.name: int if f.name == "pid" else str for f in fields(cls)}
        if not isinstance(content, dict) or content.keys() != known.keys():
            raise ValueError("it does not name a process")
        if any(type(content[name]) is not kind for name, kind in known.items()):
            raise ValueError("it does not name a process")
        return cls(**content)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class Rank:
    """A process's place among the processes of one command, as ``torchrun`` tells it; alone without ``torchrun``."""

    index: int = 0
    """Its number, from 0. Rank 0 plans, prints and writes."""
    size: int = 1
    """Number of processes."""
    local: int = 0
    """Its number among those of its machine: which CUDA device it takes."""
    beside: int = 1
    """How many of them are on its machine."""

    @classmethod
    def of_this_process(cls) -> Rank:
        """Return what ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` say."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        index, size, local, beside = (os.environ.get(name) for name in names)
        if index is None or size is None:
            return cls()
        return cls(int(index), int(size), int(local or 0), int(beside or 1))


def alive_here(owner: Owner) -> bool | None:
    """Return whether the owner's process lives, or None where it runs on another machine."""
    if owner.machine != machine():
        return None
    return start_of(owner.pid) == owner.started


def host_in_names() -> str:
    """Return this machine's name as the names of files may hold it."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).lstrip(".-")[:60] or "host"


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
