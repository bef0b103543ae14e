"""The commands that a report proposes, and the shortest commands that train stored runs again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml

from grok.analysis.observations import HASH, Observations, default_settings, hashes_of
from grok.analysis.populations import populations
from grok.commands import words
from grok.config.values import literal
from grok.streams import STREAMS, derive_seed

# The commands that a report proposes: a question's command, with the settings of most runs of the store and its path.

CENSUS: Final = "grok sweep 'seed=range(0,64)'"
"""Trains runs to choose from."""
CHOOSING: Final = ("branch", "layers", "repeat")
"""Commands that start from seeds of the store."""
FEWEST: Final = 24
"""Smallest number of seeds to choose from."""
LONGER: Final = 4
"""Factor by which a proposal for longer runs multiplies the steps."""
DEFAULT_STORE: Final = Path("results/store")
"""The store that commands use by default."""
STORE_WORD: Final = "STORE"
"""Placeholder of the store's path in a command that takes it as an argument."""
SWEPT: Final = "hydra.sweeper.params."
OF_ONE_RUN: Final = r"(?:\+\+)?(?:seed|perturb|switch|replicate|save|device|eval\.couple_order)"
"""Beginnings of the settings that a run has for itself."""
OF_COMMAND: Final = ("store.", "log.", "checkpoint.", "executor")
"""Beginnings of settings that a store does not choose for a command."""


def proposal(command: str, observations: Observations, any_task: bool, longer: bool = False) -> str:
    """Return ``command`` with the settings of most runs of the store and the store's path, quoted for a shell.

    If it chooses among seeds and the store has too few, the command is a census.

    Args:
        command: the command of a question; empty: there is none.
        observations: the runs of the store.
        any_task: the command works for any task; otherwise it keeps its own settings, unless it chooses among seeds.
        longer: the store lacks longer runs, so the command trains ``LONGER`` times the steps.
    """
    words = shlex.split(command)
    if not words:
        return ""
    any_task |= words[1] in CHOOSING
    if words[1] in CHOOSING and max((len(p) for p in observations.once(populations).every), default=0) < FEWEST:
        words = shlex.split(CENSUS)
    own = _set_by(words)
    if any_task and len(observations.arithmetic):
        settings = observations.once(usual_settings)
        if longer and "train.steps" not in own:
            steps = LONGER * int(observations.arithmetic["config.train.steps"].mode().iloc[0])
            settings = {**settings, "train.steps": str(steps)}
        words += [f"{name}={value}" for name, value in settings.items() if name not in own]
    path = observations.path
    if STORE_WORD in words:
        words = [str(path) if word == STORE_WORD and path is not None else word for word in words]
    else:
        words += store_words(path)
    return shlex.join(words)


def usual_settings(observations: Observations) -> dict[str, str]:
    """Return the settings of most runs of the population to start from, as they are typed, without seeds.

    Their set-up (``experiment``) stands for the settings of its file.
    """
    grouped = observations.once(populations)
    rows = grouped.to_go_on[0].rows if grouped.every else observations.arithmetic
    commands = rows["rerun"].fillna("").str.replace(rf" (?:'{OF_ONE_RUN}[^']*'|{OF_ONE_RUN}\S*)", "", regex=True)
    usual = commands.value_counts().index[0]
    try:
        pairs = [word.partition("=")[::2] for word in shlex.split(usual)]
    except ValueError:  # text that no version of this package wrote
        pairs = []
    typed = {name: value for name, value in pairs if name in default_settings() and not name.startswith(OF_COMMAND)}
    name = rows.loc[commands == usual, "config.experiment"].iloc[0]
    preset = setup_file("experiment", str(name))
    if not preset:
        return typed
    every = typed | {k: literal(default_settings()[k]) for k in preset if k not in typed}
    unlike = [k for k, v in every.items() if k not in preset or v.strip('"') != literal(preset[k]).strip('"')]
    return {"experiment": str(name), **{k: every[k] for k in unlike}}


def _set_by(words: Sequence[str]) -> set[str]:
    """Return the settings that a command sets, on the command line or in its named sweep."""
    pairs = [word.partition("=")[::2] for word in words if "=" in word]
    own = {name for name, _ in pairs}
    return own.union(*(setup_file("sweep", value) for name, value in pairs if name == "sweep"))


def setup_file(group: str, name: str) -> dict[str, Any]:
    """Return the settings of ``conf/GROUP/NAME.yaml`` by dotted name; none if the project has no such file."""
    file = words.CONF / group / f"{name}.yaml"
    if not re.fullmatch(r"[\w/]+", name) or not file.is_file():
        return {}
    content = _flattened(yaml.safe_load(file.read_text(encoding="utf-8")))
    return {key.removeprefix(SWEPT): value for key, value in content.items() if key not in ("defaults", "experiment")}


def _flattened(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


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


# The shortest commands that train stored runs again, and the own code that they need.


def rerun_command(row: pd.Series) -> str:
    """Return the store's ``rerun`` command without the seeds that the master seed derives anyway."""
    return _shortened(str(row["rerun"]), int(row["seed"]))


def rerun_commands(runs: pd.DataFrame) -> pd.Series:
    """Return :func:`rerun_command` of every row."""
    pairs = zip(runs["rerun"], runs["seed"], strict=True)
    return pd.Series([_shortened(str(command), int(seed)) for command, seed in pairs], index=runs.index, dtype=object)


def _shortened(command: str, seed: int) -> str:
    # The store writes these words unquoted, with one space before and after.
    padded = f"{command} "
    for stream in STREAMS:
        padded = padded.replace(f" seeds.{stream}={derive_seed(seed, stream)} ", " ", 1)
    return padded[:-1]


def code_needed(observations: Observations, rows: pd.DataFrame) -> str:
    """Return the own code that ``rows`` were trained with, and later versions of it; empty if they have none."""
    if "own_code" not in rows or rows["own_code"].isna().all():
        return ""
    last = observations.once(_last_starts)
    named = {pair for text in rows["own_code"].dropna().unique() for pair in hashes_of(text).items()}
    words = []
    for path, version in sorted(named):
        later = [v for (p, v), start in last.items() if p == path and v != version and start > last[path, version]]
        later = [v for v in later if (path, v) not in named]
        newest = max(later, key=lambda v: (last[path, v], v), default="")
        older = f" (an older version: the store has later runs of {newest[:HASH]})" if newest else ""
        words.append(f"{path} {version[:HASH]}{older}")
    return ", ".join(words)


def _last_starts(observations: Observations) -> dict[tuple[str, str], pd.Timestamp]:
    """Return when the last run of each (import path, hash) of own code began."""
    runs = observations.all_runs.dropna(subset=["own_code"])
    last = pd.to_datetime(runs["started_at"]).groupby(runs["own_code"]).max()
    starts: dict[tuple[str, str], pd.Timestamp] = {}
    for text, start in last.items():
        for pair in hashes_of(text).items():
            known = starts.get(pair, pd.Timestamp.min)
            starts[pair] = known if pd.isna(start) else max(known, start)
    return starts
