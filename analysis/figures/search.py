"""History, slices and Pareto front of the searches."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.figures.style import AMBER, BLUE, GREY, SOFT, TEAL, Drawing, canvas
from analysis.studies.search import FINISHED, Searches, SearchResult

MOST = 6
"""Settings that get a slice each."""


def _done(result: SearchResult) -> pd.DataFrame:
    return result.trials[(result.trials["state"] == FINISHED) & result.trials["value"].notna()].sort_values("trial")


def histories(study: Searches) -> list[Drawing]:
    """Draw each search's value by trial and the best so far."""
    made = []
    for result in study.results:
        done = _done(result)
        if done.empty:
            continue
        figure, axes = canvas()
        value = done["value"].to_numpy(dtype=float)
        best = np.minimum.accumulate(value) if result.minimise else np.maximum.accumulate(value)
        axes.scatter(done["trial"], value, s=18, color=GREY, edgecolors="none")
        axes.step(done["trial"], best, where="post", color=TEAL)
        axes.annotate("best so far", (done["trial"].iloc[-1], best[-1]), xytext=(-4, 6), textcoords="offset points",
                      ha="right", color=TEAL, fontsize=8.5)  # fmt: skip
        axes.set_xlabel("trial")
        axes.set_ylabel(result.objective.replace("_", " "))
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:,.4g}")
        caption = f"{len(done)} finished trials of {result.name}, each over several seeds."
        data = done[["trial", "value"]].assign(best=best)
        made.append(Drawing(f"search_history_{result.name}", f"Search {result.name}", caption, figure, data))
    return made


def slices(study: Searches) -> list[Drawing]:
    """Draw each search's value against each setting."""
    made = []
    for result in study.results:
        done = _done(result)
        numeric = [s for s in result.settings if pd.to_numeric(done[s], errors="coerce").notna().all()][:MOST]
        if done.empty or not numeric:
            continue
        rows = (len(numeric) + 1) // 2
        figure, grid = canvas(
            height=1.0 + 1.9 * rows, rows=rows, columns=min(2, len(numeric)), squeeze=False, sharey=True
        )
        for axes, setting in zip(grid.flat, numeric, strict=False):
            x = pd.to_numeric(done[setting]).to_numpy(dtype=float)
            axes.scatter(x, done["value"], s=14, color=BLUE, alpha=0.7, edgecolors="none")
            default = result.default.get(setting)
            if isinstance(default, int | float):
                axes.axvline(default, color=AMBER, linewidth=0.9, linestyle=(0, (3, 3)))
            if x.min() > 0 and x.max() / x.min() > 20:
                axes.set_xscale("log")
            axes.set_xlabel(setting)
            axes.tick_params(axis="x", labelsize=7.5)
        for axes in list(grid.flat)[len(numeric) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel(result.objective.replace("_", " "))
            axes.yaxis.set_major_formatter(lambda v, _: f"{v:,.4g}")
        caption = f"Finished trials of {result.name}, one panel per setting; dashed: the default."
        data = done[["trial", "value", *numeric]]
        made.append(Drawing(f"search_slices_{result.name}", "What each setting does", caption, figure, data))
    return made


def fronts(study: Searches) -> list[Drawing]:
    """Draw the Pareto front of each search with two objectives."""
    made = []
    for result in study.results:
        done = _done(result).dropna(subset=["second"])
        if result.second is None or done.empty:
            continue
        figure, axes = canvas()
        best = done["best"].to_numpy(dtype=bool)
        axes.scatter(done["value"][~best], done["second"][~best], s=16, color=GREY, edgecolors="none")
        front = done[best].sort_values("value")
        axes.plot(front["value"], front["second"], color=TEAL, marker="o", markersize=4)
        axes.set_xlabel(result.objective.replace("_", " "))
        axes.set_ylabel(result.second.replace("_", " "))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda v, _: f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.4g}")
        axes.annotate("Pareto front", (1, 1), xycoords="axes fraction", ha="right", va="top", color=TEAL, fontsize=8.5)
        axes.annotate(
            "other trials", (1, 0.93), xycoords="axes fraction", ha="right", va="top", color=SOFT, fontsize=8.5
        )
        caption = f"{len(done)} finished trials of {result.name}; no trial is better in both than one on the front."
        data = done[["trial", "value", "second", "best"]]
        made.append(Drawing(f"search_front_{result.name}", "Two objectives", caption, figure, data))
    return made
