"""The commands that a report proposes, with the store's path and the settings of its runs."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pandas as pd

from analysis.designs import designed
from analysis.observations import (
    CONDITION_SETTINGS,
    Observations,
    as_text,
    default_settings,
    has_own_task,
)
from analysis.own_versions import OWN_CODE
from analysis.populations import COUPLING, Populations, populations
from analysis.setup_files import setup_file
from analysis.statistics.proportions import share
from grok.config.values import literal
from grok.streams import derive_seed

DEFAULT_STORE: Final = Path("results/store")
"""The store that commands use by default."""
CARRIED: Final = (
    *(name for name in CONDITION_SETTINGS if f"config.{name}" != COUPLING and name not in ("mode", OWN_CODE)),
    *("train.steps", "train.stop_when_generalised", "train.stop_horizon", "train.stop_every"),
    *("eval.schedule", "eval.every", "eval.points", "eval.metrics", "eval.metric_plugins"),
    *("numerics.path", "numerics.compile"),
)
"""Settings that a proposed command copies from the store's runs, unless it sets them itself."""
LONGER: Final = 4
"""Factor by which a proposal for longer runs multiplies the steps."""
MOST_VALUES: Final = 4
"""Largest number of values that a proposal sweeps over. If a store has more, the proposal takes the reference's."""
EXAMPLE_SHARE: Final = 0.05
"""Share in the example that shows the interval of a proposed census."""
FEWEST_SHOWN: Final = 20
"""Smallest number of seeds with such an example."""
STORE_WORD: Final = "STORE"
"""Placeholder of the store's path in a command that takes it as an argument."""


def proposal(command: str, observations: Observations, any_task: bool, longer: bool = False) -> str:
    """Return ``command`` with the settings of the store's runs and the store's path, quoted for a shell.

    ``any_task``: the command works for any task; otherwise it keeps its own settings.
    ``longer``: the store lacks longer runs, so the command trains ``LONGER`` times the steps.
    """
    if not command:
        return ""
    design = designed(shlex.split(command), observations, any_task)
    words = list(design.words)
    if design.settings and len(observations.arithmetic):
        words += settings_of(observations, _set_by(words), words[:2] == ["grok", "sweep"], design.streams)
        if longer and "train.steps" not in _set_by(design.words):
            steps = LONGER * int(observations.once(_usual_row)["config.train.steps"])
            words = [*(word for word in words if not word.startswith("train.steps=")), f"train.steps={steps}"]
    if words[:2] in (["grok", "repeat"], ["grok", "branch"]) and len(observations.arithmetic):
        words += _own_code(observations, [*_set_by(words), *design.alone])
    words += [f"{name}={_typed(value)}" for name, value in design.alone.items() if name != OWN_CODE]
    path = observations.path
    if STORE_WORD in words:
        words = [str(path) if word == STORE_WORD and path is not None else word for word in words]
    else:
        words += store_words(path)
    return shlex.join(words)


def amount(command: str) -> str:
    """Return the number of runs of a proposed sweep or search, and an example of a share's interval.

    Empty for commands whose number of runs depends on the store.
    """
    words = shlex.split(command)
    if words[:2] == ["grok", "search"]:
        options = dict(word.split("=", 1) for word in words[2:])
        file = {**(setup_file("study", "base") or {}), **(setup_file("study", options["study"]) or {})}
        trials, seeds = (int(options.get(f"study.{name}", file[name])) for name in ("trials", "seeds"))
        return f"{trials} trials of {seeds} seeds: up to {trials * seeds:,} runs."
    if words[:2] != ["grok", "sweep"]:
        return ""
    swept = {name: n for name, n in _swept(words).items() if n > 1}
    text = f"{math.prod(swept.values()):,} runs"
    settings = " × ".join(f"{n} values of {name}" for name, n in swept.items() if not name.startswith("seed"))
    streams = [name for name in swept if name.startswith("seed")]
    if len(streams) != 1:
        return f"{text}."
    seeds = swept[streams[0]]
    text += f": {seeds:,} seeds at each of {settings}." if settings else "."
    if seeds >= FEWEST_SHOWN:
        hits = max(1, round(EXAMPLE_SHARE * seeds))
        text += f" If {hits:,} of {seeds:,} seeds are super, the share is {share(hits, seeds).percent()}, 95% interval."
    return text


def _swept(words: Sequence[str]) -> dict[str, int]:
    """Return the number of values of each setting in a command, including those of its named sweep."""
    counts: dict[str, int] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name == "sweep":
            file = setup_file("sweep", value) or {}
            own = {key.removeprefix(SWEPT): str(text) for key, text in file.items() if key.startswith(SWEPT)}
            counts = {**{key: _number(text) for key, text in own.items()}, **counts}
        elif equals:
            counts[name.lstrip("+")] = _number(value)
    return counts


def _number(value: str) -> int:
    """Return the number of values that Hydra reads from ``range(0,64)`` or ``1,2,3``; 1 for other text."""
    if ends := re.fullmatch(r"range\((\d+),(\d+)\)", value):
        return int(ends[2]) - int(ends[1])
    return value.count(",") + 1 if re.fullmatch(r"[\w.+-]+(,[\w.+-]+)+", value) else 1


def store_words(path: Path | None) -> list[str]:
    """Return the override that names a store; nothing for the default store."""
    if path is None or path == DEFAULT_STORE:
        return []
    return [f"store.path={literal(path)}"]


def given_again(argv: Sequence[str], path: Path | None) -> str:
    """Return a stored sweep's command with the store's present path."""
    words, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--store":
            rest = rest[1:]
        elif not word.startswith(("store.path=", "--store=")):
            words.append(word)
    return shlex.join([*words, *store_words(path)])


def settings_of(observations: Observations, own: Sequence[str], sweeping: bool, streams: bool = True) -> list[str]:
    """Return the overrides of the settings of a store's runs, without seeds: their experiment, then what differs.

    ``own``: names of the settings that the command sets itself. ``sweeping``: the command accepts several
    values of a setting. If one setting differs between the populations, the command then sweeps over its
    values. ``streams``: a sweeping command also fixes the streams that are fixed in every population.
    """
    grouped = observations.once(populations)
    rows = observations.arithmetic
    row = observations.once(_usual_row)
    name = row.get("config.experiment")
    preset = setup_file("experiment", str(name)) if isinstance(name, str) else None
    words = [f"experiment={name}"] if preset is not None else []
    before = {**default_settings(), **{k: _stored(v) for k, v in (preset or {}).items()}}
    for setting in CARRIED:
        column = f"config.{setting}"
        if setting in own or column not in rows or (setting == "task.operation" and has_own_task(row)):
            continue  # the name of a task of the user's own follows from its code
        values = _values(grouped, setting) if sweeping else None
        if values is not None:
            words.append(f"{setting}={','.join(values)}")
        elif as_text(row[column]) != as_text(before.get(setting)):
            words.append(f"{setting}={_typed(row[column])}")
    return [*words, *(_streams(grouped, own) if sweeping and streams else [])]


def _usual_row(observations: Observations) -> pd.Series:
    """Return a run with the most frequent settings of the population from which proposed commands start."""
    grouped = observations.once(populations)
    rows = grouped.to_go_on[0].rows if grouped.every else observations.arithmetic
    columns = [f"config.{setting}" for setting in CARRIED if f"config.{setting}" in rows]
    settings = rows.groupby(columns, dropna=False, sort=False).ngroup()
    return rows[settings == settings.mode().iloc[0]].iloc[0]


def _own_code(observations: Observations, own: Sequence[str]) -> list[str]:
    """Return the overrides that name the user's own code of a store's runs: commands that start from them need it."""
    row = observations.once(_usual_row)
    values = {name: row.get(f"config.{name}") for name in CARRIED if name not in own}
    return [f"{n}={_typed(value)}" for n, value in values.items() if isinstance(value, str) and '"_target_"' in value]


def _values(grouped: Populations, setting: str) -> list[str] | None:
    """Return the values of the only setting that differs between populations; None if several do or it has many."""
    if grouped.settings != (setting,):
        return None
    values = list(dict.fromkeys(_typed(p.rows.iloc[0][f"config.{setting}"]) for p in grouped.every))
    return values if len(values) <= MOST_VALUES else None


def _streams(grouped: Populations, own: Sequence[str]) -> list[str]:
    """Return overrides of the streams that have the same fixed seed in every population."""
    if not grouped.every:
        return []
    shared = set(grouped.every[0].fixed.items()).intersection(*(p.fixed.items() for p in grouped.every))
    return [
        f"{'++' if stream.startswith('layers.') else ''}seeds.{stream}={seed}"
        for stream, seed in grouped.every[0].fixed.items()
        if (stream, seed) in shared
        and f"seeds.{stream}" not in own
        and ("seed" in own or seed != derive_seed(0, stream))  # the command's default
    ]


def _typed(value: Any) -> str:
    """Return a stored value in Hydra's grammar. Lists and maps are stored as JSON."""
    if value is None or pd.isna(value):
        return "null"
    if isinstance(value, str) and value.startswith(("{", "[")):
        with suppress(ValueError):  # a text that no version of this package wrote is quoted as it is
            return literal(json.loads(value))
    return literal(value)


def _stored(value: Any) -> Any:
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, list) else value


def _set_by(words: Sequence[str]) -> list[str]:
    """Return the settings that a command sets, on the command line or in its named sweep."""
    own: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name == "sweep":
            sweep = setup_file("sweep", value) or {}
            own += [key.removeprefix(SWEPT) for key in sweep]
        elif equals:
            own.append(name.lstrip("+"))
    return own


SWEPT: Final = "hydra.sweeper.params."
