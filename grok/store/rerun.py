"""The settings of a stored run, and the command that trains it again with the seed of every stream.

The command is quoted for Hydra's grammar and for the shell.
"""

from __future__ import annotations

import json
import shlex
import typing
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, Final

from grok.config import MODES, RunConfig, load_config
from grok.config.fields import settings_of, walk
from grok.config.values import literal
from grok.errors import ConfigError
from grok.plugins import Spec, target_of
from grok.plugins.spec import TARGET
from grok.streams import STREAMS

_ABOUT_THE_COMMAND: Final = frozenset(
    {"workers", "lanes", "executor", "dry_run", "retry_failed", "force", "require_clean"}
)
_ONLY_BY_THE_USER: Final = frozenset({"log.plugin", "data.tokenizer"})
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
        if name in {"mode", "experiment", "seed"} or name.startswith("seeds."):
            continue
        if name in _ABOUT_THE_COMMAND or name in _LENGTHS or name.startswith(_ABOUT_THE_PLACE):
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
    for name, (hint, _) in settings_of(MODES[row["mode"]]).items():
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
