"""A preset, and how far a command goes from it: the effective difference, and overrides that change nothing (T12)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from grok.cli.compose import conf_source
from grok.config import MODES, GptConfig, flatten, load_config
from grok.config.fields import settings_of
from grok.config.gpt import PRESETS
from grok.errors import ConfigError, nearest

_NOT_THE_RUNS: Final = ("data.path", "store.", "log.", "dry_run", "retry_failed", "force", "require_clean", "resume.")
"""Settings that say where things are or what the command does: no part of what a preset describes."""

MANY: Final = 4
"""More values of one setting than this are counted instead of listed."""


def announcement(configs: Sequence[GptConfig], argv: Sequence[str]) -> list[str]:
    """Return lines that say how the runs of a command differ from their presets, and which overrides change nothing.

    ``argv`` is the command, whose ``NAME=VALUE`` words are the overrides.
    """
    lines = []
    for name in dict.fromkeys(str(config.experiment) for config in configs):
        if name.removeprefix("gpt/") not in PRESETS:
            continue  # a file of the user's own; what it says is its own
        preset = flatten(read_settings(["mode=gpt", f"experiment={name}"]))
        asked = [flatten(config) for config in configs if config.experiment == name]
        changes = ", ".join(_changes(asked, preset))
        lines.append(f"{name} with {changes}" if changes else f"{name} as the preset has it")
        idle = [
            word
            for setting, word in dict(_overrides(argv)).items()  # of a setting given twice the last one counts
            if setting in preset
            and not setting.startswith(_NOT_THE_RUNS)
            and all(settings[setting] == preset[setting] for settings in asked)
        ]
        if idle:
            lines.append(f"Note: the preset has {', '.join(idle)} already: nothing is changed by that.")
    return lines


def _changes(asked: Sequence[dict[str, Any]], preset: dict[str, Any]) -> Iterator[str]:
    """Yield ``NAME=VALUE (preset VALUE)`` for each setting that differs, of all values that the runs have."""
    for name, before in preset.items():
        values = list(dict.fromkeys(settings[name] for settings in asked))
        if values == [before] or name in ("mode", "experiment") or name.startswith(_NOT_THE_RUNS):
            continue
        shown = ",".join(map(_text, values)) if len(values) <= MANY else f"{len(values)} values"
        yield f"{name}={shown} (preset {_text(before)})"


def _text(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return repr(value) if isinstance(value, str) and (not value or value != value.strip()) else str(value)


def _overrides(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, word) of the command's overrides, but those that choose a preset."""
    for word in argv:
        name, equals, _ = word.partition("=")
        if equals and name not in ("mode", "experiment") and not name.startswith("-"):
            yield name.lstrip("+"), word


def refuse_bare_words(words: Sequence[str]) -> None:
    """Refuse overrides without a value: Hydra's grammar says of them only that it misses something.

    Raises:
        ConfigError: a word is no ``NAME=VALUE``.

    >>> refuse_bare_words(["seed=7", "~optim.warmup_steps"])
    """
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word!r} is no setting: settings are given as NAME=VALUE, for example seed=7")


def unknown_setting(name: str) -> str:
    """Return what is wrong with a setting that the mode does not have: it is another mode's, a group's name, or none.

    >>> unknown_setting("task.modulus")
    'task.modulus is a setting of mode=arithmetic, and this is mode=gpt'
    >>> unknown_setting("optim.lrr")
    "unknown setting 'optim.lrr', did you mean 'optim.lr'?"
    """
    of = {mode: [*settings_of(config), "experiment", "mode"] for mode, config in MODES.items()}
    known = list(dict.fromkeys(n for names in of.values() for n in names))
    if name in known:
        without = [mode for mode, names in of.items() if name not in names]
        having = next(mode for mode, names in of.items() if name in names)
        if without:
            return f"{name} is a setting of mode={having}, and this is mode={' or '.join(without)}"
    if name in {n.rpartition(".")[0] for n in known} - {""}:
        inside = ", ".join(n for n in known if n.startswith(f"{name}."))
        return f"{name} is a group of settings, not a value: expected one of {inside}"
    return f"unknown setting '{name}'{nearest(name, known)}"


def refuse_another_modes(words: Sequence[str]) -> None:
    """Refuse ``mode=gpt`` with a set-up of the other mode, and the other way round.

    Raises:
        ConfigError: the two do not go together.
    """
    given = dict(word.split("=", 1) for word in words if word.startswith(("mode=", "experiment=")))
    mode, experiment = given.get("mode"), given.get("experiment")
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


def unknown_preset(name: str) -> str:
    """Return what is wrong with ``experiment=NAME`` where NAME looks like a preset's and is none.

    >>> unknown_preset("gpt/shakespeare_chr").partition(": expected")[0]
    "experiment=gpt/shakespeare_chr is not known, did you mean 'gpt/shakespeare_char'?"
    """
    known = [f"gpt/{preset}" for preset in PRESETS]
    return f"experiment={name} is not known{nearest(name, known)}: expected one of {', '.join(known)}"


def read_settings(overrides: Sequence[str]) -> GptConfig:
    """Return the settings of a command line, as ``grok.run`` would read it.

    Raises:
        ConfigError: settings that grok.run would refuse too.
    """
    from hydra import compose, initialize_config_dir, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    refuse_bare_words(overrides)
    refuse_another_modes(overrides)
    for override in overrides:
        group, _, preset = override.partition("experiment=gpt/")
        if not group and preset and preset not in PRESETS:
            raise ConfigError(unknown_preset(f"gpt/{preset}"))
    source = conf_source()
    running = GlobalHydra.instance().hydra  # the command's own, where this is asked while it runs
    GlobalHydra.instance().clear()
    where: Any = (
        initialize_config_module("grok.conf", version_base="1.3")
        if source.startswith("pkg://")
        else initialize_config_dir(source, version_base="1.3")
    )
    try:
        with where:
            settings: Any = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        unknown = re.search(r"Could not override '([^']+)'", str(error))
        if unknown:
            raise ConfigError(unknown_setting(unknown[1])) from error
        raise ConfigError(str(error)) from error
    finally:
        GlobalHydra.instance().hydra = running
    config = load_config(settings)
    if not isinstance(config, GptConfig):
        raise ConfigError(f"mode={config.mode}: expected settings of mode=gpt")
    return config
