"""History of the searches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from grok.analysis.figures import style
from grok.analysis.figures.render import draw
from grok.analysis.studies.search import FINISHED, Searches, SearchResult

WORDS = {
    "median_time": "median step of generalisation",
    "generalised_share": "share of seeds that generalised",
    "val_loss": "validation loss",
    "logit_acc": "logit of validation accuracy",
}


def histories(study: Searches) -> list[style.Drawing]:
    """Draw each search's value by trial and the best so far."""
    finished = [(r, r.trials[(r.trials["state"] == FINISHED) & r.trials["value"].notna()]) for r in study.results]
    return [_history(result, done.sort_values("trial")) for result, done in finished if len(done)]


def _history(result: SearchResult, done: pd.DataFrame) -> style.Drawing:
    value = done["value"].to_numpy(dtype=float)
    best = np.minimum.accumulate(value) if result.minimise else np.maximum.accumulate(value)
    steps = pd.DataFrame({"x": done["trial"], "value": best, "low": best, "high": best})
    stopped = result.trials.loc[result.trials["state"] != FINISHED, "trial"]
    name = WORDS.get(result.objective, result.objective.replace("_", " "))
    end = result.steps if result.objective == "median_time" and result.steps is not None else np.inf
    late = bool((value > end).any())
    y = style.ChartAxis.around(name, done["value"], done["low"], done["high"], [end] * late)
    ended = pd.DataFrame({"x": stopped, "y": y.low + 0.02 * (y.high - y.low)})
    layers: list[Any] = [
        style.Intervals("trial", style.GREY, done.rename(columns={"trial": "place"}), vertical=True, size=14),
        style.Points("stopped or failed", style.ROSE, ended, 30, "|"),
        style.Band("best so far", style.TEAL, steps, stairs=True),
    ]
    beyond = ""
    if late:
        layers.append(style.Rule("y", end, "end of training"))
        beyond = (
            " Trials in which half of the seeds or more had not generalised lie above the end of training, "
            f"{end:,} steps, at that many steps times (1 + their share)."
        )
    x = style.ChartAxis("trial", -0.5, float(result.trials["trial"].max()) + 0.5, whole=True)
    chart = style.Chart(x, y, tuple(layer for layer in layers if isinstance(layer, style.Rule) or len(layer.frame)))
    seeds = int(done["seeds"].iloc[0])
    caption = (
        f"{len(done)} finished trials of {result.name}, each the value over {seeds} seeds with its "
        f"{result.ends(seeds)}. Red ticks: {len(stopped)} trials that were stopped, impossible or failed.{beyond}"
    )
    data = done[["trial", "value", "low", "high"]].assign(best=best)
    name, count = f"search_history_{result.name}", f"{len(done)} trials"
    return draw(name, f"Search {result.name}", caption, [chart], data, count)
