"""Every run of a store in one table: seeds, condition, design, classes, regime, event times, numbers, re-run command.

``seeds.csv`` beside the page has all columns; the page shows the most useful ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.criteria import DIARY, UNJUDGED, accuracy_at, judge_by_time
from grok.analysis.observations import (
    COUNTED,
    OWN_CODE,
    Observations,
    differing_settings,
    floats,
    has_diary_task,
    hashes_in_words,
    how_many,
    in_words,
    varying_columns,
    without_repetition,
)
from grok.analysis.populations import populations
from grok.analysis.proposals import rerun_commands
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.studies.base import Question, Study
from grok.analysis.studies.regimes import events_of
from grok.config import MODES
from grok.config.fields import recorded_of
from grok.store.designs import with_purposes
from grok.streams import RUN_STREAMS, STREAMS

FILE: Final = "seeds.csv"
MOST_LAYERS: Final = 24
"""Largest number of layer seeds with a column each; the column ``layers`` has all of them."""
SHOWN_SEED: Final = 10**9
"""Seeds from this one on are hashes of a master seed; the page shows them as text."""
MEASURED: Final = ("train_loss", "train_acc", "val_loss", "val_acc", "weight_norm")


def seed_table(observations: Observations) -> pd.DataFrame:
    """Return one row for every run of the store, ordered by condition and seeds.

    Completed and diverged arithmetic runs have classes and a regime. A run is judged with its population, or if
    it is in none, against the plain runs of its condition. Steps are those of evaluations.
    """
    runs = observations.all_runs.set_index("run_id")
    table = pd.DataFrame({"mode": runs["mode"], "status": runs["status"], "condition": conditions(runs)})
    table["seed"] = runs["seed"]
    for stream in STREAMS:
        table[f"seed_{stream}"] = runs[f"seed_{stream}"]
    if (runs["replicate"] > 0).any():
        table["replicate"] = runs["replicate"]
    table = table.join(_layers(runs)).join(_classes(observations, runs))
    events = [str(c) for c in runs if str(c).endswith("_step") and c != "branch_step"]
    table[events] = runs[events]
    numbers = [c for c in ("val_acc_dips", "stop_reason", "steps", *MEASURED, "weights_hash", "numerics") if c in runs]
    table[numbers] = runs[numbers]
    if "own_code" in runs and runs["own_code"].notna().any():
        table["own_code"] = runs["own_code"].map(hashes_in_words, na_action="ignore")
    table["rerun"] = rerun_commands(runs)
    order = ["mode", "condition", "seed", *(f"seed_{s}" for s in RUN_STREAMS), "run_id"]
    table = table.reset_index().sort_values(order, kind="stable").reset_index(drop=True)
    return with_purposes(table, observations.designs)


def conditions(runs: pd.DataFrame) -> pd.Series:
    """Return each run's condition in words: the values of the settings that vary within its mode.

    If none varies: the settings that are not the default.
    """
    labels = pd.Series("", index=runs.index, dtype=object)
    for mode, rows in runs.groupby("mode"):
        names = [n for n, (_, rule) in recorded_of(MODES[str(mode)]).items() if rule.role in ("result", "length")]
        varying = varying_columns(rows, [*names, OWN_CODE])
        if not varying:
            labels[rows.index] = _in_words(differing_settings(rows.iloc[0])) or "default"
            continue
        for values, group in rows.groupby(varying, dropna=False, sort=False):
            settings = dict(zip(varying, values, strict=True))
            labels[group.index] = _in_words({c.removeprefix("config."): v for c, v in settings.items()})
    return labels


def _in_words(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={in_words(settings[name])}" for name in without_repetition(settings))


def _layers(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the column ``layers`` (JSON) and one for each layer's seed; no column if no run has a layer seed."""
    if (runs["layers"] == "{}").all():
        return pd.DataFrame(index=runs.index)
    maps = {text: json.loads(text) for text in runs["layers"].unique()}
    names = sorted({name for layers in maps.values() for name in layers})
    columns = {"layers": runs["layers"]}
    for name in names if len(names) <= MOST_LAYERS else ():
        drawn = [maps[text].get(name) for text in runs["layers"]]  # Series.map would put the seeds through a float
        columns[f"layers.{name}"] = pd.Series(pd.array(drawn, dtype="Int64"), index=runs.index)
    return pd.DataFrame(columns, index=runs.index)


def _classes(observations: Observations, runs: pd.DataFrame) -> pd.DataFrame:
    """Return class_accuracy, judged_at_step, judged_val_acc, class_time and regime, null for runs without them.

    Classes by accuracy were made for the diary's task; runs of other tasks have none.
    """
    counted = runs[(runs["mode"] == "arithmetic") & runs["status"].isin(COUNTED)]
    if counted.empty:
        return pd.DataFrame(index=runs.index)
    parts = []
    for rows, reference in _judged_together(observations, counted):
        horizon = DIARY.horizon_of(reference)
        accuracy = accuracy_at(observations.curves_of(rows.index), rows.index, horizon)
        classes = DIARY.classify(accuracy, rows["status"] == "diverged")
        parts.append(
            pd.DataFrame(
                {
                    "class_accuracy": classes if has_diary_task(rows.iloc[0]) else None,
                    "judged_at_step": horizon,
                    "judged_val_acc": accuracy,
                    "class_time": _by_time(observations, rows, reference),
                }
            )
        )
    regime = events_of(observations, counted)["first"]
    return pd.concat(parts).assign(regime=regime).reindex(runs.index).astype({"judged_at_step": "Int64"})


def _judged_together(observations: Observations, counted: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yield runs that are judged together, and the runs that give their horizon and median.

    For the runs of a population these are the population's. For runs in none (repeats, transplants) they are
    the plain runs of the condition.
    """
    left = counted
    for population in observations.once(populations).every:
        mine = left[left["trajectory_id"].isin(population.rows["trajectory_id"])]
        if len(mine):
            left = left.drop(mine.index)
            yield mine, population.rows
    condition = observations.conditions(counted)
    for number, rows in left.groupby(condition[left.index], sort=False):
        every = counted[condition == number].drop_duplicates("trajectory_id")
        plain = every[(every["layers"] == "{}") & (floats(every["config.perturb.ulps"]) == 0)]
        yield rows, plain if len(plain) else every


def _by_time(observations: Observations, rows: pd.DataFrame, reference: pd.DataFrame) -> pd.Series:
    """Return ``early``, ``late``, ``not within N steps``, ``diverged`` or why none is known."""
    try:
        threshold = judge_by_time(observations.times(reference), floats(reference["config.train.steps"])).threshold
    except NotEnoughData:
        return pd.Series("no median", index=rows.index)
    times, steps = observations.times(rows), floats(rows["config.train.steps"])
    cases = [steps < threshold, times.right <= threshold, times.seen]
    never = np.where(
        rows["status"] == "diverged", "diverged", [f"not within {int(length):,} steps" for length in steps]
    )
    words = np.select(cases, [UNJUDGED, "early", "late"], never)
    return pd.Series(words, index=rows.index)


def compact(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of :func:`seed_table` that the page shows: those that differ between runs, renamed."""
    shown: dict[str, str] = {
        "mode": "mode",
        "condition": "condition",
        "seed": "seed",
        **{f"seed_{s}": s for s in STREAMS},
        **{str(c): str(c) for c in table if str(c).startswith("layers.")},
        "status": "status",
        "design": "design",
        "class_accuracy": "class",
        "class_time": "early or late",
        "regime": "what came first",
        "grokked_step": "generalised",
        "steps": "steps",
        "val_acc": "val accuracy",
        "val_loss": "val loss",
        "weight_norm": "weight norm",
    }
    frame, several = pd.DataFrame({"run": table["run_id"].str[:10]}), not _is_constant(table["seed"])
    # a language model does not generalise at a step
    always = ("seed", "val_acc", *(["grokked_step"] if (table["mode"] == "arithmetic").any() else []))
    for column, name in shown.items():
        if column not in table or (column not in always and _is_constant(table[column])):
            continue
        if column.startswith("seed_") and several and (table.groupby("seed")[column].nunique() <= 1).all():
            continue  # the master seed determines it
        values = table[column]
        hashed = column.startswith(("seed", "layers.")) and bool((values >= SHOWN_SEED).any())
        if hashed:
            values = values.astype(str).where(values.notna())
        frame[name] = values.round(4) if values.dtype.kind == "f" else values
    return frame


def _is_constant(column: pd.Series) -> bool:
    return column.nunique(dropna=False) <= 1


def analyse(observations: Observations) -> Study:
    """Return the table, complete for the file and compact for the page.

    Raises:
        NotEnoughData: there is no run.
    """
    if observations.all_runs.empty:
        raise NotEnoughData("at least one finished run")
    table = seed_table(observations)
    caption = f"{how_many(len(table), 'run')} (seeds.csv has every column, with the command that trains each again)"
    study = Study()
    study.tabulate("every", caption, compact(table), code=("run",))
    study.files[FILE] = table
    if "own_code" in table:
        study.notes.append(
            "The commands in seeds.csv need your code as the runs had it: the column own_code has its hashes. The "
            "store does not keep the code."
        )
    return study


QUESTION = Question(
    "seeds",
    "Every seed",
    "Which seeds did each run have, and how did it end?",
    "grok sweep 'seed=range(0,64)'",
    analyse,
    lambda observations: not observations.all_runs.empty,
    of_seeds=True,
)
