"""History, importance, slices, contour, Pareto front and comparison of the searches."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from analysis.figures.causes import SEQUENTIAL
from analysis.figures.style import AMBER, BLUE, GREY, INK, PAPER, ROSE, SMALL, SOFT, TEAL, Drawing, canvas, log_axis
from analysis.studies.search import FINISHED, Floats, Searches, SearchResult

GOLDEN = 0.618034
FEW = 8
"""Largest number of whole values that each get their own tick."""
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
MOST = 6
"""Largest number of settings with a panel each."""


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
        axes.vlines(done["trial"], done["low"], done["high"], color=GREY, linewidth=1, alpha=0.45)
        axes.scatter(done["trial"], value, s=18, color=GREY, edgecolors="none")
        stopped = result.trials[result.trials["state"] != FINISHED]
        axes.scatter(stopped["trial"], np.full(len(stopped), 0.02), s=14, color=ROSE, marker="|",
                     transform=axes.get_xaxis_transform())  # fmt: skip
        axes.step(done["trial"], best, where="post", color=TEAL)
        _above(axes, 1, "best so far", TEAL)
        beyond = _mark_budget(axes, result, value)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("trial")
        axes.set_ylabel(_words(result.objective))
        axes.yaxis.set_major_formatter(lambda v, _: _number(v))
        caption = (
            f"{len(done)} finished trials of {result.name}, each the value over {done['seeds'].iloc[0]} seeds with its "
            f"95% interval. Red ticks: {len(stopped)} trials that were stopped, impossible or failed."
            f"{beyond}"
        )
        data = done[["trial", "value", "low", "high"]].assign(best=best)
        made.append(Drawing(f"search_history_{result.name}", f"Search {result.name}", caption, figure, data))
    return made


def slices(study: Searches) -> list[Drawing]:
    """Draw each search's value against each setting."""
    made = []
    for result in study.results:
        done = _done(result)
        shown = [s for s in result.settings if done[s].notna().any()][:MOST]
        if done.empty or not shown:
            continue
        columns = len(shown) if len(shown) <= 3 else 3 if len(shown) > 4 else 2
        rows = -(-len(shown) // columns)
        figure, grid = canvas(
            width=6.2, height=1.0 + 1.9 * rows, rows=rows, columns=columns, squeeze=False, sharey=True
        )
        for axes, setting in zip(grid.flat, shown, strict=False):
            _slice(axes, done[done[setting].notna()], setting, result.default.get(setting))
        for axes in list(grid.flat)[len(shown) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel(_words(result.objective))
            axes.yaxis.set_major_formatter(lambda v, _: _number(v))
        caption = f"Finished trials of {result.name}. Each panel has the trials with that setting. Dashed: the default."
        data = done[["trial", "value", *shown]]
        made.append(Drawing(f"search_slices_{result.name}", "Trials by setting", caption, figure, data))
    return made


def _slice(axes: Axes, done: pd.DataFrame, setting: str, default: object) -> None:
    """Draw the trials that have a setting: numbers on a numeric axis, other values as categories."""
    x = pd.to_numeric(done[setting], errors="coerce").to_numpy(dtype=float)
    if np.isnan(x).any() or done[setting].map(lambda value: isinstance(value, bool)).any():
        named = done[setting].astype(str)
        names = sorted(named.unique())
        place = named.map(names.index).to_numpy(dtype=float)
        x = place + 0.25 * (done["trial"].to_numpy(dtype=float) * GOLDEN % 1 - 0.5)  # deterministic jitter
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.6, len(names) - 0.4)
        default = names.index(str(default)) if str(default) in names else None
    elif len(set(x)) <= FEW and (x == np.rint(x)).all():
        axes.set_xticks(sorted(set(x)))
        axes.xaxis.set_major_formatter(lambda v, _: _number(v))
    elif x.min() > 0 and x.max() / x.min() > 20:
        log_axis(axes.xaxis)
        if x.max() / x.min() > 200:
            axes.xaxis.set_major_locator(LogLocator())  # decades only: a panel is narrow
        axes.tick_params(axis="x", labelrotation=45)
    if isinstance(default, int | float):
        axes.axvline(default, color=AMBER, linewidth=0.9, linestyle=(0, (3, 3)))
    axes.scatter(x, done["value"], s=14, color=BLUE, alpha=0.7, edgecolors="none")
    axes.set_xlabel(setting)
    axes.tick_params(axis="x", labelsize=7.5)


def _above(axes: Axes, x: float, text: str, colour: str) -> None:
    """Write ``text`` above the plot, where it covers no point."""
    axes.annotate(
        text, (x, 1), xytext=(0, 4), xycoords="axes fraction", textcoords="offset points", ha="right", va="bottom",
        color=colour, fontsize=SMALL,
    )  # fmt: skip


def _mark_budget(axes: Axes, result: SearchResult, values: Floats) -> str:
    """Draw the line above which a median time is censored; return the caption's sentence about it."""
    if result.objective != "median_time" or result.steps is None or not (values > result.steps).any():
        return ""
    axes.axhline(result.steps, color=SOFT, linewidth=0.9, linestyle=(0, (3, 3)))
    return (
        f" The dashed line is the end of training, {result.steps:,} steps. Trials in which half of the seeds or more "
        "had not generalised lie above it, at that many steps times (1 + their share)."
    )


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
        axes.set_xlabel(_words(result.objective))
        axes.set_ylabel(_words(result.second))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda v, _: _number(v))
        _above(axes, 0.78, "other trials", SOFT)
        _above(axes, 1, "Pareto front", TEAL)
        caption = f"{len(done)} finished trials of {result.name}. No trial is better in both than a trial on the front."
        data = done[["trial", "value", "second", "best"]]
        made.append(Drawing(f"search_front_{result.name}", "Two objectives", caption, figure, data))
    return made


def importances(study: Searches) -> list[Drawing]:
    """Draw the share of the outcome that each setting explains, with its interval."""
    made = []
    for result in study.results:
        frame = result.importance
        if frame.empty:
            continue
        figure, axes = canvas(height=0.9 + 0.34 * len(frame))
        y = np.arange(len(frame))[::-1]
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.hlines(y, frame["low"], frame["high"], color=BLUE, linewidth=3, alpha=0.35)
        axes.scatter(frame["share"], y, s=34, color=BLUE, zorder=3, edgecolors="none")
        axes.set_yticks(y, frame["setting"].tolist())
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.7, len(frame) - 0.3)
        axes.set_xlim(-0.01, max(0.3, min(1.02, float(frame["high"].max()) * 1.05)))
        axes.xaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
        axes.set_xlabel("share explained by this setting alone")
        caption = (
            f"Share of the variance of the ranks of {_words(result.objective)} over {frame['trials'].max()} finished "
            f"trials of {result.name} that each setting explains alone, with 95% intervals over trials."
        )
        made.append(Drawing(f"search_importance_{result.name}", "Importance of each setting", caption, figure, frame))
    return made


def contours(study: Searches) -> list[Drawing]:
    """Draw the value over the two numeric settings that explain most."""
    made = []
    for result in study.results:
        done = _done(result)
        ranked = result.importance["setting"].tolist() if len(result.importance) else []
        two = [s for s in ranked if pd.to_numeric(done[s], errors="coerce").nunique() > 3][:2]
        done = done.dropna(subset=two)
        if len(two) < 2 or len(done) < 10 or np.ptp(done["value"].to_numpy(dtype=float)) == 0:
            continue
        figure, axes = canvas()
        axes.grid(visible=False)
        x, y = (_scaled(axis, pd.to_numeric(done[s]).to_numpy(dtype=float), s)
                for axis, s in zip((axes.xaxis, axes.yaxis), two, strict=True))  # fmt: skip
        colours = SEQUENTIAL if result.minimise else SEQUENTIAL.reversed()
        value = done["value"].to_numpy(dtype=float)
        levels = MaxNLocator(8).tick_values(float(value.min()), float(value.max()))
        # tricontourf leaves out triangles whose corners all lie at the highest level: lower them a little
        drawn = np.minimum(value, levels[-1] - 1e-6 * (levels[-1] - levels[0]))
        mesh = axes.tricontourf(x, y, drawn, levels=levels, cmap=colours, alpha=0.85)
        axes.scatter(x, y, s=12, color=INK, edgecolors=PAPER, linewidths=0.6, zorder=3)
        axes.use_sticky_edges = False  # otherwise the dots of the outermost trials are cut
        axes.margins(0.04)
        bar = figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
        bar.set_label(_words(result.objective), color=SOFT)
        bar.ax.yaxis.set_major_formatter(lambda v, _: _number(v))
        caption = (
            f"{_words(result.objective).capitalize()} of {len(done)} finished trials (dots) of {result.name}, over the "
            "two settings that explain most. Between trials: linear interpolation, no model."
        )
        data = done[["trial", "value", *two]]
        made.append(Drawing(f"search_contour_{result.name}", "Two settings together", caption, figure, data))
    return made


def _scaled(axis: Axis, values: Floats, setting: str) -> Floats:
    """Label an axis; return ``values``, or their logarithms (and set ticks) if they span a factor of 20 or more."""
    axis.set_label_text(setting)
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high / low < 20:
        return values
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.log10(high) + 1)
    steps = (1, 3) if high / low > 1000 else (1, 2, 5)
    ticks = [k * decade for decade in decades for k in steps if low <= k * decade <= high]
    axis.set_ticks(np.log(ticks), labels=[f"{tick:g}" for tick in ticks])
    return np.log(values)


def comparisons(study: Searches) -> list[Drawing]:
    """Draw the pinned comparison: each fresh seed at the default and at the best setting."""
    made = []
    for result in study.results:
        frame = result.compared
        if frame.empty:
            continue
        figure, axes = canvas(width=4.0, height=3.8)
        a, b = (_in_time(frame[side].to_numpy(dtype=float), result) for side in ("default", "best"))
        better = b < a if result.minimise else b > a
        worse = (a != b) & ~better
        colours = np.where(better, TEAL, np.where(worse, ROSE, GREY))
        same = frame.groupby(["default", "best"])["seed"].transform("size").to_numpy(dtype=float)
        axes.scatter(a, b, s=18 * same, c=colours, edgecolors="none", alpha=0.8)
        axes.axline((float(a.mean()), float(a.mean())), slope=1, color=SOFT, linewidth=0.9, linestyle=(0, (3, 3)))
        low, high = float(min(a.min(), b.min())), float(max(a.max(), b.max()))
        pad = 0.05 * (high - low) or 1.0
        axes.set(xlim=(low - pad, high + pad), ylim=(low - pad, high + pad), aspect="equal")
        late = _time_ticks(axes, result, low, high)
        axes.set_xlabel(f"{_words(result.objective).removeprefix('median ')} at the default")
        axes.set_ylabel("at the best setting")
        _above(axes, 1, f"better {int(better.sum())}", TEAL)
        _above(axes, 0.72, f"worse {int(worse.sum())}", ROSE)
        caption = (
            f"Each dot is a new seed ({len(frame)} in all, larger where several coincide) at both settings of "
            f"{result.name}. The seeds were fixed before they were trained. Better for {int(better.sum())}, worse for "
            f"{int(worse.sum())}.{late}"
        )
        made.append(Drawing(f"search_comparison_{result.name}", "Best against default", caption, figure, frame))
    return made


def _in_time(values: Floats, result: SearchResult) -> Floats:
    """Return seeds' values for drawing; seeds that did not generalise are drawn just after the budget."""
    return np.minimum(values, LATE * result.budget) if result.objective == "median_time" else values


def _time_ticks(axes: Axes, result: SearchResult, low: float, high: float) -> str:
    """Label both axes; return the caption's sentence about seeds that did not generalise, empty if all did."""
    end = min(high, result.budget)
    ticks = [float(tick) for tick in MaxNLocator(5).tick_values(low, end) if low <= tick <= end]
    labels = [_number(tick) for tick in ticks]
    late = result.objective == "median_time" and high > result.budget
    if late:
        ticks, labels = [*ticks, LATE * result.budget], [*labels, "never"]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    if not late:
        return ""
    return f" never: not within {result.budget:,.0f} steps; the test counts it as later than every step."


def _words(objective: str) -> str:
    return WORDS.get(objective, objective.replace("_", " "))


def _number(value: float) -> str:
    return EngFormatter(sep="")(value) if abs(value) >= 1e6 else f"{value:,.4g}"
