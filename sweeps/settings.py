"""Changes to composed settings, for sweeps written in Python."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from grok.cli.compose import Settings
from grok.config import ArithmeticConfig, load_config
from grok.errors import ConfigError


def apply(base: Settings, chosen: Mapping[str, Any]) -> Settings:
    """Return a copy of nested ``base`` with the values of ``chosen``, by dotted name."""
    settings = copy.deepcopy(base)
    for name, value in chosen.items():
        *groups, last = name.split(".")
        inner = settings
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return settings


def arithmetic(settings: Settings, **changes: Any) -> ArithmeticConfig:
    """Return the checked config of ``settings`` with ``changes`` by dotted name, with ``__`` for each dot.

    Raises:
        ConfigError: the config refuses a value, or the mode is not arithmetic.
    """
    config = load_config(apply(settings, {name.replace("__", "."): value for name, value in changes.items()}))
    if not isinstance(config, ArithmeticConfig):
        raise ConfigError(f"mode={config.mode}: expected arithmetic")
    return config
