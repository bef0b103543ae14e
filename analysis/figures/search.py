"""History and comparison of the searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from grok.analysis.figures.render import draw
from grok.analysis.figures.style import (
    GREY,
    ROSE,
    TEAL,
    Band,
    Chart,
    ChartAxis,
    Drawing,
    Intervals,
    Points,
    Rule,
)
from grok.analysis.studies.search import FINISHED, Searches, SearchResult

LATE = 1.15
"""Place of a seed that did not generalise, in budgets."""
WORDS = {
    "median_time": "median step of generalisation",
    "generalised_share": "share of seeds that generalised",
    "accurate_share": "share of accurate seeds",
    "val_loss": "validation loss",
    "val_acc": "validation accuracy",
    "logit_acc": "logit of validation accuracy",
    "compute": "training operations",
}


def histories(study: Searches) -> list[Drawing]:
    """Draw each search's value by trial and the best so far."""
    finished = [(r, r.trials[(r.trials["state"] == FINISHED) & r.trials["value"].notna()]) for r in study.results]
    return [_history(result, done.sort_values("trial")) for result, done in finished if len(done)]


def _history(result: SearchResult, done: pd.DataFrame) -> Drawing:
    value = done["value"].to_numpy(dtype=float)
    best = np.minimum.accumulate(value) if result.minimise else np.maximum.accumulate(value)
    steps = pd.DataFrame({"x": done["trial"], "value": best, "low": best, "high": best})
    stopped = result.trials.loc[result.trials["state"] != FINISHED, "trial"]
    y = ChartAxis.around(_words(result.objective), done["value"], done["low"], done["high"])
    layers: list[Any] = [
        Intervals("trial", GREY, done.rename(columns={"trial": "place"}), vertical=True, size=14),
        Points("stopped or failed", ROSE, pd.DataFrame({"x": stopped, "y": y.low + 0.02 * (y.high - y.low)}), 30, "|"),
        Band("best so far", TEAL, steps, stairs=True),
    ]
    beyond = ""
    if result.objective == "median_time" and result.steps is not None and (value > result.steps).any():
        layers.append(Rule("y", result.steps, "end of training"))
        beyond = (
            " Trials in which half of the seeds or more had not generalised lie above the end of training, "
            f"{result.steps:,} steps, at that many steps times (1 + their share)."
        )
    x = ChartAxis("trial", -0.5, float(result.trials["trial"].max()) + 0.5, whole=True)
    chart = Chart(x, y, tuple(layer for layer in layers if isinstance(layer, Rule) or len(layer.frame)))
    caption = (
        f"{len(done)} finished trials of {result.name}, each the value over {done['seeds'].iloc[0]} seeds with its "
        f"95% interval. Red ticks: {len(stopped)} trials that were stopped, impossible or failed.{beyond}"
    )
    data = done[["trial", "value", "low", "high"]].assign(best=best)
    name, count = f"search_history_{result.name}", f"{len(done)} trials"
    return draw(name, f"Search {result.name}", caption, [chart], data, count)


def comparisons(study: Searches) -> list[Drawing]:
    """Draw the pinned comparison: each fresh seed at the default and at the best setting."""
    return [_comparison(result) for result in study.results if len(result.compared)]


def _comparison(result: SearchResult) -> Drawing:
    frame = result.compared
    is_time = result.objective == "median_time"
    # seeds that did not generalise are drawn just after the budget
    values = frame[["default", "best"]].astype(float).clip(upper=LATE * result.budget if is_time else None)
    places = values.rename(columns={"default": "x", "best": "y"}).value_counts().rename("times").reset_index()
    better = places["y"] < places["x"] if result.minimise else places["y"] > places["x"]
    equal = places["y"] == places["x"]
    parts = (("better", TEAL, better), ("worse", ROSE, ~better & ~equal), ("equal", GREY, equal))
    counts = {name: int(places.loc[here, "times"].sum()) for name, _, here in parts}
    points = [Points(f"{n} ({counts[n]})", colour, places[here], 18) for n, colour, here in parts if counts[n]]
    late = is_time and bool((frame[["default", "best"]].to_numpy(dtype=float) > result.budget).any())
    words = _words(result.objective).removeprefix("median ")
    x, y = (ChartAxis.around(f"{words} at the {side}", values) for side in ("default", "best setting"))
    never = [Rule("y", result.budget, "end of training"), Rule("x", result.budget)] if late else []
    chart = Chart(x, y, (Rule("diagonal"), *never, *points), height=2.9)
    caption = (
        f"Each dot is a new seed ({len(frame)} in all, larger where several coincide) at both settings of "
        f"{result.name}. The seeds were fixed before they were trained. Better for {counts['better']}, worse for "
        f"{counts['worse']}."
    )
    if late:
        caption += (
            f" Beyond the end of training: not within {result.budget:,.0f} steps; the test counts it as later than "
            "every step."
        )
    name = f"search_comparison_{result.name}"
    return draw(name, "Best against default", caption, [chart], frame, f"{len(frame)} seeds")


def _words(objective: str) -> str:
    return WORDS.get(objective, objective.replace("_", " "))
