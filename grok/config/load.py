"""Builds checked configs from the settings that Hydra composed, and lists the config's columns in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grok.config.arithmetic import ArithmeticConfig
from grok.config.common import RunConfig
from grok.config.fields import Built, build, settings_of
from grok.config.gpt import GptConfig, require_preset
from grok.errors import ConfigError, nearest

MODES: Final[dict[str, type[RunConfig]]] = {"arithmetic": ArithmeticConfig, "gpt": GptConfig}


def load_configs(jobs: Sequence[Mapping[str, Any]]) -> list[RunConfig]:
    """Return the checked configs of many jobs; groups of settings that they share are checked once."""
    built: Built = {}
    return [load_config(job, built) for job in jobs]


def load_config(data: Mapping[str, Any], built: Built | None = None) -> RunConfig:
    """Return the checked config of nested plain ``data``; ``data["mode"]`` chooses its kind.

    ``built``: see :func:`grok.config.fields.build`.

    Raises:
        ConfigError: anything unknown, of a wrong type, out of range or impossible together.
    """
    mode = data.get("mode", "arithmetic")
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} is not known{nearest(str(mode), MODES)}: expected one of {', '.join(MODES)}")
    try:
        config = build(MODES[mode], data, built=built)
    except ConfigError:
        _refuse_another_mode(data, mode)
        raise
    if isinstance(config, GptConfig):
        require_preset(config)
    return config


def _refuse_another_mode(data: Mapping[str, Any], mode: str) -> None:
    """Refuse a setting, or a group of them, that only another mode has: a named sweep may be for that mode.

    Raises:
        ConfigError: ``data`` has such a group.
    """
    groups = {name: {setting.partition(".")[0] for setting in settings_of(cls)} for name, cls in MODES.items()}
    for group in data:
        others = [name for name in MODES if group in groups[name] and group not in groups[mode]]
        if others:
            raise ConfigError(
                f"{group} belongs to mode={others[0]}, and this is mode={mode}: "
                f"add mode={others[0]}, or leave {group} out"
            )


def config_columns() -> dict[str, Any]:
    """Return every setting of every mode by dotted name with its type: the store's ``config.*`` columns.

    A name that two modes share has one type; the schema depends on it.
    """
    columns: dict[str, Any] = {}
    for cls in MODES.values():
        for name, (hint, _) in settings_of(cls).items():
            assert columns.setdefault(name, hint) == hint, f"setting {name} has two types"
    return columns
