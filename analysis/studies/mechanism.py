"""Optional measurements during training (Fourier spectrum, restricted loss, logit scale ...).

Time is relative to the run's step of generalisation, which is 1. A measurement *leads* if it makes half
of its change, from the first evaluation to the last, before that step.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.observations import (
    MEASURED_CONDITION,
    Condition,
    Observations,
    conditions_of,
    describe_task,
    how_many,
)
from grok.analysis.populations import settings_in_words
from grok.analysis.statistics.proportions import share
from grok.analysis.studies.base import Beside, Question, Study, by_condition
from grok.store.schema import MEASUREMENTS

MEANINGS: Final = {
    **{name: meaning for name, (meaning, _) in MEASUREMENTS.items()},
    "head_norm": "norm of the last layer",
}
APART: Final = re.compile(r"run_id$|step$|neurons_\d+_at_")
"""Columns that are no measurement or one of a single frequency, which differs from run to run."""
FEWEST: Final = 5
"""Smallest number of generalised runs for a statement about leads."""
WAY: Final = 0.5
"""Share of a metric's total change that defines its half-way step."""
CLEAR: Final = 0.5
"""Smallest ratio of the change from start to end to the metric's range: a metric that comes back has no half-way."""
CLOCK: Final = np.linspace(0, 2, 81)
"""Relative time: step divided by the step of generalisation."""


@dataclass(kw_only=True)
class Mechanism(Study):
    """Measurements by run and step."""

    metrics: pd.DataFrame
    """Columns run_id, step, then one per metric."""
    aligned: dict[str, pd.DataFrame]
    """Per metric: median and quartiles over generalised runs by relative time."""
    runs: int
    generalised: int


def meaning_of(name: str) -> str:
    """Return the meaning of a measurement; empty for one of the user's own."""
    return MEANINGS.get(re.sub(r"^neurons_\d+", "neurons_BLOCK", name), "")


def measured(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the optional measurements of evaluations, a column each; evaluations without any are left out."""
    texts = curves["metrics"].dropna() if "metrics" in curves else pd.Series(dtype=object)
    values = pd.DataFrame([json.loads(text) for text in texts], index=texts.index, dtype=float)
    return values.loc[texts != "{}"]


def metrics_of(observations: Observations) -> pd.DataFrame:
    """Return the optional measurements of each trajectory once: columns run_id, step, one per metric."""
    values = measured(observations.curves)
    curves = observations.curves.loc[values.index]
    if "block_norms" in curves:
        norms = [json.loads(text).get("head") if isinstance(text, str) else None for text in curves["block_norms"]]
        values["head_norm"] = np.asarray(norms, dtype=float)
    metrics = pd.concat([curves[["run_id", "step"]], values], axis=1)
    once = observations.measured(pd.Index(metrics["run_id"].unique())).index
    metrics = metrics[metrics["run_id"].isin(once)]
    return metrics.dropna(axis=1, how="all").reset_index(drop=True)


def half_way(step: NDArray[np.float64], value: NDArray[np.float64]) -> float:
    """Return the first step at which ``value`` has made half of its total change; NaN if the change is not clear."""
    known = np.isfinite(value)
    step, value = step[known], value[known]
    if len(value) < 3:
        return float("nan")
    way = value[-1] - value[0]
    if abs(way) < CLEAR * float(np.ptp(value)) or way == 0:
        return float("nan")
    return float(step[np.argmax((value - value[0]) / way >= WAY)])


def conditions(observations: Observations) -> list[Condition]:
    """Return the conditions with measured runs."""
    measured = pd.Index(observations.once(metrics_of)["run_id"].unique())
    return conditions_of(observations.measured(measured), names=MEASURED_CONDITION)


def one(observations: Observations, condition: Condition) -> Mechanism:
    """Return the answer for one condition."""
    rows = condition.rows
    metrics = observations.once(metrics_of)
    metrics = metrics[metrics["run_id"].isin(rows.index)].dropna(axis=1, how="all")
    names = [name for name in map(str, metrics) if not APART.match(name)]
    grokked = rows["grokked_step"].dropna().astype(float)
    study = Mechanism(
        scope=f"{how_many(len(rows), 'measured run')} of {describe_task(rows.iloc[0])}; "
        f"{settings_in_words(rows.iloc[0])}; {len(grokked)} generalised.",
        metrics=metrics,
        aligned={name: aligned for name in names if (aligned := _align(metrics, name, grokked)) is not None},
        runs=len(rows),
        generalised=len(grokked),
    )
    if len(grokked) < FEWEST:
        study.notes.append(f"What leads: not enough data, needs {FEWEST} measured runs that generalised.")
    if rows["config.train.stop_when_generalised"].fillna(False).any():
        study.notes.append("Some runs end when they have generalised: a total change is that up to the end of a run.")
    records = [_record(study, rows, grokked, name) for name in names]
    table = pd.DataFrame(records)
    table = table[[c for c in table if table[c].notna().any() and (table[c].astype(str) != "").any()]]
    caption = f"Measurements of {how_many(len(rows), 'run')}: medians of those that reached each moment, and what leads"
    study.tabulate("metrics", caption, table)
    if "excluded_loss" in names:
        study.notes.append(
            "restricted_loss and excluded_loss: over all equations, with the strongest frequencies at the step of the "
            "measurement. Nanda et al. 2023 use the key frequencies of the final weights, and the excluded loss on the "
            "training set: final_restricted_loss and final_excluded_loss, with save=final checkpoint.keep_every=500."
        )
    return study


def _record(study: Mechanism, rows: pd.DataFrame, grokked: pd.Series, name: str) -> dict[str, object]:
    """Return one metric's row of the table, and add its findings."""
    known = study.metrics[["run_id", "step", name]].dropna()
    by_run = known.groupby("run_id")
    event = {e: known["step"] == known["run_id"].map(rows[e]) for e in ("memorised_step", "grokked_step")}
    meaning = meaning_of(name)
    record: dict[str, object] = {
        "metric": name,
        "runs": known["run_id"].nunique(),
        "start": by_run[name].first().median(),
        "memorised": known.loc[event["memorised_step"], name].median(),
        "runs that memorised": int(event["memorised_step"].sum()),
        "generalised": known.loc[event["grokked_step"], name].median(),
        "runs that generalised": int(event["grokked_step"].sum()),
        "end": by_run[name].last().median(),
        "half-way before generalising": "",
        "at (of the time)": float("nan"),
        "meaning": meaning,
    }
    runs = {run: (g["step"].to_numpy(dtype=float), g[name].to_numpy(dtype=float)) for run, g in by_run}
    middle = pd.Series({run: half_way(*runs[run]) for run in grokked.index if run in runs}, dtype=float).dropna()
    if len(middle) >= max(FEWEST, len(grokked) / 2):  # noise looks like a change in a few runs
        over = middle / grokked[middle.index]
        leads = share(int((over < 1).sum()), len(over))
        record |= {"half-way before generalising": leads.percent(0), "at (of the time)": round(float(over.median()), 2)}
        if leads.low > 0.5 or leads.high < 0.5:
            named = f"{name} ({meaning})" if meaning else name
            when = "before" if leads.low > 0.5 else "after"
            text = (
                f"{named} makes half of its total change {when} generalisation in most runs in which it "
                f"clearly changes: in {leads.percent(0)} of {leads.n} before it, in the median at {over.median():.2f} "
                f"of the time. In {len(grokked) - leads.n} of {len(grokked)} that generalised no clear change is seen."
            )
            study.tell(f"{name} leads", leads.percent(0), text, leads, headline=leads.low > 0.5)
    return record


def _align(metrics: pd.DataFrame, name: str, grokked: pd.Series) -> pd.DataFrame | None:
    """Return median and quartiles of a metric over generalised runs by relative time; None for too few runs."""
    lines = []
    for run, group in metrics[["run_id", "step", name]].dropna().groupby("run_id"):
        if run in grokked.index and len(group) > 1:
            clock = group["step"].to_numpy(dtype=float) / grokked[run]
            value = group[name].to_numpy(dtype=float)
            lines.append(np.interp(CLOCK, clock, value, left=np.nan, right=np.nan))
    if len(lines) < FEWEST:
        return None
    table = np.array(lines)
    enough = np.isfinite(table).mean(0) >= 0.5
    low, middle, high = np.nanquantile(table[:, enough], [0.25, 0.5, 0.75], axis=0)
    return pd.DataFrame({"clock": CLOCK[enough], "median": middle, "low": low, "high": high, "runs": len(lines)})


QUESTION = Question(
    "mechanism",
    "What happens inside",
    "Which measurements of the network change before a seed generalises?",
    "grok sweep sweep=mechanism",
    by_condition(conditions, one, Beside(), MEASURED_CONDITION),
    lambda observations: not observations.once(metrics_of).empty,
    of_seeds=True,
)
