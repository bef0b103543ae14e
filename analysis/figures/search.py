"""History, importance, slices, contour, Pareto front and comparison of the searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.causes import rows_chart, share_axis
from analysis.figures.render import draw
from analysis.figures.style import (
    AMBER,
    BLUE,
    GREY,
    INK,
    ROSE,
    TEAL,
    Band,
    Chart,
    ChartAxis,
    Drawing,
    Intervals,
    Points,
    Rule,
    Surface,
    number,
)
from analysis.studies.search import FINISHED, Floats, Searches, SearchResult

GOLDEN = 0.618034
FEW = 8
"""Largest number of whole values that each get their own tick."""
LATE = 1.15
"""Place of a seed that did not generalise, in budgets."""
LOG_FROM = 20.0
"""Ratio of largest to smallest value of a setting from which its axis is logarithmic."""
WORDS = {
    "median_time": "median step of generalisation",
    "generalised_share": "share of seeds that generalised",
    "accurate_share": "share of accurate seeds",
    "val_loss": "validation loss",
    "val_acc": "validation accuracy",
    "logit_acc": "logit of validation accuracy",
    "compute": "training operations",
}
MOST = 6
"""Largest number of settings with a panel each."""


def _each(draw_one: Callable[[SearchResult, pd.DataFrame], Drawing | None]) -> Callable[[Searches], list[Drawing]]:
    """Return the function of all searches that have a figure for their finished trials."""

    def all_searches(study: Searches) -> list[Drawing]:
        made = []
        for result in study.results:
            finished = result.trials[(result.trials["state"] == FINISHED) & result.trials["value"].notna()]
            drawn = draw_one(result, finished.sort_values("trial")) if len(finished) else None
            made += [drawn] if drawn else []
        return made

    all_searches.__doc__ = draw_one.__doc__
    return all_searches


@_each
def histories(result: SearchResult, done: pd.DataFrame) -> Drawing:
    """Draw each search's value by trial and the best so far."""
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


@_each
def slices(result: SearchResult, done: pd.DataFrame) -> Drawing | None:
    """Draw each search's value against each setting."""
    shown = [s for s in result.settings if done[s].notna().any()][:MOST]
    if not shown:
        return None
    y = ChartAxis.around(_words(result.objective), done["value"])
    charts = [_slice(done[done[s].notna()], s, result.default.get(s), y) for s in shown]
    columns = len(shown) if len(shown) <= 3 else 3 if len(shown) > 4 else 2
    caption = f"Finished trials of {result.name}. Each panel has the trials with that setting. Dashed: the default."
    data, name = done[["trial", "value", *shown]], f"search_slices_{result.name}"
    return draw(name, "Trials by setting", caption, charts, data, f"{len(done)} trials", columns=columns, width=6.2)


def _slice(done: pd.DataFrame, setting: str, default: object, y: ChartAxis) -> Chart:
    """Return the chart of the trials that have a setting: on a numeric axis, or by category."""
    x = pd.to_numeric(done[setting], errors="coerce").to_numpy(dtype=float)
    if np.isnan(x).any() or done[setting].map(lambda value: isinstance(value, bool)).any():
        named = done[setting].astype(str)
        names = sorted(named.unique())
        x = named.map(names.index).to_numpy(dtype=float)
        x = x + 0.25 * (done["trial"].to_numpy(dtype=float) * GOLDEN % 1 - 0.5)  # apart, and without a draw
        axis = ChartAxis(setting, -0.6, len(names) - 0.4, ticks={float(i): name for i, name in enumerate(names)})
        default = names.index(str(default)) if str(default) in names else None
    else:
        values = sorted({float(v) for v in x})
        ticks = {v: number(v) for v in values} if len(values) <= FEW and all(v.is_integer() for v in values) else None
        axis = ChartAxis.around(setting, x, scale="linear" if ticks else _scale(x), ticks=ticks)
    rules = (Rule("x", default, colour=AMBER),) if isinstance(default, int | float) else ()
    points = Points("", BLUE, pd.DataFrame({"x": x, "y": done["value"]}))
    return Chart(axis, y, (*rules, points), height=1.9)


def _scale(values: Floats) -> Any:
    """Return the scale of an axis for a setting's values."""
    return "log" if values.min() > 0 and values.max() / values.min() >= LOG_FROM else "linear"


@_each
def fronts(result: SearchResult, done: pd.DataFrame) -> Drawing | None:
    """Draw the Pareto front of each search with two objectives."""
    done = done.dropna(subset=["second"])
    if result.second is None or done.empty:
        return None
    places = done.rename(columns={"value": "x", "second": "y"})[["x", "y", "best"]]
    front = places[places["best"].astype(bool)].sort_values("x")
    others = places[~places["best"].astype(bool)]
    chart = Chart(
        ChartAxis.around(_words(result.objective), done["value"]),
        ChartAxis.around(_words(result.second), done["second"]),
        (
            *([Points(f"other trials ({len(others)})", GREY, others, 16)] if len(others) else []),
            Band("", TEAL, front.assign(value=front["y"], low=front["y"], high=front["y"])),
            Points(f"Pareto front ({len(front)})", TEAL, front, 22),
        ),
    )
    caption = f"{len(done)} finished trials of {result.name}. No trial is better in both than a trial on the front."
    data, count = done[["trial", "value", "second", "best"]], f"{len(done)} trials"
    return draw(f"search_front_{result.name}", "Two objectives", caption, [chart], data, count)


@_each
def importances(result: SearchResult, done: pd.DataFrame) -> Drawing | None:
    """Draw the share of the outcome that each setting explains, with its interval."""
    frame = result.importance
    if frame.empty:
        return None
    rows = frame.rename(columns={"setting": "name", "share": "value"})
    chart = rows_chart(rows, [BLUE] * len(rows), share_axis("share explained by this setting alone", rows), {})
    trials = int(frame["trials"].max())
    caption = (
        f"Share of the variance of the ranks of {_words(result.objective)} over {trials} finished trials of "
        f"{result.name} that each setting explains alone, with 95% intervals over trials."
    )
    title = "Importance of each setting"
    return draw(f"search_importance_{result.name}", title, caption, [chart], frame, f"{trials} trials")


@_each
def contours(result: SearchResult, done: pd.DataFrame) -> Drawing | None:
    """Draw the value over the two numeric settings that explain most."""
    ranked = result.importance["setting"].tolist() if len(result.importance) else []
    two = [s for s in ranked if pd.to_numeric(done[s], errors="coerce").nunique() > 3][:2]
    done = done.dropna(subset=two)
    if len(two) < 2 or len(done) < 10 or np.ptp(done["value"].to_numpy(dtype=float)) == 0:
        return None
    x, y = (pd.to_numeric(done[s]).to_numpy(dtype=float) for s in two)
    places = pd.DataFrame({"x": x, "y": y, "value": done["value"].to_numpy(dtype=float)})
    words = _words(result.objective)
    chart = Chart(
        ChartAxis.around(two[0], x, scale=_scale(x)),
        ChartAxis.around(two[1], y, scale=_scale(y)),
        (Surface(places, words, "low" if result.minimise else "high"), Points("", INK, places, 12)),
        height=2.7,
    )
    caption = (
        f"{words.capitalize()} of {len(done)} finished trials (dots) of {result.name}, over the two settings that "
        "explain most. Between trials: linear interpolation, no model."
    )
    data, name = done[["trial", "value", *two]], f"search_contour_{result.name}"
    return draw(name, "Two settings together", caption, [chart], data, f"{len(done)} trials")


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
