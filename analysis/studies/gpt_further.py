"""Further measurements of a language model's evaluations: additional validation sets, scores of tasks."""

from __future__ import annotations

import json
import math

import pandas as pd

from analysis.studies.base import Table


def further_tables(runs: pd.DataFrame, curves: pd.DataFrame) -> list[Table]:
    """Return the tables of the further validation sets and of the tasks; an empty list if nothing was measured.

    ``runs`` has the columns ``condition`` and ``seed`` by ``run_id``.
    """
    values = _measured(curves[curves["run_id"].isin(runs.index)])
    sets, tasks = [], []
    named = {
        str(run_id): {"preset": condition, "seed": str(seed)}
        for run_id, condition, seed in zip(runs.index, runs["condition"], runs["seed"], strict=True)
    }
    for (run_id, name), group in values.groupby(["run_id", "name"], sort=True):
        kind, _, label = str(name).partition(".")
        last, best = group.iloc[-1], group.sort_values("value").iloc[0]
        run = {**named[str(run_id)], "run": str(run_id)[:10]}
        if kind == "val_loss":
            sets.append(
                {
                    **run,
                    "validation set": label,
                    "best loss": round(best["value"], 4),
                    "best perplexity": round(math.exp(min(best["value"], 700)), 2),
                    "at step": best["step"],
                    "last loss": round(last["value"], 4),
                }
            )
        elif kind == "task" and not label.endswith("_stderr"):
            task, _, metric = label.rpartition(".")
            same = (values["run_id"] == run_id) & (values["name"] == f"{name}_stderr")
            errors = values["value"][same & (values["step"] == last["step"])]
            tasks.append(
                {
                    **run,
                    "task": task,
                    "metric": metric,
                    "score": f"{last['value']:.4g}",
                    "standard error": f"{errors.iloc[0]:.2g}" if len(errors) else "",
                    "at step": last["step"],
                }
            )
    tables = []
    if sets:
        caption = "Further validation sets (data.validation): loss in nats per token, perplexity per token"
        tables.append(Table("validation_sets", caption, pd.DataFrame(sets), code=("run",)))
    if tasks:
        caption = "Tasks of lm-evaluation-harness (eval.tasks), as last scored during training"
        tables.append(Table("tasks", caption, pd.DataFrame(tasks), code=("run",)))
    return tables


def _measured(curves: pd.DataFrame) -> pd.DataFrame:
    """Return every measurement of ``curves.metrics``: run_id, step, name, value."""
    known = curves[curves["metrics"].notna() & (curves["metrics"] != "{}")] if "metrics" in curves else curves.iloc[:0]
    rows = [
        (run_id, step, name, value)
        for run_id, step, text in zip(known["run_id"], known["step"], known.get("metrics", ()), strict=True)
        for name, value in json.loads(text).items()
        if value is not None
    ]
    return pd.DataFrame(rows, columns=["run_id", "step", "name", "value"])
