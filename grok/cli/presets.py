"""The difference between a command and its preset, and the overrides that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from grok.cli.compose import compose
from grok.config import GptConfig, flatten, load_config
from grok.config.gpt import PRESETS
from grok.config.values import literal
from grok.errors import ConfigError

_NOT_THE_RUNS: Final = (
    "data.path",
    "data.corpora",
    "store.",
    "log.",
    "dry_run",
    "retry_failed",
    "force",
    "require_clean",
    "resume.",
)
"""Settings that say where things are or what the command does: no part of what a preset describes."""

MANY: Final = 4
"""More values of one setting than this are counted instead of listed."""


def announcement(configs: Sequence[GptConfig], argv: Sequence[str]) -> list[str]:
    """Return lines that say how the runs of a command differ from their presets, and which overrides change nothing.

    ``argv`` is the command, whose ``NAME=VALUE`` words are the overrides.
    """
    lines = []
    words = dict(_overrides(argv))  # of a setting given twice the last one counts
    sweep = next((word for name, word in words.items() if name == "sweep"), None)
    for name in dict.fromkeys(str(config.experiment) for config in configs):
        if name.removeprefix("gpt/") not in PRESETS:
            continue  # a file of the user's own; what it says is its own
        preset = flatten(gpt_settings(["mode=gpt", f"experiment={name}"]))
        runs = [flatten(_with_length(config)) for config in configs if config.experiment == name]
        changes = ", ".join(_changes(runs, preset))
        lines.append(f"{name} with {changes}" if changes else f"{name} as the preset has it")
        idle = [
            word
            for setting, word in words.items()
            if setting in preset
            and not setting.startswith(_NOT_THE_RUNS)
            and all(settings[setting] == preset[setting] for settings in runs)
        ]
        if idle and sweep is None:  # a sweep's file may have another value, which the word replaces
            lines.append(f"Note: the preset has {', '.join(idle)} already: nothing is changed by that.")
    return lines


def refuse_two_lengths(config: GptConfig, words: Sequence[str]) -> None:
    """Refuse ``train.steps`` that a length in epochs or tokens would replace.

    Raises:
        ConfigError: a command's ``words`` give it, and the settings have such a length.
    """
    typed, train = dict(_overrides(words)), config.train
    length = "epochs" if train.epochs is not None else "tokens"
    if "train.steps" in typed and (train.epochs is not None or train.tokens is not None):
        raise ConfigError(
            f"{typed['train.steps']} and train.{length}={getattr(train, length):g}: expected one length, "
            f"leave one of them out (train.{length}=null)"
        )


def _with_length(config: GptConfig) -> GptConfig:
    """Return ``config`` with the steps that it trains, as far as they are known before the weights are read."""
    from grok.execute.planned import with_budget  # pyarrow and more, which no refusal needs

    return config if config.data.path is None or config.init_from is not None else with_budget(config)


def _changes(runs: Sequence[dict[str, Any]], preset: dict[str, Any]) -> Iterator[str]:
    """Yield ``NAME=VALUE (preset VALUE)`` for each setting that differs, of all values that the runs have."""
    for name, before in preset.items():
        values = list(dict.fromkeys(settings[name] for settings in runs))
        if values == [before] or name in ("mode", "experiment") or name.startswith(_NOT_THE_RUNS):
            continue
        shown = ",".join(map(literal, values)) if len(values) <= MANY else f"{len(values)} values"
        yield f"{name}={shown} (preset {literal(before)})"


def _overrides(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, word) of the command's overrides, but those that choose a preset."""
    for word in argv:
        name, equals, _ = word.partition("=")
        if equals and name not in ("mode", "experiment") and not name.startswith("-"):
            yield name.lstrip("+"), word


def gpt_settings(words: Sequence[str]) -> GptConfig:
    """Return the checked settings of a language model's command line, as ``grok run`` would read it.

    Raises:
        ConfigError: settings that ``grok run`` would refuse too.
    """
    config = load_config(compose(words))
    if not isinstance(config, GptConfig):
        raise ConfigError(f"mode={config.mode}: expected settings of mode=gpt")
    refuse_two_lengths(config, words)
    return config
