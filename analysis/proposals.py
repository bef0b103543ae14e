"""The commands that a report proposes, and the shortest commands that train stored runs again."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml

from analysis.observations import (
    HASH,
    OWN_CODE,
    PLAIN_SETTINGS,
    Observations,
    as_text,
    default_settings,
    differing_settings,
    floats,
    has_own_task,
    hashes_of,
)
from analysis.populations import COUPLING, RUN_STREAMS, Populations, asked, populations, random_seeds
from analysis.statistics.proportions import share
from grok.commands import words
from grok.config.values import literal
from grok.streams import STREAMS, derive_seed

# The settings in the project's files of experiments, sweeps and studies, by dotted name.


def setup_file(group: str, name: str) -> dict[str, Any] | None:
    """Return the settings of ``conf/GROUP/NAME.yaml`` by dotted name; None if the project has no such file."""
    file = words.conf_folder() / group / f"{name}.yaml"
    if re.fullmatch(r"[\w/]+", name) and file.is_file():
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        return flattened({k: v for k, v in content.items() if k != "defaults"})
    return None


def flattened(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


# The choices of a proposed design command that depend on the store: which seeds, how many, at which step.
#
# ``sweeps.layers``, ``sweeps.branch`` and ``sweeps.repeat`` start from stored runs. A proposal names runs of
# the store. If the store has no suitable runs, the proposal is a census, which trains them. The size of a
# proposed census fits the store, because the named census has as many seeds as the diary's.

CENSUS: Final = ("grok", "sweep", "seed=range(0,64)")
SIZES: Final = (64, 128, 256, 512, 1024)
"""Seeds of a proposed census; more than the last are the named sweep's."""
SMALL_SEARCH: Final = ("study.trials=16", "study.seeds=4")
HALVING: Final = 4
"""Times as many seeds make an interval half as wide."""
MOST_CANDIDATES: Final = 12
MOST_PARENTS: Final = 2
FEWEST: Final = 4
"""Smallest number of runs to choose from."""


@dataclass(frozen=True)
class Proposed:
    """The words of a command, and what it copies from the runs of the store."""

    words: list[str]
    settings: bool
    """Whether to add the settings of the store's runs."""
    streams: bool = True
    """Whether to add the stream seeds that are fixed in every population of the store."""
    alone: Mapping[str, Any] = field(default_factory=dict)
    """Settings that select one condition among those of the store."""


def designed(words: list[str], observations: Observations, any_task: bool) -> Proposed:
    """Return the command ``words`` with the choices that depend on the store filled in."""
    name = words[1] if words[:1] == ["grok"] else ""
    if words[2:] == ["sweep=census"]:
        return Proposed(_census(words, observations), any_task)
    if name == "search":
        return _search(words, observations)
    if name == "layers":
        return Proposed(_transplant(words, observations), any_task)
    if name == "branch":
        options = _parents(observations)
        return Proposed(_with(words, options), any_task) if options else Proposed(list(CENSUS), True, streams=False)
    if name == "repeat":
        alone = _one_condition(observations)
        n = len(_repeatable(observations, alone))
        if n < FEWEST:
            return Proposed(list(CENSUS), True)
        return Proposed(_with(words, {"--best": str(min(MOST_CANDIDATES, n // 2))}), any_task, alone=alone)
    return Proposed(words, any_task)


def _census(words: list[str], observations: Observations) -> list[str]:
    """Return a census with a multiple of the seeds of the store's largest population; ``words`` if these are many."""
    largest = max((len(p) for p in observations.once(populations).every), default=0)
    wanted = HALVING * largest
    size = next((size for size in SIZES if size >= wanted), None)
    return words if size is None else [*words[:2], f"seed=range(0,{size})"]


def _search(words: list[str], observations: Observations) -> Proposed:
    """Return a search over the settings of the store's own set-up: small, unless it is the diary's regime.

    The quickstart's study starts from a set-up by name, the diary's from the default settings.
    """
    rows = observations.arithmetic
    if rows.empty:
        return Proposed(words, False)
    first = next((p.rows.iloc[0] for p in observations.once(populations).to_go_on), rows.iloc[0])
    if not differing_settings(first):
        return Proposed([*words[:2], "study=diary"], False)
    name = first.get("config.experiment")
    if isinstance(name, str) and setup_file("experiment", name) is not None:
        return Proposed([*words, *SMALL_SEARCH], True, streams=False)
    # the diary's pruner compares more seeds than a small search has
    small = [*SMALL_SEARCH, "study.pruner.name=none", "study.horizon=null"]
    return Proposed([*words[:2], "study=diary", *small], True, streams=False)


def _with(words: Sequence[str], options: dict[str, str]) -> list[str]:
    """Return ``words`` with these values of ``options``, replaced or added."""
    filled = list(words)
    for name, value in options.items():
        if name in filled:
            filled[filled.index(name) + 1] = value
        else:
            filled += [name, value]
    return filled


def _best_first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["grokked_step", "val_acc"], ascending=[True, False], na_position="last", kind="stable")


def _transplant(words: Sequence[str], observations: Observations) -> list[str]:
    """Return ``words`` with the median seed of the store's first census as recipient and the best one as donor.

    Streams that are fixed in the census keep their seeds. Without a census, donor and recipient are init seeds of
    the first scan of init.
    """
    every = [p for p in observations.once(populations).to_go_on if len(p) >= FEWEST]
    census = next((p for p in every if p.from_masters), next((p for p in every if p.varies == ("init",)), None))
    if census is None:
        return list(words)
    rows = _best_first(census.rows)
    master = int(rows["seed"].iloc[0])
    held = [
        f"seeds.{stream}={seed}"
        for stream, seed in census.fixed.items()
        if census.from_masters or seed != derive_seed(master, stream)
    ]
    seeds = census.seeds[rows.index].astype(int).tolist()
    ordinary, best = str(seeds[len(seeds) // 2]), str(seeds[0])
    if census.from_masters:
        return [*_with(words, {"--recipient": ordinary, "--donor": best}), *held]
    named = ["--donor-init" if word == "--donor" else word for word in words]
    options = {"--recipient": str(master), "--donor-init": best}
    return [*_with(named, options), f"seeds.init={ordinary}", *held]


def _parents(observations: Observations) -> dict[str, str]:
    """Return the number of parents, and the evaluation nearest to half of the steps; empty without a census."""
    reference = next(iter(observations.once(populations).to_go_on), None)
    if reference is None:
        return {}
    rows = reference.rows[(reference.rows["status"] == "completed") & (reference.varies == RUN_STREAMS)]
    if len(rows) < FEWEST:
        return {}
    curves = observations.curves_of(rows.index)
    common = curves[curves["step"] > 0].groupby("step")["run_id"].nunique()
    steps = common.index[common == len(rows)].to_numpy(dtype=float)
    if not len(steps):
        return {}
    half = float(floats(rows["steps"]).min()) / 2
    number = str(min(MOST_PARENTS, len(rows) // 2))
    return {"--best": number, "--random": number, "--at": str(int(min(steps, key=lambda step: abs(step - half))))}


def _one_condition(observations: Observations) -> dict[str, Any]:
    """Return the settings that differ between populations, with the values of the first in which a seed generalised."""
    grouped = observations.once(populations)
    if not grouped.settings:
        return {}
    row = grouped.to_go_on[0].rows.iloc[0]
    return {name: row[f"config.{name}"] for name in grouped.settings}


def _repeatable(observations: Observations, alone: Mapping[str, Any]) -> pd.DataFrame:
    """Return the runs that ``sweeps.repeat`` may choose from: random seeds of one condition, else any asked for."""
    rows = observations.once(asked)
    for name, value in alone.items():
        rows = rows[rows[f"config.{name}"].map(as_text) == as_text(value)]
    plain = (rows["layers"] == "{}") & (rows["status"] == "completed")
    rows = rows[plain & ~rows["config.eval.couple_order"].fillna(False).astype(bool)]
    if rows.empty:
        return rows
    rows = rows[rows["config_id"] == rows["config_id"].value_counts().index[0]]
    random = rows[rows.index.isin(observations.once(random_seeds).index)]
    kept: pd.DataFrame = random if len(random) else rows
    return kept


# The commands that a report proposes, with the store's path and the settings of its runs.

DEFAULT_STORE: Final = Path("results/store")
"""The store that commands use by default."""
CARRIED: Final = (
    *(name for name in PLAIN_SETTINGS if f"config.{name}" != COUPLING and name not in ("mode", OWN_CODE)),
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
