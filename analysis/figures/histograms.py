"""Seed histograms: validation accuracy at the horizon, and the step of generalisation."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.criteria import DIARY, UNJUDGED
from analysis.figures.chart import Axis, Bars, Chart, Rule
from analysis.figures.render import draw
from analysis.figures.style import BLUE, CLASS_COLOURS, GREY, Drawing
from analysis.studies.census import Census

_LOW, _HIGH = DIARY.normal_accuracy, DIARY.super_accuracy
ACCURACY_BINS = np.concatenate([np.linspace(0, _LOW, 11), np.linspace(_LOW, _HIGH, 30)[1:], [1.0]])
"""Edges of bins about 0.025 wide. They include the thresholds, so that each bar has one class."""
UNEVEN = 50
"""Ratio of the largest to the smallest bin above which the smallest would be invisible on a linear axis."""


def counts(counted: np.ndarray) -> Axis:
    """Return the axis of counts: logarithmic above a few seeds if the counts are uneven."""
    top = max(1.0, float(np.max(counted, initial=0)))
    if top > UNEVEN * float(np.min(counted[counted > 0], initial=top)):
        return Axis("seeds (logarithmic above 10)", 0, 1.6 * top, scale="asinh", whole=True)
    return Axis("seeds", 0, 1.15 * top, whole=True)


def stacked(edges: np.ndarray, groups: list[tuple[str, str, np.ndarray]]) -> tuple[list[Bars], Axis]:
    """Return the bars of each group (name, colour, count by bin) that counts something, and their axis."""
    bins = pd.DataFrame({"low": edges[:-1], "high": edges[1:]})
    layers = [
        Bars(f"{name} ({int(count.sum()):,})", colour, bins.assign(count=count))
        for name, colour, count in groups
        if count.sum()
    ]
    return layers, counts(np.sum([count for _, _, count in groups], axis=0))


def accuracy_histogram(census: Census) -> Drawing:
    """Draw the histogram of validation accuracy at the horizon, by class."""
    rows = census.rows[census.rows["label"] != UNJUDGED]
    words = {"normal": f"below {_LOW}", "fast": "between", "super": f"above {_HIGH}"}
    data = pd.DataFrame({"accuracy from": ACCURACY_BINS[:-1], "accuracy to": ACCURACY_BINS[1:]})
    for name in words:
        values = rows.loc[rows["label"] == name, "accuracy"].to_numpy(dtype=float)
        data[name] = np.histogram(values, ACCURACY_BINS)[0]
    layers, axis = stacked(
        ACCURACY_BINS,
        [(n if census.has_diary_task else w, CLASS_COLOURS[n], data[n].to_numpy()) for n, w in words.items()],
    )
    rules = [Rule("x", threshold, f"{threshold}") for threshold in (_LOW, _HIGH)]
    x = Axis(f"validation accuracy at step {census.horizon:,}", 0, 1.005)
    lead = census.shares["super"]
    above = "Super" if census.has_diary_task else f"Above {_HIGH}"
    made_for = "" if census.has_diary_task else ", made for the diary's task"
    caption = (
        f"Validation accuracy of {len(rows):,} seeds at step {census.horizon:,}. Dashed: the diary's thresholds "
        f"({_LOW} and {_HIGH}{made_for}). {above}: {lead.percent()}, n = {lead.n:,}."
    )
    chart = Chart(x, axis, (*layers, *rules), rows["accuracy"])
    title = "Validation accuracy at the horizon"
    return draw("accuracy_histogram", title, caption, [chart], data, "seeds", of=len(rows))


def time_histogram(census: Census) -> Drawing:
    """Draw the histogram of the step of generalisation; other seeds stand at the last step they were seen."""
    times, fast = census.times, census.by_time
    steps = np.where(times.seen, times.right, times.left)
    edges = _edges(times.right[times.seen], float(steps.max()))
    early = fast.is_super if fast else np.zeros(len(times), dtype=bool)
    parts = {
        "three times faster": (CLASS_COLOURS["super"], early),
        "generalised": (BLUE, times.seen & ~early),
        "trained until here, not generalised": (GREY, ~times.seen),
    }
    data = pd.DataFrame({"step from": edges[:-1], "step to": edges[1:]})
    data = data.assign(**{name: np.histogram(steps[here], edges)[0] for name, (_, here) in parts.items()})
    layers, axis = stacked(edges, [(name, colour, data[name].to_numpy()) for name, (colour, _) in parts.items()])
    rules = [Rule("x", fast.median.value, f"median {fast.median.value:,.0f}")] if fast else []
    never = int((~times.seen).sum())
    caption = f"Step of generalisation of {len(times):,} seeds. {never:,} had not generalised when their run ended"
    caption += ": they stand at their last step." if never else "."
    if fast:
        caption += f" Median {fast.median.plain()}"
        caption += "; green: at least three times faster than that." if fast.is_super.any() else "."
    marks = pd.Series(times.right[times.seen], index=census.rows.index[times.seen])
    chart = Chart(Axis("step at which the seed generalised", 0, float(edges[-1])), axis, (*layers, *rules), marks)
    return draw("time_histogram", "When the seeds generalised", caption, [chart], data, "seeds", of=len(times))


def _edges(times: np.ndarray, budget: float, most: int = 40) -> np.ndarray:
    """Return bin edges at multiples of the evaluation interval, so that no bin is empty by rounding."""
    values = np.unique(times)
    spacing = float(np.diff(values).min()) if len(values) > 1 else max(1.0, budget / most)
    per_bin = max(1, int(np.ceil(budget / spacing / most)))
    step = spacing * per_bin
    return np.append(0, np.arange(step, budget + step, step) + 1e-9 * step)
