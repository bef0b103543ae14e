"""Runs a command that may do anything: hang, print without end, eat the memory, leave processes behind."""

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
"""Characters of the end of its output that are kept."""
POLL: Final = 0.1
"""Seconds between two looks."""
MEMORY_POLL: Final = 1.0
"""The same at its memory, which is more work."""
LOST: Final = 3.0
"""Seconds until a killed process is left to itself: one in a driver's hands does not die."""
MOST_MEMORY: Final = 0.9
"""Share of the machine's memory above which a command is ended, before the kernel ends something else."""
SUBREAPER: Final = 36
"""Of prctl: orphans of this process's descendants become its children."""


@dataclass(frozen=True)
class Run:
    """How a command ended: ``done``, ``failed``, ``out of time``, ``out of memory`` or ``interrupted``."""

    state: str
    status: int | None
    """Its exit status; minus the number of the signal that ended it, None if it would not die."""
    text: str
    """The end of what it printed."""


def run_confined(
    command: Sequence[str],
    limit: float,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    interrupted: Callable[[], bool] = lambda: False,
    memory: int | None = None,
) -> Run:
    """Run a command for at most ``limit`` seconds, in at most ``memory`` bytes (of the machine's: ``MOST_MEMORY``).

    When it returns the command and every process that it started have ended, or were killed and do not die.
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
    """Return what becomes of a process; in all states but ``done`` and ``failed`` it still runs."""
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
    """Reads a pipe to its end and keeps the last of it; never longer than anybody writes to it."""

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
    """Bytes that lie in memory."""


def processes() -> list[Process]:
    """Return the machine's processes; none where there is no /proc."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()  # a name may hold anything, spaces too
            pages = int(fields[21])
            result.append(Process(int(folder.name), int(fields[1]), int(fields[3]), pages * os.sysconf("SC_PAGE_SIZE")))
    return result


def memory_of(leader: int) -> int:
    """Return the bytes in memory of a session; what its processes share counts for each."""
    return sum(process.memory for process in processes() if process.session == leader)


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or its container's."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(file).read_text()))
    return min(limits)


@contextlib.contextmanager
def orphans_adopted() -> Iterator[Callable[[], list[int]]]:
    """Become the parent of descendants whose parent ends (on Linux); a function returns these children."""
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
    """Let the kernel, when memory ends, choose this process and those that it starts before any other."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
