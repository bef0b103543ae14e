"""Seed histograms, curves of the seeds by class, and the order of events."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from grok.analysis.criteria import usual_length
from grok.analysis.figures.render import draw
from grok.analysis.figures.style import (
    BLUE,
    CLASS_COLOURS,
    GREY,
    TEAL,
    VIOLET,
    Bars,
    Chart,
    ChartAxis,
    Drawing,
    Lines,
    Points,
    Rule,
    of_all,
)
from grok.analysis.observations import floats
from grok.analysis.studies.census import Census
from grok.analysis.studies.regimes import AFTER, BEFORE, TOGETHER, Regimes

MOST: Final = 60
"""Largest number of lines per group, spread evenly over the runs in order of run_id."""
FEW: Final = 20
"""Number of seeds up to which their lines are bolder."""
CLASS_STYLES: Final = {
    "not": (CLASS_COLOURS["not judged"], 0.8, 0.7),
    "diverged": (CLASS_COLOURS["diverged"], 0.8, 0.9),
    "normal": (CLASS_COLOURS["normal"], 0.45, 0.7),
    "fast": (CLASS_COLOURS["fast"], 0.8, 0.9),
    "super": (CLASS_COLOURS["super"], 0.9, 1.1),
}
TIME_STYLES: Final = {
    "not": (GREY, 0.6, 0.7),
    "generalised": (BLUE, 0.5, 0.7),
    "late": (BLUE, 0.5, 0.7),
    "early": (TEAL, 0.9, 1.1),
}
"""First word of the label: (colour, opacity, line width), drawn in this order."""
REGIME_COLOURS: Final = {BEFORE: BLUE, TOGETHER: VIOLET, AFTER: TEAL}


def spread(ids: pd.Index, most: int = MOST) -> pd.Index:
    """Return at most ``most`` of ``ids``, evenly spaced."""
    ids = ids.sort_values()
    return ids if len(ids) <= most else ids[np.linspace(0, len(ids) - 1, most).astype(int)]


def seed_curves(census: Census) -> Drawing | None:
    """Draw validation accuracy over steps, coloured by the seed's class."""
    label, styles = census.kinds, CLASS_STYLES if census.population.has_diary_task else TIME_STYLES
    curves = census.curves[census.curves["run_id"].isin(label.index)]
    layers, frames, drawn = [], [], 0
    bold = 1.6 if len(label) <= FEW else 1.0
    for style, (colour, alpha, width) in styles.items():
        members = label[label.str.split().str[0] == style]
        mine = curves[curves["run_id"].isin(members.index)]
        if mine.empty:
            continue
        chosen = frozenset(spread(pd.Index(mine["run_id"].unique())))
        drawn += len(chosen)
        group = f"{members.iloc[0]} ({of_all(len(chosen), len(members))})"
        layers.append(Lines(group, colour, mine, "step", "val_acc", chosen, min(1, bold * alpha), bold * width))
        frames.append(mine[mine["run_id"].isin(chosen)].assign(label=members.iloc[0]))
    if not frames:
        return None
    ends = curves.groupby("run_id")["step"].max()
    last = usual_length(ends.to_numpy(dtype=np.int64))  # a few long runs would leave no room for all others
    caption = f"One line is one seed. Drawn: {of_all(drawn, len(label))}."
    if longer := int((ends > last).sum()):
        caption += f" Runs that go on beyond the axis, up to step {ends.max():,}: {longer}."
    axis = ChartAxis("validation accuracy", -0.02, 1.03)
    chart = Chart(ChartAxis("step", 0, last), axis, tuple(layers), height=2.2)
    data = pd.concat(frames)[["run_id", "label", "step", "val_acc", "val_loss"]]
    title = "Validation accuracy of single seeds"
    return draw("seed_curves", title, caption, [chart], data, "seeds", of=len(label))


def order_of_events(regimes: Regimes) -> Drawing | None:
    """Draw the step at which the norm first fell against the step of generalisation."""
    done = regimes.events[regimes.events["first"].isin(list(REGIME_COLOURS))]
    if done.empty:
        return None
    never = float(regimes.curves["step"].max()) * 1.25
    fell = np.isfinite(done["fall"]).to_numpy()
    places = pd.DataFrame({"run_id": done.index, "x": done["grokked"], "y": np.where(fell, done["fall"], never)})
    low = max(1.0, 0.7 * float(places[["x", "y"]].min().min()))
    layers = []
    for name, colour in REGIME_COLOURS.items():
        here = places[(done["first"] == name).to_numpy()]
        if len(here):
            layers.append(Points(f"{name} ({len(here):,})", colour, here))
    missing = int((~fell).sum())
    rules = [Rule("diagonal"), *([Rule("y", never / 1.06)] if missing else [])]
    chart = Chart(
        ChartAxis("step of generalisation", low, never, "log"),
        ChartAxis("step at which the norm first fell", low, never * 1.15, "log"),
        (*rules, *layers),
        height=2.7,
    )
    caption = (
        f"{len(done):,} generalised seed{'s' * (len(done) > 1)}. On the dashed line both happen at the same step; "
        "below it the norm falls first, above it the seed generalises first."
    )
    if missing:
        caption += f" Above the upper dashed line: not fallen by 1% when the run ended ({missing:,})."
    data = done[["grokked", "fall", "climb", "first"]].rename_axis("run_id").reset_index()
    title = "Fall of the weight norm and generalisation"
    return draw("order_of_events", title, caption, [chart], data, "seeds", of=len(done))


# Seed histograms: the step of generalisation.

UNEVEN = 50
"""Ratio of the largest to the smallest bin above which the smallest would be invisible on a linear axis."""


def counts(counted: np.ndarray) -> ChartAxis:
    """Return the axis of counts: logarithmic above a few seeds if the counts are uneven."""
    top = max(1.0, float(np.max(counted, initial=0)))
    if top > UNEVEN * float(np.min(counted[counted > 0], initial=top)):
        return ChartAxis("seeds (logarithmic above 10)", 0, 1.6 * top, scale="asinh", whole=True)
    return ChartAxis("seeds", 0, 1.15 * top, whole=True)


def stacked(edges: np.ndarray, groups: list[tuple[str, str, np.ndarray]]) -> tuple[list[Bars], ChartAxis]:
    """Return the bars of each group (name, colour, count by bin) that counts something, and their axis."""
    bins = pd.DataFrame({"low": edges[:-1], "high": edges[1:]})
    layers = [
        Bars(f"{name} ({int(count.sum()):,})", colour, bins.assign(count=count))
        for name, colour, count in groups
        if count.sum()
    ]
    return layers, counts(np.sum([count for _, _, count in groups], axis=0))


def time_histogram(census: Census) -> Drawing:
    """Draw the histogram of the step of generalisation; other seeds stand at the last step they were trained to."""
    times, fast = census.times, census.by_time
    steps = np.where(times.seen, times.right, np.minimum(times.left, floats(census.rows["steps"])))
    edges = _edges(times.right[times.seen], float(steps.max()))
    early = fast.is_early if fast else np.zeros(len(times), dtype=bool)
    longest = float(floats(census.rows["steps"]).max())
    whole = bool((steps[~times.seen] == longest).all())
    parts = {
        f"not within {longest:,.0f} steps" if whole else "not by their last step": (GREY, ~times.seen),
        "late" if fast else "generalised": (BLUE, times.seen & ~early),
        "early": (TEAL, early),
    }
    data = pd.DataFrame({"step from": edges[:-1], "step to": edges[1:]}).round(3)
    data = data.assign(**{name: np.histogram(steps[here], edges)[0] for name, (_, here) in parts.items()})
    layers, axis = stacked(edges, [(name, colour, data[name].to_numpy()) for name, (colour, _) in parts.items()])
    rules = [Rule("x", fast.median.value, f"median {fast.median.value:,.0f}")] if fast else []
    never = int((~times.seen).sum())
    caption = f"Step of generalisation of {len(times):,} seeds. {never:,} had not generalised when their run ended"
    caption += ": they stand at their last step." if never else "."
    if fast:
        caption += " Early: at least three times faster than the median."
    marks = pd.Series(times.right[times.seen], index=census.rows.index[times.seen])
    chart = Chart(ChartAxis("step at which the seed generalised", 0, float(edges[-1])), axis, (*layers, *rules), marks)
    return draw("time_histogram", "When the seeds generalised", caption, [chart], data, "seeds", of=len(times))


def _edges(times: np.ndarray, budget: float, most: int = 40) -> np.ndarray:
    """Return bin edges at multiples of the evaluation interval, so that no bin is empty by rounding."""
    values = np.unique(times)
    spacing = float(np.diff(values).min()) if len(values) > 1 else max(1.0, budget / most)
    per_bin = max(1, int(np.ceil(budget / spacing / most)))
    step = spacing * per_bin
    return np.append(0, np.arange(step, budget + step, step) + 1e-9 * step)
