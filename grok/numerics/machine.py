"""What this machine can lend to workers: cores and memory. No torch."""

from __future__ import annotations

from pathlib import Path

from grok.processes import Rank


def usable_cores() -> int:
    """Return how many cores this process may use: those that it is bound to, within a container's quota."""
    from joblib.externals.loky import cpu_count

    cores: int = cpu_count()
    return cores


def cores_of_a_rank() -> int:
    """Return how many cores this process may use where torchrun started others beside it on this machine."""
    return max(1, usable_cores() // Rank.of_this_process().beside)


def usable_memory() -> int:
    """Return the bytes of memory that are free for use now, within a container's or a job's limit."""
    import psutil

    available: int = psutil.virtual_memory().available
    limit = memory_limit()
    return available if limit is None else min(available, limit)


def memory_limit(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that this process's control groups allow it, or None where nobody says so.

    Both versions of Linux's control groups are read; a limit of a group above binds as well.
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
