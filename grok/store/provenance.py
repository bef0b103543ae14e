"""The origin of a result, and the command that trains it again with the seed of every stream.

The git state is recorded and never required: outside a checkout it is null. Stores and
ignored files never make a tree dirty. Versions come from the packages' metadata, so that
planning does not import torch.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shlex
import socket
import subprocess
import typing
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from grok.config import MODES, RunConfig, load_config
from grok.config.fields import recorded_of, walk
from grok.config.values import literal
from grok.errors import ConfigError
from grok.plugins import TARGET, Spec, target_of
from grok.streams import STREAMS
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
    def collect(cls, sweep_id: str | None = None) -> Provenance:
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
        )

    def on_this_machine(self, lane_width: int | None = None) -> Provenance:
        """Return the same with code, host and versions of the calling process.

        A worker may run other code than the planning process: it is on another machine, or
        started after a file was changed. Where git is missing, the planner's git state stays.
        """
        here = replace(Provenance.collect(self.sweep_id), lane_width=lane_width)
        if here.git_commit is not None:
            return here
        return replace(here, git_commit=self.git_commit, git_dirty=self.git_dirty)


@functools.cache
def installed(package: str) -> str | None:
    """Return the installed version of ``package`` without importing it, or None; looked up once per process.

    A package that is replaced while a process trains is another one for the next process only.
    """
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
    changed = [entry for entry in status.split("\0") if entry]
    root = Path(top.strip())  # a file inside a store changes no code
    dirty = any(
        not entry.startswith("?? ") or not any((root / p / "store.json").is_file() for p in Path(entry[3:]).parents)
        for entry in changed
    )
    return commit.strip(), dirty


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


# The settings of a stored run, and the command that trains it again with the seed of every stream.
#
# The command is quoted for Hydra's grammar and for the shell.

ABOUT_THE_COMMAND: Final = ("workers", "lanes", "executor", "dry_run", "retry_failed", "force", "require_clean")
_ONLY_BY_THE_USER: Final = frozenset({"log.plugin"})
"""Settings that name code and are in no run's identity: a store must not choose what is imported."""

_LENGTHS: Final = ("train.epochs", "train.tokens")
"""Settings that the plan made `train.steps` of, which the command has: two lengths are refused."""

_ABOUT_THE_PLACE: Final = ("store.", "checkpoint.", "log.")
"""Prefixes of settings of one command, which do not change the run."""


def overrides(config: RunConfig) -> list[str]:
    """Return the Hydra overrides of a command for the same run: equal streams, equal ``run_id``.

    They have every setting that differs from its default. A language model's run may need
    its preset (``experiment``), and a preset changes the defaults: then the overrides have
    the preset and every setting of the run.
    """
    defaults = {name: value for name, value, _ in walk(type(config)())}
    preset = config.experiment if config.mode != "arithmetic" else None
    words = [f"mode={literal(config.mode)}"] if config.mode != "arithmetic" else []
    if preset is not None:
        words.append(f"experiment={literal(preset)}")
    words.append(f"seed={config.seed}")
    words += [f"seeds.{stream}={seed}" for stream, seed in asdict(config.stream_seeds()).items()]
    if config.seeds.layers:
        words.append(f"++seeds.layers={literal(config.seeds.layers)}")
    for name, value, rule in walk(config):
        if rule.planned or name in {"mode", "experiment", "seed"} or name.startswith("seeds."):
            continue
        if name in ABOUT_THE_COMMAND or name in _LENGTHS or name.startswith(_ABOUT_THE_PLACE):
            continue
        if value != defaults[name] or (preset is not None and rule.role != "none"):
            words.append(f"{name}={literal(value)}")
    return words


def stored_config(row: Mapping[str, Any], named: Collection[str] = ()) -> RunConfig:
    """Return the settings of a row of ``runs``, with the seed of every stream.

    A setting that the row lacks has its default.

    Args:
        row: plain values by column name.
        named: import paths of the user's own code that the user has named in this command. Without them no such code
            is imported: a store must not choose what is imported.

    Raises:
        ConfigError: this version refuses the settings, or the run needs code that is not in ``named``.
    """
    config = _config(row)
    missing = {name: spec for name, spec in config.plugins().items() if target_of(spec) not in named}
    if missing:
        raise ConfigError(
            f"run {row['run_id']} was trained with code outside this package, and a store may not choose what is "
            f"imported: if you trust that code, name it again, {' '.join(_words(missing))} (and plugin_path=DIR, the "
            "folder that has it)"
        )
    return config


def words_of_own_code(row: Mapping[str, Any]) -> list[str]:
    """Return the words that name the code of the user's own of a row of ``runs`` again, quoted for a POSIX shell.

    Raises:
        ConfigError: this version refuses the settings.
    """
    config = _config(row)
    folder = [f"plugin_path={shlex.quote(literal(config.plugin_path))}"] if config.plugin_path != "." else []
    return [*_words(config.plugins()), *folder] if config.plugins() else []


def _words(plugins: Mapping[str, Spec]) -> list[str]:
    return [f"{name}.{TARGET}={target_of(spec)}" for name, spec in plugins.items()]


def _config(row: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a row of ``runs``. Code that they name is not imported."""
    nested: dict[str, Any] = {}
    for name, (hint, _) in recorded_of(MODES[row["mode"]]).items():
        value = row.get(f"config.{name}")
        if (
            name.startswith("seeds.")
            or name in _ONLY_BY_THE_USER
            or (value is None and type(None) not in typing.get_args(hint))
        ):
            continue
        *groups, last = name.split(".")
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = json.loads(str(value)) if typing.get_origin(hint) in (list, dict) else value
    nested["seeds"] = {stream: row[f"seed_{stream}"] for stream in STREAMS} | {"layers": json.loads(row["layers"])}
    return load_config(nested)


def rerun_command(config: RunConfig) -> str:
    """Return ``python -m grok.run`` with :func:`overrides`, quoted for a POSIX shell."""
    return " ".join(["python", "-m", "grok.run", *(shlex.quote(override) for override in overrides(config))])
