"""Runs a command that may misbehave: hang, print without end, use up the memory, leave processes behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

KEPT: Final = 2**18
"""Number of bytes at the end of the output that are kept."""
POLL: Final = 0.1
"""Seconds between two checks of the process."""
MEMORY_POLL: Final = 1.0
"""Seconds between two checks of its memory, which cost more."""
LOST: Final = 3.0
"""Seconds to wait for a killed process: one that waits for a driver does not end."""
MOST_MEMORY: Final = 0.9
"""Share of the machine's memory above which a command is ended, before the kernel ends another process."""
SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of prctl: orphaned descendants of this process become its children."""


@dataclass(frozen=True)
class Run:
    """How a command ended: ``done``, ``failed``, ``out of time``, ``out of memory`` or ``interrupted``."""

    state: str
    status: int | None
    """Its exit status: minus the number of the signal that ended it; None if it did not end."""
    text: str
    """The end of its output."""


def run_confined(
    command: Sequence[str],
    limit: float,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    interrupted: Callable[[], bool] = lambda: False,
    memory: int | None = None,
) -> Run:
    """Run a command for at most ``limit`` seconds with at most ``memory`` bytes (default: ``MOST_MEMORY``).

    When this returns, the command and all processes that it started have ended, or were killed.
    """
    allowed = memory or int(MOST_MEMORY * machine_memory())
    end = time.monotonic() + limit
    with orphans_adopted() as orphans:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        first_to_go(process.pid)
        assert process.stdout is not None
        printed = Printed(process.stdout)
        try:
            state = wait(process, end, allowed, interrupted)
        finally:
            kill_all(process, orphans)
    return Run(state, process.poll(), printed.text())


def wait(process: subprocess.Popen[bytes], end: float, allowed: int, interrupted: Callable[[], bool]) -> str:
    """Wait for a process and return its state; it still runs unless that is ``done`` or ``failed``."""
    look = time.monotonic() + MEMORY_POLL
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return "done" if process.wait(timeout=POLL) == 0 else "failed"
        now = time.monotonic()
        if interrupted():
            return "interrupted"
        if now > end:
            return "out of time"
        if now > look:
            look = now + MEMORY_POLL
            if memory_of(process.pid) > allowed:
                return "out of memory"


class Printed:
    """Reads a pipe to its end in a thread, and keeps the last ``KEPT`` bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._end = pipe, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while part := os.read(self._pipe.fileno(), 2**16):
                self._end = (self._end + part)[-KEPT:]

    def text(self) -> str:
        self._thread.join(1.0)
        return self._end.decode(errors="replace")


def kill_all(process: subprocess.Popen[bytes], orphans: Callable[[], list[int]]) -> None:
    """Kill a command's process group, and those of its descendants that left the group."""
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=LOST)
    while (left := orphans()) and time.monotonic() - began < LOST:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL / 10)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    session: int
    memory: int
    """Resident memory in bytes."""


def processes() -> list[Process]:
    """Return the machine's processes; an empty list without /proc."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()  # a name may contain spaces
            pages = int(fields[21])
            result.append(Process(int(folder.name), int(fields[1]), int(fields[3]), pages * os.sysconf("SC_PAGE_SIZE")))
    return result


def memory_of(leader: int) -> int:
    """Return the resident memory of a session in bytes; shared memory counts for each process."""
    return sum(process.memory for process in processes() if process.session == leader)


def machine_memory() -> int:
    """Return the memory in bytes that this process may use: the machine's, or its container's."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return min(limits)


@contextlib.contextmanager
def orphans_adopted() -> Iterator[Callable[[], list[int]]]:
    """Adopt descendants whose parent ends (on Linux); yield a function that returns their process ids."""
    before = {process.pid for process in processes()}
    own = os.getpid()

    def orphans() -> list[int]:
        return [process.pid for process in processes() if process.parent == own and process.pid not in before]

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield orphans
    finally:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)


def first_to_go(pid: int) -> None:
    """Make this process and its children the first that the kernel kills if memory runs out."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
