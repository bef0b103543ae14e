"""Seed histograms: validation accuracy at the horizon, and the step of generalisation."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.criteria import DIARY, UNJUDGED
from analysis.figures.chart import Axis, Bars, Chart, Layer, Rule
from analysis.figures.style import BLUE, CLASS_COLOURS, GREY, INK, SMALL, SOFT, Drawing, canvas, steps_axis
from analysis.studies.census import Census

_LOW, _HIGH = DIARY.normal_accuracy, DIARY.super_accuracy
ACCURACY_BINS = np.concatenate([np.linspace(0, _LOW, 11), np.linspace(_LOW, _HIGH, 30)[1:], [1.0]])
"""Edges of bins about 0.025 wide. They include the thresholds, so that each bar has one class."""
LINEAR_UNTIL = 10.0
"""Number of seeds in a bin above which an axis of counts is logarithmic, if it is."""


def accuracy_histogram(census: Census) -> Drawing:
    """Draw the histogram of validation accuracy at the horizon, by class."""
    rows = census.rows[census.rows["label"] != UNJUDGED]
    figure, axes = canvas()
    bottom = np.zeros(len(ACCURACY_BINS) - 1)
    data = pd.DataFrame({"accuracy from": ACCURACY_BINS[:-1], "accuracy to": ACCURACY_BINS[1:]})
    for name in ("normal", "fast", "super"):
        values = rows.loc[rows["label"] == name, "accuracy"].to_numpy(dtype=float)
        count = np.histogram(values, ACCURACY_BINS)[0]
        data[name] = count
        axes.bar(
            ACCURACY_BINS[:-1],
            count,
            np.diff(ACCURACY_BINS) * 0.9,
            bottom=bottom,
            align="edge",
            color=CLASS_COLOURS[name],
        )
        bottom += count
    _count_axis(axes, bottom)
    for threshold in (DIARY.normal_accuracy, DIARY.super_accuracy):
        axes.axvline(threshold, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    places = {"normal": 0.125, "fast": 0.61, "super": 0.99}
    words = {"normal": f"below {_LOW}", "fast": "between", "super": f"above {_HIGH}"}
    for name, x in places.items():
        n = int((rows["label"] == name).sum())
        axes.annotate(
            f"{name if census.has_diary_task else words[name]}\n{n:,}",
            (x, 1.0),
            xycoords=("data", "axes fraction"),
            ha="right" if name == "super" else "center",
            va="top",
            fontsize=SMALL,
            color=INK if name == "normal" else CLASS_COLOURS[name],
            xytext=(-10 if name == "super" else 0, -2),
            textcoords="offset points",
        )
    axes.set_xlim(-0.01, 1.01)
    axes.set_xlabel(f"validation accuracy at step {census.horizon:,}")
    lead = census.shares["super"]
    above = "Super" if census.has_diary_task else f"Above {_HIGH}"
    made_for = "" if census.has_diary_task else ", made for the diary's task"
    caption = (
        f"Validation accuracy of {len(rows):,} seeds at step {census.horizon:,}. Dashed: the diary's thresholds "
        f"({DIARY.normal_accuracy} and {DIARY.super_accuracy}{made_for}). {above}: {lead.percent()}, n = {lead.n:,}."
    )
    layers = [
        Bars(
            f"{name if census.has_diary_task else words[name]} ({int(data[name].sum()):,})",
            CLASS_COLOURS[name],
            pd.DataFrame({"low": data["accuracy from"], "high": data["accuracy to"], "count": data[name]}),
        )
        for name in places
    ]
    rules = [Rule("x", threshold, f"{threshold}") for threshold in (_LOW, _HIGH)]
    chart = Chart(
        Axis(f"validation accuracy at step {census.horizon:,}", 0, 1.005),
        _counts(bottom),
        (*layers, *rules),
        rows["accuracy"],
    )
    title = "Validation accuracy at the horizon"
    return Drawing("accuracy_histogram", title, caption, figure, data, f"{len(rows):,} seeds", (chart,))


def time_histogram(census: Census) -> Drawing:
    """Draw the histogram of the step of generalisation; seeds that did not generalise have their own bar."""
    times = census.times
    budget = float(np.max(np.where(times.seen, np.where(times.seen, times.right, 0), times.left)))
    edges = _edges(times.right[times.seen], budget)
    count = np.histogram(times.right[times.seen], edges)[0]
    never = int((~times.seen).sum())
    figure, axes = canvas()
    width = np.diff(edges)
    threshold = census.by_time.threshold if census.by_time else -1.0
    colours = [CLASS_COLOURS["super"] if right <= threshold else BLUE for right in edges[1:]]
    axes.bar(edges[:-1], count, width * 0.9, align="edge", color=colours)
    bar = 0.05 * budget
    axes.bar([budget + 2.2 * bar], [never], [bar], color=GREY)
    axes.annotate(
        f"not by their\nlast step: {never:,}",
        (1, 1),
        xycoords="axes fraction",
        ha="right",
        va="top",
        fontsize=SMALL,
        color=SOFT,
    )
    if census.by_time:
        median = census.by_time.median
        axes.axvline(median.value, color=INK, linewidth=1)
        axes.annotate(
            f"median {median.value:,.0f}",
            (median.value, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            fontsize=SMALL,
            ha="right",
            va="top",
        )
    _count_axis(axes, np.append(count, never))
    axes.set_xlim(0, budget + 3.5 * bar)
    steps_axis(axes, "step at which the seed generalised")
    data = pd.DataFrame({"step from": [*edges[:-1], np.nan], "step to": [*edges[1:], np.nan], "seeds": [*count, never]})
    caption = f"Step of generalisation of {len(times):,} seeds. {never:,} had not generalised when their run ended."
    if census.by_time:
        caption += f" Median {census.by_time.median.plain()}"
        caption += "; green: at least three times faster than that." if census.by_time.is_super.any() else "."
    bins = pd.DataFrame({"low": edges[:-1], "high": edges[1:], "count": count})
    fast = bins["high"] <= threshold
    last = pd.DataFrame({"low": [budget + 1.7 * bar], "high": [budget + 2.7 * bar], "count": [never]})
    parts = (
        ("three times faster", CLASS_COLOURS["super"], bins[fast]),
        ("generalised", BLUE, bins[~fast]),
        ("not by their last step", GREY, last),
    )
    layers: list[Layer] = [
        Bars(f"{name} ({int(part['count'].sum()):,})", colour, part)
        for name, colour, part in parts
        if part["count"].sum()
    ]
    if census.by_time:
        layers.append(Rule("x", census.by_time.median.value, f"median {census.by_time.median.value:,.0f}"))
    chart = Chart(
        Axis("step at which the seed generalised", 0, budget + 3.5 * bar),
        _counts(np.append(count, never)),
        tuple(layers),
        pd.Series(times.right[times.seen], index=census.rows.index[times.seen]),
    )
    title = "When the seeds generalised"
    return Drawing("time_histogram", title, caption, figure, data, f"{len(times):,} seeds", (chart,))


def _is_uneven(counts: np.ndarray) -> bool:
    """Return whether the smallest bin is too small to be visible on a linear axis."""
    top = float(np.max(counts, initial=0))
    return top > 50 * float(np.min(counts[counts > 0], initial=max(1.0, top)))


def _counts(counts: np.ndarray) -> Axis:
    """Return the axis of counts."""
    top = max(1.0, float(np.max(counts, initial=0)))
    if _is_uneven(counts):
        return Axis(
            f"seeds (logarithmic above {LINEAR_UNTIL:.0f})", 0, 1.5 * top, whole=True, linear_until=LINEAR_UNTIL
        )
    return Axis("seeds", 0, 1.08 * top, whole=True)


def _count_axis(axes: Axes, counts: np.ndarray) -> None:
    """Scale the axis of counts: logarithmic above ``LINEAR_UNTIL`` if the counts are uneven."""
    top = max(1.0, float(np.max(counts)))
    if _is_uneven(counts):
        axes.set_yscale("symlog", linthresh=LINEAR_UNTIL, linscale=0.6)
        axes.set_ylabel(f"seeds (log above {LINEAR_UNTIL:.0f})")
        axes.set_ylim(0, top * 3)
    else:
        axes.set_ylabel("seeds")
        axes.set_ylim(0, top * 1.25)
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _edges(times: np.ndarray, budget: float, most: int = 40) -> np.ndarray:
    """Return bin edges at multiples of the evaluation interval, so that no bin is empty by rounding."""
    values = np.unique(times)
    spacing = float(np.diff(values).min()) if len(values) > 1 else max(1.0, budget / most)
    per_bin = max(1, int(np.ceil(budget / spacing / most)))
    step = spacing * per_bin
    return np.arange(0, budget + step, step) + 1e-9 * step
