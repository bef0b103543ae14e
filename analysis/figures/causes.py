"""Figures of the studies of causes: variance shares, heat map, layers, repeatability, prediction, inside a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import special

from grok.analysis.figures import style
from grok.analysis.figures.render import LINE, draw, row_name
from grok.analysis.statistics.estimate import Estimate
from grok.analysis.statistics.repeatability import Verdict
from grok.analysis.statistics.variance_shares import CHAOS
from grok.analysis.studies.crossed import Crossed
from grok.analysis.studies.fate import CHANGES, FORWARD, MOVED, REVERSE, START, SUPER, Fate
from grok.analysis.studies.language_fate import LanguageFate
from grok.analysis.studies.mechanism import Mechanism, meaning_of
from grok.analysis.studies.prediction import Prediction
from grok.analysis.studies.repeatability import Repeats

MOST_CANDIDATES = 30
"""Largest number of rows of candidates or layers in a figure; its csv has all."""


def share_axis(label: str, frame: pd.DataFrame) -> style.ChartAxis:
    """Return the axis of shares with their intervals."""
    low, high = float(frame["low"].min()), float(frame["high"].max())
    return style.ChartAxis(label, min(-0.01, 1.05 * low), max(0.3, min(1.02, 1.05 * high)), percent=True)


def intervals(estimates: Mapping[str, Estimate]) -> pd.DataFrame:
    """Return a row for each estimate (columns: name, value, low, high)."""
    rows = [(name, e.value, e.low, e.high) for name, e in estimates.items()]
    return pd.DataFrame(rows, columns=["name", "value", "low", "high"])


def rows_chart(
    frame: pd.DataFrame,
    colours: Sequence[str],
    x: style.ChartAxis,
    groups: Mapping[str, str],
    rules: Sequence[style.Rule] = (),
) -> style.Chart:
    """Return the chart of value and interval of each row (columns: name, value, low, high), first row on top.

    ``colours``: one per row; ``groups``: the legend's name by colour.
    """
    inches = np.array([max(0.26, 0.06 + LINE * (1 + row_name(name).count("\n"))) for name in frame["name"]])
    placed = frame.assign(place=inches / 2 - np.cumsum(inches), colour=colours)
    layers = [style.Intervals(groups.get(str(c), ""), str(c), rows) for c, rows in placed.groupby("colour", sort=False)]
    y = style.ChartAxis(
        "", -float(inches.sum()) - 0.05, 0.05, ticks=dict(zip(placed["place"], placed["name"], strict=True))
    )
    return style.Chart(x, y, (*rules, *layers), height=max(1.2, 0.6 + float(inches.sum())))


def variance_bars(study: Crossed) -> style.Drawing | None:
    """Draw the variance shares with their intervals."""
    if study.shares is None:
        return None
    result = study.shares
    frame = intervals(result.shares)
    colours = [style.ROSE if k == CHAOS else style.BLUE if "×" not in k else style.GREY for k in result.shares]
    groups = {style.BLUE: "a seed alone", style.GREY: "interactions", style.ROSE: "runs with equal seeds"}
    caption = (
        f"Share of the variance of the outcome with 95% intervals; {result.n} runs, {result.replicates:.1f} per cell."
    )
    chart = rows_chart(frame, colours, share_axis("share of variance", frame), groups, [style.Rule("x", 0)])
    return draw(_named(study, "variance_shares"), "Variance shares", caption, [chart], frame, f"{result.n:,} runs")


def _named(study: Crossed, figure: str) -> str:
    """Return a figure's name: a store may have crossed seeds of both modes."""
    return figure if study.name == "crossed" else f"{study.name}_{figure}"


def heat_map(study: Crossed) -> style.Drawing | None:
    """Draw the mean outcome of each pair of seeds of the two streams with most levels, then with the largest shares."""
    alone = {} if study.shares is None else {name: e.value for name, e in study.shares.shares.items()}
    two = sorted(study.factors, key=lambda name: (-len(np.unique(study.factors[name])), -alone.get(name, 0.0)))[:2]
    if len(two) < 2:
        return None
    a, b = two
    first, second = (f"seed_{study.streams[name]}" for name in two)
    table = study.rows.pivot_table(index=first, columns=second, values="y", aggfunc="mean")
    table = table.loc[table.mean(axis=1).sort_values().index, table.mean(axis=0).sort_values().index]
    result = study.outcome
    if result.is_loss:
        shown, label, what = table, "validation loss", f"mean {result.name}"
    elif result.is_time:
        shown, label = pd.DataFrame(np.exp(table.to_numpy())), "mean step of generalisation"
        what = "geometric mean of the step of generalisation"
    else:
        shown, label, what = pd.DataFrame(special.expit(-table.to_numpy())), "accuracy", "mean accuracy at the horizon"
    rows, columns = shown.shape
    best = "lowest" if result.is_loss else "fastest"
    chart = style.Chart(
        style.ChartAxis(f"{b} seeds, {best} on the left", 0, columns, ticks={}),
        style.ChartAxis(f"{a} seeds, {best} on top", rows, 0, ticks={}),
        (style.Cells(shown, label, "low" if result.is_loss or result.is_time else "high", log=result.is_time),),
        height=min(4.4, 1.0 + 0.22 * rows),
    )
    caption = f"Each square: {what} of one {a} seed and one {b} seed ({len(study.rows)} runs)."
    data = table.reset_index().melt(id_vars=first, value_name="mean outcome")
    title = f"{a.capitalize()} seeds against {b} seeds"
    return draw(_named(study, "heat_map"), title, caption, [chart], data, f"{len(study.rows):,} runs")


def repeat_kinds(study: Repeats) -> style.Drawing | None:
    """Draw the share of repeats that hit again for each kind of repeat; None for a single kind."""
    if len(study.tests) < 2:
        return None
    frame = intervals({t.name: t.result.pooled for t in study.tests}).assign(
        candidates=[len(t.units) for t in study.tests], repeats=[t.result.pooled.n for t in study.tests]
    )
    colours = [style.ROSE if not t.free else style.BLUE if len(t.kind.fixed) == 1 else style.AMBER for t in study.tests]
    groups = {style.ROSE: "all streams kept", style.AMBER: "one stream redrawn", style.BLUE: "two streams redrawn"}
    caption = (
        f"Share of the candidates' repeats that are {study.tests[0].kind.hit.words} again, with 95% intervals; "
        f"{frame['repeats'].sum():,} repeats."
    )
    chart = rows_chart(frame, colours, share_axis("share of repeats", frame), groups)
    repeats = f"{int(frame['repeats'].sum()):,} repeats"
    return draw("repeat_kinds", "Repeats by what is kept", caption, [chart], frame, repeats)


def repeat_candidates(study: Repeats) -> style.Drawing:
    """Draw, for the first kind of repeat, each candidate's share of hits and the share of other seeds."""
    test = study.tests[0]
    # a line never ends within `init 4711`
    names = test.units["candidate"].str.replace(r"(?<=[a-z]) ", "\N{NO-BREAK SPACE}", regex=True)
    shown = test.units.assign(name=names, value=test.units["share"]).head(MOST_CANDIDATES)
    colours = np.where(shown["verdict"].isin([Verdict.MOST.value, Verdict.MORE.value]), style.TEAL, style.GREY)
    groups = {style.TEAL: "more often than other seeds", style.GREY: "not told apart"}
    base = next((c.base for c in test.result.candidates if c.base is not None), None)
    caption = (
        f"How often each candidate was {test.kind.hit.words} again ({test.kind.change}), with exact 95% intervals. "
        "Green: at a false-discovery rate of 5%. The run that chose a candidate is not counted."
    )
    if base is not None:
        caption += f" Strip: other seeds, {base.percent()}."
    rules = [style.Rule("x", base.low, colour=style.BLUE, until=base.high)] if base is not None else []
    x = style.ChartAxis(f"share of repeats that are {test.kind.hit.words}", -0.01, 1.02, percent=True)
    count = f"{style.of_all(len(shown), len(test.units))} candidates"
    chart = rows_chart(shown, colours.tolist(), x, groups, rules)
    return draw("repeat_candidates", "Repeats of each candidate", caption, [chart], test.units, count)


def fate_by_step(study: Fate) -> style.Drawing | None:
    """Draw the share of super children by the step of their change; None without a later one of a super parent."""
    frame = study.steps[study.steps["parents"] == SUPER]
    later = sorted(frame.loc[frame["step"] > 0, "step"].unique().tolist())
    if not later:
        return None
    first = later[0] / 2  # the place of step 0
    layers: list[style.Band | style.Intervals] = []
    colours = {
        START: (style.GREY, 1.0),
        MOVED: (style.TEAL, 1.0),
        FORWARD: (style.BLUE, 0.94),
        REVERSE: (style.AMBER, 1.06),
    }
    for change, (colour, beside) in colours.items():
        part = frame[(frame["change"] == change) & ((frame["step"] > 0) | (change == START))]
        if len(part):
            placed = part.assign(place=beside * part["step"].where(part["step"] > 0, first))
            line = placed.assign(x=placed["place"], low=placed["value"], high=placed["value"])
            layers += [
                style.Band(CHANGES[change], colour, line),
                style.Intervals(CHANGES[change], colour, placed, vertical=True),
            ]
    ticks, room = {first: "0"} if 0 in frame["step"].tolist() else {}, np.inf
    for step in reversed(later):  # labels of neighbours that are nearer than this would touch
        ticks[step] = f"{step:,}" if step < 0.45 * room else ""
        room = step if ticks[step] else room
    x = style.ChartAxis("step of the change (log)", 0.8 * min(ticks), 1.25 * later[-1], "log", ticks=ticks)
    chart = style.Chart(x, style.ChartAxis(f"{study.hit} children", -0.02, 1.02, percent=True), tuple(layers))
    caption = (
        f"Share of children of {study.hit} parents that are {study.hit} at step {study.horizon:,}, by the step at "
        "which they change: mean over lines of descent with 95% intervals."
    )
    runs = f"{int(frame['runs'].sum()):,} children"
    return draw(
        "fate_by_step", f"{study.hit.capitalize()} children by the step of their change", caption, [chart], frame, runs
    )


def fixed_by_step(study: LanguageFate) -> style.Drawing:
    """Draw the share of the variance of the final loss that is fixed, by step."""
    steps = study.steps.assign(x=study.steps["step"], place=study.steps["step"])
    chart = style.Chart(
        style.ChartAxis.around("step from which on the order is another", steps["step"]),
        style.ChartAxis("fixed share of the variance", -0.02, 1.02, percent=True),
        (style.Band("", style.BLUE, steps), style.Intervals("", style.BLUE, steps, vertical=True)),
    )
    caption = "Share of the variance of the final loss that is fixed by a step, with 95% intervals."
    n = int(steps["children"].sum())
    return draw("fixed_by_step", "Final loss fixed by step", caption, [chart], study.steps, f"{n:,} children")


def prediction_curve(study: Prediction) -> style.Drawing:
    """Draw the AUROC of the validation loss by step."""
    looks = study.looks
    chart = style.Chart(
        style.ChartAxis("step", 0, float(looks["step"].max()) * 1.04),
        style.ChartAxis("AUROC", min(0.4, float(looks["low"].min()) - 0.02), 1.02),
        (
            style.Rule("y", 0.5, "chance"),
            style.Band("", style.BLUE, looks.rename(columns={"step": "x", "auroc": "value"})),
        ),
    )
    caption = f"AUROC of the validation loss with 95% intervals, for seeds {study.meaning}."
    return draw("prediction", "How well the validation loss tells, by step", caption, [chart], looks)


# Figures of the measurements inside a network, over the step relative to the step of generalisation.

LOG_FROM = 30.0
"""Ratio of largest to smallest value from which the axis is logarithmic."""


def aligned(study: Mechanism) -> list[style.Drawing]:
    """Draw median and quartiles of each measurement over relative time, one figure each; constant ones are left out."""
    return [_one(name, frame) for name, frame in study.aligned.items() if frame["low"].min() < frame["high"].max()]


def _one(name: str, frame: pd.DataFrame) -> style.Drawing:
    smallest = float(frame["low"].min())
    log = smallest > 0 and float(frame["high"].max()) / smallest >= LOG_FROM
    chart = style.Chart(
        style.ChartAxis("step divided by the step of generalisation", 0, float(frame["clock"].max())),
        style.ChartAxis.around(name, frame["low"], frame["high"], scale="log" if log else "linear"),
        (
            style.Rule("x", 1, "generalises"),
            style.Band("", style.BLUE, frame.rename(columns={"clock": "x", "median": "value"})),
        ),
        height=1.9,
    )
    meaning = meaning_of(name)
    title = f"{meaning[0].upper()}{meaning[1:]}" if meaning else name
    runs = f"{int(frame['runs'].iloc[0]):,} runs"
    caption = f"Median and middle half of {runs} that generalised."
    return draw(f"inside_{name}", title, caption, [chart], frame, runs)
