"""The words of a command line: what cannot be meant is refused, what people type is put as Hydra's grammar needs it."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Sequence
from typing import Final

from grok.cli import setups
from grok.config import MODES
from grok.config.fields import settings_of
from grok.config.gpt import PRESETS
from grok.errors import ConfigError

_NO_TEXT: Final = re.compile(r"(?i)\s*(\[.*\]|null|true|false|[+-]?(inf|nan|[\d_.]+(e[+-]?\d+)?))\s*")
"""Values that are no text in Hydra's grammar."""

GROUPS: Final = ("experiment", "sweep", "mode", "study")
"""Words that choose a file of ``conf/``."""


def as_overrides(words: Sequence[str]) -> list[str]:
    """Return the overrides that ``NAME=VALUE`` words mean.

    Raises:
        ConfigError: a word is no override, chooses a file outside ``conf/``, or another word's mode excludes it.
    """
    refuse_bare_words(words)
    for word in words:
        _refuse_path(word)
    refuse_another_modes(words)
    return [as_meant(word) for word in words]


def store_as_setting(words: Sequence[str]) -> list[str]:
    """Return ``words`` with ``--store S`` put as the setting that it is.

    Raises:
        ConfigError: it has no value.

    >>> store_as_setting(["-m", "--store", "results/a", "seed=1,2"])
    ['-m', 'store.path=results/a', 'seed=1,2']
    >>> store_as_setting(["--store=my, store"])
    ["store.path='my, store'"]
    """
    settings, rest = [], list(words)
    while rest:
        name, equals, value = (word := rest.pop(0)).partition("=")
        if name != "--store":
            settings.append(word)
            continue
        value = value if equals else rest.pop(0) if rest else ""
        if not value or value.startswith("-"):
            raise ConfigError("--store needs the folder of a store, for example --store results/store")
        settings.append(f"store.path={quoted(value)}")
    return settings


def quoted(value: str) -> str:
    """Return text as Hydra's grammar takes it: in quotes where it has special characters.

    >>> quoted("results/store"), quoted("a,b")
    ('results/store', "'a,b'")
    """
    plain = value and all(character.isalnum() or character in "/._-+@" for character in value)
    return value if plain else "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${") + "'"


def refuse_bare_words(words: Sequence[str]) -> None:
    """Refuse overrides without a value: Hydra's grammar says of them only that it misses something.

    Raises:
        ConfigError: a word is no ``NAME=VALUE``.

    >>> refuse_bare_words(["seed=7", "~optim.warmup_steps"])
    """
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word!r} is no setting: settings are given as NAME=VALUE, for example seed=7")


def _refuse_path(word: str) -> None:
    """Refuse a set-up from outside ``conf/``: Hydra would take any path for a name, and fails at what is no text."""
    group, equals, name = word.lstrip("+~").partition("=")
    group = group.partition("@")[0]
    if not equals or group not in GROUPS:
        return
    if ".." in name or name.startswith(("/", "~")):
        raise ConfigError(f"{group}={name} is a path: expected a name below conf/{group}/")
    if _NO_TEXT.fullmatch(name):
        raise ConfigError(f"{group}={name} is not known: expected one of {', '.join(setups.names(group))}")


def chosen_mode(words: Sequence[str]) -> str:
    """Return the mode that a command line chooses, by itself or by its preset."""
    gpt = any(word.lstrip("+") == "mode=gpt" or word.lstrip("+").startswith("experiment=gpt/") for word in words)
    return "gpt" if gpt else "arithmetic"


def refuse_another_modes(words: Sequence[str]) -> None:
    """Refuse ``mode=gpt`` with a set-up of the other mode, and the other way round.

    Raises:
        ConfigError: the two do not go together.
    """
    chosen = dict(word.split("=", 1) for word in words if word.startswith(("mode=", "experiment=")))
    mode, experiment = chosen.get("mode"), chosen.get("experiment")
    if mode is None or experiment is None or "," in mode + experiment or experiment == "null":
        return
    if mode == "gpt" and not experiment.startswith("gpt/"):
        hint = f", did you mean 'gpt/{experiment}'?" if experiment in PRESETS else ""
        raise ConfigError(
            f"experiment={experiment} is no preset of mode=gpt{hint}: expected experiment=gpt/NAME, with NAME one of "
            f"{', '.join(PRESETS)}"
        )
    if mode == "arithmetic" and experiment.startswith("gpt/"):
        raise ConfigError(f"experiment={experiment} is a preset of mode=gpt: expected that mode, or none")


def as_meant(word: str) -> str:
    """Return an override as Hydra's grammar needs it where what people type means something else to it.

    >>> as_meant("save=init,final"), as_meant("seeds.layers={blocks.1:7}")
    ("save='init,final'", '++seeds.layers={blocks.1:7}')
    >>> as_meant("seeds.layers.blocks.1=range(0,16)")
    '++seeds.layers.blocks.1=range(0,16)'
    >>> as_meant("task.operation=x^2+y^2,x+y")
    "task.operation='x^2+y^2','x+y'"
    """
    name, equals, value = word.partition("=")
    if not equals:
        return word
    if name == "save" and "," in value and value.isascii() and "'" not in value and '"' not in value:
        return f"save='{value}'"  # not a sweep: what is kept is no part of a run
    if name == "task.operation" and "^" in value and not set(value) & set("'\"()[]{}"):
        return f"{name}=" + ",".join(f"'{operation}'" for operation in value.split(","))
    if any(name == known or name.startswith(f"{known}.") for known in _maps()):
        return f"++{word}"  # a map takes new keys
    return word


@functools.cache
def _maps() -> frozenset[str]:
    return frozenset(
        name
        for mode in MODES.values()
        for name, (hint, _) in settings_of(mode).items()
        if typing.get_origin(hint) is dict
    )
