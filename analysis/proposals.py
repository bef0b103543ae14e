"""The commands that a report proposes, and the shortest commands that train stored runs again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
import yaml

from grok.analysis.observations import HASH, Observations, hashes_of, is_random_seed
from grok.analysis.purposes import asked
from grok.commands.words import CONF
from grok.config.values import literal
from grok.streams import STREAMS, derive_seed

# The commands that a report proposes: a question's command, with the settings of the store's first sweep and its path.

DEFAULT_STORE: Final = Path("results/store")
"""The store that commands use by default."""
STORE_WORD: Final = "STORE"
"""Placeholder of the store's path in a command that takes it as an argument."""
OF_THE_SWEEP: Final = re.compile(
    r"\+*(?:seeds?|sweep|study|perturb|switch|replicate|save|device|workers|lanes|store|log|checkpoint|executor|dry_run|"
    r"eval\.couple_order)[.=]"
)
"""Beginnings of the settings of a sweep that no other command takes over."""
FEWEST_TO_CHOOSE_FROM: Final = 4
"""Fewest runs for a choice: ``grok branch`` takes two of the best and two random ones."""
WHERE: Final = re.compile(r"(?:device|workers|lanes|log|checkpoint|executor|save)[.=]")
"""Beginnings of settings that do not say what is trained."""


def proposal(command: str, observations: Observations, any_task: bool = True) -> str:
    """Return ``command`` for the store: with its path, and its settings.

    Args:
        command: the command of a question; empty: there is none.
        observations: the runs of the store.
        any_task: the command works for any task; otherwise it keeps its own settings, but for the numerics.

    Empty if a stored sweep had this very command.
    """
    words = shlex.split(command)
    if not words:
        return ""
    own = {word.partition("=")[0] for word in words} | _set_by_sweeps(words)
    typed = [word for word in observations.once(_settings) if any_task or word.startswith("numerics.")]
    typed *= ("mode=gpt" in typed) == ("mode=gpt" in words)  # settings of the other mode are none of this one
    words += [word for word in typed if word.partition("=")[0] not in own]
    path = observations.path
    if (best := words.index("--best") + 1 if "--best" in words else 0) and len(rows := to_choose_from(observations)):
        most = min(len(rows) // FEWEST_TO_CHOOSE_FROM, int(rows["grokked_step"].notna().sum()) or len(rows))
        words[best] = str(min(int(words[best]), max(1, most)))
    if STORE_WORD in words:
        words = [str(path) if word == STORE_WORD and path is not None else word for word in words]
    else:
        words += store_words(path)
    return "" if _has_run(words, observations) else shlex.join(words)


def usual(observations: Observations, rows: pd.DataFrame) -> pd.DataFrame:
    """Return those of ``rows`` in the condition with most finished runs, of equals with most that generalised."""
    condition = observations.conditions(rows)
    ends = rows.assign(finished=rows["status"] == "completed", done=rows["grokked_step"].notna())
    counts = ends.groupby(condition)[["finished", "done"]].sum().sort_values(["finished", "done"])
    return rows[condition == counts.index[-1]] if len(rows) else rows


def to_choose_from(observations: Observations) -> pd.DataFrame:
    """Return the runs that ``grok repeat`` and ``grok branch`` choose from if no setting is typed."""
    rows = usual(observations, observations.once(asked))
    rows = rows[rows["status"] == "completed"]
    masters = is_random_seed(rows)
    rows = rows[masters] if masters.any() else rows
    return rows[rows["config.train.steps"].isin(rows["config.train.steps"].mode()[:1])]


def _set_by_sweeps(words: Sequence[str]) -> set[str]:
    """Return the settings that the named sweeps among ``words`` set or vary."""
    files = (CONF / "sweep" / f"{word.partition('=')[2]}.yaml" for word in words if word.startswith("sweep="))
    read = (pd.json_normalize(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in files)
    return {str(name).removeprefix("hydra.sweeper.params.") for frame in read for name in frame}


def _has_run(words: Sequence[str], observations: Observations) -> bool:
    """Return whether a stored sweep had this command."""
    commands = (given_again(sweep["argv"], observations.path) for sweep in observations.sweeps if sweep.get("argv"))
    every = ([word for word in shlex.split(of) if word in words or not WHERE.match(word)] for of in commands)
    same = [given for given in every if set(given) == set(words)]
    return [word for word in words if "=" not in word] in ([word for word in of if "=" not in word] for of in same)


def confirmation(search: Mapping[str, Any], observations: Observations) -> list[str]:
    """Return the commands that train a search's best setting and the default on new seeds, and the one that compares.

    Nothing if the best is the default. Those of sweeps that the store has are left out.
    """
    runs = observations.all_runs.set_index("run_id")
    done = [t for t in search["trials"] if t["state"] == "complete" and t["value"] is not None and t["runs"]]
    sign, default = 1 if search["direction"] == "minimize" else -1, search["default"]
    best: dict[str, Any] = min(done, key=lambda t: (sign * t["value"], t["number"]), default={"params": {}})
    other = {name: value for name, value in best["params"].items() if default.get(name) != value}
    if not other or best["runs"][0][1] not in runs.index:
        return []
    first = max(run[0] for trial in done for run in trial["runs"]) + 1
    again = shlex.split(rerun_command(runs.loc[best["runs"][0][1]]))
    base = [w for w in again if "=" in w and not OF_THE_SWEEP.match(w) and w.partition("=")[0] not in best["params"]]
    sweeps = [
        ["grok", "sweep", f"seed=range({first},{first + 64})", *base, *typed, *store_words(observations.path)]
        for typed in ([f"{n}={literal(v)}" for n, v in values.items()] for values in (best["params"], default))
    ]
    commands = [shlex.join(words) for words in sweeps if not _has_run(words, observations)]
    store = str(observations.path or STORE_WORD)
    sides = [" ".join([*(f"{n}={values[n]}" for n in other), f"seed>={first}"]) for values in (default, other)]
    last = ["report", store] if "mode=gpt" in base else ["compare", store, *sides]  # which reads no language model
    return [*commands, shlex.join(["grok", *last])]


def _settings(observations: Observations) -> list[str]:
    """Return the settings of the first sweep as they were typed.

    If it took several values, or was another command, or none is recorded, they are those of the shortest of the
    :func:`usual` runs, of those that were asked for if any were.
    """
    argv: list[str] = next((sweep["argv"] for sweep in observations.sweeps if sweep.get("argv")), [])
    rows, unseen = observations.arithmetic, observations.once(asked)
    words = [word for word in argv if "=" in word and not word.startswith("-") and not OF_THE_SWEEP.match(word)]
    if len(rows) and ("grok.run" not in argv or any("," in word for word in words)):
        of = usual(observations, unseen if len(unseen) else rows).sort_values("config.train.steps", kind="stable")
        rows, argv = rows[rows["trajectory_id"].isin(of["trajectory_id"])], shlex.split(rerun_command(of.iloc[0]))
        numerics = [word for word in words if word.startswith("numerics.") and "," not in word]
        words = [*(word for word in argv if "=" in word and not OF_THE_SWEEP.match(word)), *numerics]
    if len(rows):  # sweeps that were made longer, as long as they are now
        longest = rows.sort_values("config.train.steps").drop_duplicates("trajectory_id", keep="last")
        steps = f"train.steps={longest['config.train.steps'].mode()[0]}"
        words = [*dict.fromkeys(steps if word.startswith("train.steps=") else word for word in words)]
    return words


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
    where = store_words(path)
    if {"grok.sweeps.branch", "grok.sweeps.repeat", "grok.sweeps.layers"} & set(words):  # it is an option of theirs
        where = ["--store", str(path or DEFAULT_STORE)]
    return shlex.join([*words, *where]).replace("python -m grok.run -m ", "grok sweep ", 1)


# The shortest commands that train stored runs again, and the own code that they need.


def rerun_command(row: Mapping[Any, Any] | pd.Series) -> str:
    """Return the store's ``rerun`` command without the seeds that the master seed derives anyway."""
    padded = f"{row['rerun']} "  # the store writes these words unquoted, with one space before and after
    for stream in STREAMS:
        padded = padded.replace(f" seeds.{stream}={derive_seed(int(row['seed']), stream)} ", " ", 1)
    return padded[:-1]


def rerun_commands(runs: pd.DataFrame) -> list[str]:
    """Return :func:`rerun_command` of every row."""
    return list(map(rerun_command, runs[["rerun", "seed"]].to_dict("records")))


def code_needed(rows: pd.DataFrame) -> str:
    """Return the versions of own code that ``rows`` were trained with; empty if they have none."""
    texts = rows["own_code"].dropna().unique() if "own_code" in rows else ()
    pairs = {pair for text in texts for pair in hashes_of(text).items()}
    return ", ".join(f"{path} {version[:HASH]}" for path, version in sorted(pairs))
