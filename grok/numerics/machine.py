"""The cores and the memory that this process may use. No torch."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from grok.processes import Rank


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its container's quota."""
    from joblib.externals.loky import cpu_count

    cores: int = cpu_count()
    return cores


def cores_of_a_rank() -> int:
    """Return this process's equal share of the cores among the processes that torchrun started on this machine."""
    return max(1, usable_cores() // Rank.of_this_process().beside)


def usable_memory() -> int:
    """Return the bytes of memory that are available now, at most the limit of the container or job."""
    import psutil

    available: int = psutil.virtual_memory().available
    limit = memory_limit()
    return available if limit is None else min(available, limit)


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
