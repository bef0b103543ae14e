"""The origin of a result: commit, uncommitted changes, versions, machine, sweep.

The git state is recorded and never required: outside a checkout it is null. Stores and
ignored files never make a tree dirty. Versions come from the packages' metadata, so that
planning does not import torch.
"""

from __future__ import annotations

import functools
import os
import platform
import socket
import subprocess
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from grok.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The part of a row that is equal for all runs of one process. Workers receive it by pickle."""

    git_commit: str | None
    git_dirty: bool | None
    host: str
    grok_version: str
    torch_version: str | None
    python_version: str
    numpy_version: str | None
    sweep_id: str | None = None
    lane_width: int | None = None

    @classmethod
    def collect(cls, sweep_id: str | None = None, lane_width: int | None = None) -> Provenance:
        """Return the provenance of this process; git runs once per process."""
        commit, dirty = git_state()
        return cls(
            git_commit=commit,
            git_dirty=dirty,
            host=socket.gethostname(),
            grok_version=__version__,
            torch_version=installed("torch"),
            python_version=platform.python_version(),
            numpy_version=installed("numpy"),
            sweep_id=sweep_id,
            lane_width=lane_width,
        )

    def on_this_machine(self, lane_width: int | None = None) -> Provenance:
        """Return the same with code, host and versions of the calling process.

        A worker may run other code than the planning process: it is on another machine, or
        started after a file was changed. Where git is missing, the planner's git state stays.
        """
        commit, dirty = git_state()
        if commit is None:
            commit, dirty = self.git_commit, self.git_dirty
        return replace(
            self,
            git_commit=commit,
            git_dirty=dirty,
            grok_version=__version__,
            host=socket.gethostname(),
            torch_version=installed("torch"),
            python_version=platform.python_version(),
            numpy_version=installed("numpy"),
            lane_width=self.lane_width if lane_width is None else lane_width,
        )


def installed(package: str) -> str | None:
    """Return the installed version of ``package`` without importing it, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def git_state() -> tuple[str | None, bool | None]:
    """Return (commit, dirty) of the checkout this package runs from; (None, None) outside one.

    Dirty: a tracked file differs from the commit, or there is an untracked file that
    git does not ignore and that is not in a store.
    """
    return git_state_of(Path(__file__).parents[1])


def git_state_of(package: Path) -> tuple[str | None, bool | None]:
    """Return (commit, dirty) of the checkout that tracks ``package``; (None, None) where none does."""
    # The folder of an installed package may be inside an unrelated checkout: only one that tracks the package counts.
    if not _git(package, "ls-files", "--error-unmatch", "__init__.py"):
        return None, None
    commit, top = _git(package, "rev-parse", "HEAD"), _git(package, "rev-parse", "--show-toplevel")
    if not commit or not top:
        return None, None
    status = _git(Path(top.strip()), "status", "--porcelain", "-z", "--untracked-files=all")
    if status is None:
        return commit.strip(), None
    return commit.strip(), _is_dirty(Path(top.strip()), status)


def _is_dirty(top: Path, status: str) -> bool:
    for entry in filter(None, status.split("\0")):
        untracked = entry.startswith("?? ")
        if not untracked or not in_store(top, entry[3:]):
            return True
    return False


def in_store(top: Path, name: str) -> bool:
    """Return whether the file ``name`` below ``top`` is inside a store."""
    return any((top / parent / "store.json").is_file() for parent in Path(name).parents)


def _git(folder: Path, *words: str) -> str | None:
    """Return git's output in ``folder``, or None where it fails or is not installed."""
    # Variables such as GIT_DIR (set inside hooks) would make git read another checkout.
    # Without optional locks `git status` writes nothing, so parallel workers do not collide.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
