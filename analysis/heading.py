"""The facts at the top of the page: task, model, training, conditions, dates, code and commands of the runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.observations import (
    Observations,
    describe_task,
    differing_settings,
    in_words,
    varying_columns,
    without_repetition,
)
from analysis.proposals import given_again
from grok.streams import derive_seed

MOST_VALUES: Final = 4
"""Largest number of values of one fact that the page names; it counts the rest."""
MOST_COMMANDS: Final = 3
STREAMS: Final = ("split", "init", "order", "dropout", "sample", "perturb")
"""Streams whose seed is part of a run's label if the master seed does not derive it."""


@dataclass(frozen=True)
class Fact:
    """One line of the heading."""

    name: str
    text: str
    is_command: bool = False


def heading(observations: Observations) -> list[Fact]:
    """Return the facts in the page's order; an empty list for an empty store."""
    facts = []
    rows = observations.arithmetic
    if len(rows):
        facts = [
            Fact("Task", _each(rows, describe_task)),
            Fact("Model", _each(rows, describe_model)),
            Fact("Training", describe_training(rows)),
            Fact("Conditions", _conditions(rows)),
        ]
    if len(observations.gpt):
        presets = observations.gpt["config.experiment"].fillna("no preset").unique()
        facts.append(Fact("Language models", _some([str(p) for p in sorted(presets)])))
        facts.append(
            Fact("Their model and training", _some(_different(observations.gpt, describe_language_model), "; "))
        )
    if len(observations.all_runs):
        facts += [Fact("Trained", _dates(observations)), Fact("Code", _code(observations.all_runs))]
    return facts + [Fact("Command", command, is_command=True) for command in _commands(observations)]


def describe_model(row: pd.Series) -> str:
    """Return the model of an arithmetic run in words."""
    layers, width, inner = (row[f"config.model.{name}"] for name in ("layers", "d_model", "d_ff"))
    norm = {"none": "no LayerNorm", "pre": "LayerNorm before each part", "post": "LayerNorm after each part"}
    return (
        f"transformer of {int(layers)} layer{'s' if layers > 1 else ''}, width {int(width)}, "
        f"{int(row['config.model.heads'])} heads, MLP {int(4 * width if pd.isna(inner) else inner)}, "
        f"{str(row['config.model.activation']).upper()}, {norm.get(str(row['config.model.norm']), '')}"
    )


def describe_language_model(row: pd.Series) -> str:
    """Return model, batch and length of a language model's run in words."""
    layers, width, heads, context, batch, steps = (
        int(row[f"config.{name}"])
        for name in ("model.layers", "model.d_model", "model.heads", "model.context", "train.batch_size", "train.steps")
    )
    return (
        f"transformer of {layers} layer{'s' if layers > 1 else ''}, width {width:,}, {heads} heads, "
        f"{context:,} tokens; learning rate {row['config.optim.lr']:g}, batch {batch:,}, {steps:,} steps"
    )


def describe_training(rows: pd.DataFrame) -> str:
    """Return optimiser, batch and length of arithmetic runs in words, with every value that they take."""

    def values(setting: str) -> str:
        ordered = _ordered(rows[f"config.{setting}"])
        return _some([f"{v:,}" if isinstance(v, int | np.integer) else _value(v) for v in ordered])

    return (
        f"AdamW, learning rate {values('optim.lr')}; weight decay {values('optim.weight_decay')}; "
        f"batch {values('train.batch_size')}; {values('train.steps')} steps"
    )


def run_labels(runs: pd.DataFrame) -> dict[str, str]:
    """Return a label for each run: its master seed, stream seeds that it does not derive, settings that vary."""
    if runs.empty:
        return {}
    labels = [f"seed {seed}" for seed in runs["seed"]]
    for stream in STREAMS:
        column = f"seed_{stream}"
        if column not in runs:
            continue
        for i, (seed, value) in enumerate(zip(runs["seed"], runs[column], strict=True)):
            if not pd.isna(value) and int(value) != derive_seed(int(seed), stream):
                labels[i] += f", {stream} {int(value)}"
    for mode in runs["mode"].unique():
        here = np.flatnonzero(runs["mode"] == mode)
        for column in varying_columns(runs.iloc[here]):
            for place, value in zip(here, runs[column].iloc[here], strict=True):
                labels[place] += f", {column.rpartition('.')[2]} {_value(value)}"
    return dict(zip(runs["run_id"].astype(str), labels, strict=True))


def _conditions(rows: pd.DataFrame) -> str:
    varying = varying_columns(rows)
    if varying:
        count = len(rows[varying].drop_duplicates())
        parts = [
            f"{name} {_some([_value(v) for v in _ordered(rows[f'config.{name}'])])}"
            for name in without_repetition(column.removeprefix("config.") for column in varying)
        ]
        return f"{count} conditions: {'; '.join(parts)}"
    changed = differing_settings(rows.iloc[0])
    return f"one; {len(changed)} settings differ from the diary's regime" if changed else "one, the diary's regime"


def _ordered(column: pd.Series) -> list[object]:
    values = list(column.drop_duplicates())
    return sorted(values, key=lambda v: (isinstance(v, str), v if isinstance(v, int | float) else 0.0, str(v)))


def _value(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else in_words(value)


def _each(rows: pd.DataFrame, words: Callable[[pd.Series], str]) -> str:
    """Return the distinct descriptions of the rows, joined."""
    return _some(_different(rows, words), "; ")


def _different(rows: pd.DataFrame, words: Callable[[pd.Series], str]) -> list[str]:
    settings = [
        c for c in rows if str(c).startswith(("config.task.", "config.model.", "config.optim.", "config.train."))
    ]
    kinds = rows.drop_duplicates([c for c in settings if rows[c].notna().any()])
    return list(dict.fromkeys(words(row) for _, row in kinds.iterrows()))


def _some(words: list[str], between: str = ", ") -> str:
    shown = between.join(words[:MOST_VALUES])
    return shown if len(words) <= MOST_VALUES else f"{shown}{between}and {len(words) - MOST_VALUES:,} more"


def _dates(observations: Observations) -> str:
    when = pd.to_datetime(observations.all_runs["started_at"]).dropna()
    if when.empty:
        return "unknown"
    first, last = (f"{t:%Y-%m-%d}" for t in (when.min(), when.max()))
    return first if first == last else f"{first} to {last}"


def _code(runs: pd.DataFrame) -> str:
    commits = sorted({str(c)[:10] for c in runs["git_commit"].dropna()})
    versions = sorted({str(v) for v in runs["grok_version"].dropna()}) if "grok_version" in runs else []
    return f"version {_some(versions)}, commit {_some(commits) or 'unknown'}"


def _commands(observations: Observations) -> list[str]:
    """Return the commands of the latest sweeps, latest first, with the store's present path."""
    commands = [
        given_again(sweep["argv"], observations.path) for sweep in reversed(observations.sweeps) if sweep.get("argv")
    ]
    return list(dict.fromkeys(commands))[:MOST_COMMANDS]
