"""Changes to composed settings, for sweeps written in Python."""

from __future__ import annotations

import copy
from typing import Any

from grok.cli.compose import Settings
from grok.config import ArithmeticConfig, load_config
from grok.errors import ConfigError


def arithmetic(settings: Settings, **changes: Any) -> ArithmeticConfig:
    """Return the checked config of ``settings`` with dotted ``changes`` (written with ``__`` for the dots).

    Raises:
        ConfigError: anything the config refuses, or another mode than arithmetic.
    """
    changed = copy.deepcopy(settings)
    for name, value in changes.items():
        *groups, last = name.split("__")
        inner = changed
        for group in groups:
            inner = inner[group]
        inner[last] = value
    config = load_config(changed)
    if not isinstance(config, ArithmeticConfig):
        raise ConfigError(f"mode={config.mode}: expected arithmetic")
    return config
