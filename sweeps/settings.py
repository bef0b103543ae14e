"""Settings composed from ``conf/`` and overrides, as ``grok.run`` composes them, for sweeps written in Python."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from grok.cli.compose import conf_source
from grok.cli.presets import refuse_bare_words
from grok.config import ArithmeticConfig, load_config
from grok.errors import ConfigError

Settings = dict[str, Any]


def compose_settings(overrides: Sequence[str]) -> Settings:
    """Return the nested settings of ``overrides``.

    Raises:
        ConfigError: Hydra cannot compose them; the message is Hydra's first line.
    """
    refuse_bare_words(overrides)
    source = conf_source()
    opened = (
        initialize_config_module("grok.conf", version_base=None)
        if source.startswith("pkg://")
        else initialize_config_dir(source, version_base=None)
    )
    try:
        with opened:
            settings = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error).strip().splitlines()[0]) from error
    assert isinstance(settings, dict)
    return {str(name): value for name, value in settings.items()}


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
