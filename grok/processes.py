"""The processes that write files and train runs, and the cores and the memory that this one may use. No torch.

A process is identified by its number *and* its start time, on one machine and boot, because
the system reuses numbers. No two clocks are compared.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """The identity of one process, by which others can tell whether it is alive."""

    name: str
    machine: str
    """Host, boot and process namespace: within them a process number is unique."""
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
        """Return the owner in the JSON ``content`` of a file.

        Raises:
            ValueError: ``content`` does not describe a process.
        """
        known = {f.name: int if f.name == "pid" else str for f in fields(cls)}
        if not isinstance(content, dict) or {name: type(value) for name, value in content.items()} != known:
            raise ValueError("it does not name a process")
        return cls(**content)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class Rank:
    """A process's rank among the processes of one command under ``torchrun``; by default it is the only one."""

    index: int = 0
    """Its number, from 0. Rank 0 plans, prints and writes."""
    size: int = 1
    """Number of processes."""
    local: int = 0
    """Its number among the processes on its machine; it uses the CUDA device of this number."""
    beside: int = 1
    """Number of the processes on its machine."""

    @classmethod
    def of_this_process(cls) -> Rank:
        """Return the rank in the variables ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        index, size, local, beside = (os.environ.get(name) for name in names)
        if index is None or size is None:
            return cls()
        return cls(int(index), int(size), int(local or 0), int(beside or 1))


def alive_here(owner: Owner) -> bool | None:
    """Return whether the owner's process is alive, or None if it runs on another machine."""
    if owner.machine != machine():
        return None
    return start_of(owner.pid) == owner.started


def is_stopped(owner: Owner) -> bool:
    """Return whether the owner's process is on this machine and stands still (Ctrl-Z, SIGSTOP); False where unknown."""
    if not alive_here(owner):
        return False
    with suppress(OSError):
        return Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def host_in_names() -> str:
    """Return this machine's name without characters that a file name must not have."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).lstrip(".-")[:60] or "host"


def machine() -> str:
    """Return an identifier that is equal for two processes exactly if they have the same process numbers."""
    boot, namespace = "", ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()} {boot} {namespace}"


def start_of(pid: int) -> str | None:
    """Return the start time of a process that is alive, or None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _start_without_proc(pid)
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the process's name before it may have spaces and brackets
    state, started = fields[0], fields[19]
    return None if state in "ZX" else started


def _start_without_proc(pid: int) -> str | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return None


# The cores and the memory that this process may use. No torch.


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its container's quota."""
    from joblib.externals.loky import cpu_count

    return int(cpu_count())


def cores_of_a_rank() -> int:
    """Return this process's equal share of the cores among the processes that torchrun started on this machine."""
    return max(1, usable_cores() // Rank.of_this_process().beside)


def usable_memory() -> int:
    """Return the bytes of memory that are available now, at most the limit of the container or job."""
    import psutil

    available: int = psutil.virtual_memory().available
    return min(available, memory_limit() or available)


def memory_limit(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory limit of this process's control groups in bytes, or None without a limit.

    Reads both versions of Linux's control groups. Limits of parent groups apply, too.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        folder = top / group.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(top):
                break
            try:
                limits.append(int((place / file).read_text()))
            except (OSError, ValueError):  # not mounted here, or "max"
                continue
    return min(limits, default=None)


def peak_of_process() -> int:
    """Return the most bytes of resident memory that this process had so far."""
    try:  # what getrusage says may be the memory of the process that started this one
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
