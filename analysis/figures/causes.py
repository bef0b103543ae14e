"""Figures of the studies of causes: variance shares, heat map, layers, repeatability, prediction."""

from __future__ import annotations

from collections import Counter
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from scipy import special

from analysis.figures import chart
from analysis.figures.style import (
    AMBER,
    BLUE,
    GREY,
    INK,
    LIGHT,
    LINE,
    ROSE,
    SERIES,
    SMALL,
    SOFT,
    TEAL,
    Drawing,
    canvas,
    steps_axis,
)
from analysis.statistics.variance_shares import CHAOS
from analysis.studies.crossed import Crossed
from analysis.studies.layers import Layers
from analysis.studies.prediction import Prediction
from analysis.studies.repeatability import MORE_OFTEN, MOST_REPEATS, Repeats
from analysis.studies.transplants import Transplant

SEQUENTIAL = LinearSegmentedColormap.from_list("speed", ["#13816e", "#e9e3d2", "#c67e1b"])
"""Colours from early to late. None is a colour of the palette, so a dark page does not replace them."""


NAME_WIDTH = 24
"""Largest number of characters in a line beside or below an axis."""


def intervals(
    name: str, title: str, caption: str, frame: pd.DataFrame, colours: list[str], label: str, percent: bool
) -> Drawing:
    """Draw value and interval of each row (columns: name, value, low, high), first row on top."""
    names = [fill(name, NAME_WIDTH, break_long_words=False) for name in frame["name"]]
    n, lines = len(frame), max(name.count("\n") for name in names) + 1
    row = max(0.3, 0.06 + 0.17 * lines)
    figure, axes = canvas(height=max(1.6, 0.9 + row * n))
    y = np.arange(n)[::-1]
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.hlines(y, frame["low"], frame["high"], colors=colours, linewidth=3, alpha=0.35)
    axes.scatter(frame["value"], y, s=34, color=colours, zorder=3, edgecolors="none", clip_on=False)
    axes.axvline(0, color=SOFT, linewidth=0.8)
    axes.set_yticks(y, names)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(-0.7, n - 0.3)
    axes.set_xlabel(fill(label, NAME_WIDTH))
    if percent:
        axes.set_xlim(-0.01, max(0.3, min(1.02, float(frame["high"].max()) * 1.05)))
        axes.xaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
    return Drawing(name, title, caption, figure, frame)


def variance_bars(study: Crossed) -> Drawing | None:
    """Draw the variance shares with their intervals."""
    if study.shares is None:
        return None
    result = study.shares
    frame = pd.DataFrame(
        [{"name": k, "value": e.value, "low": e.low, "high": e.high} for k, e in result.shares.items()]
    )
    colours = [ROSE if k == CHAOS else BLUE if "×" not in k else GREY for k in result.shares]
    caption = (
        f"Share of the variance of the outcome with 95% intervals; {result.n} runs, {result.replicates:.1f} per cell. "
        "Blue: a seed alone; grey: interactions; red: runs with equal seeds."
    )
    return intervals(
        _named(study, "variance_shares"), "Variance shares", caption, frame, colours, "share of variance", True
    )


def _named(study: Crossed, figure: str) -> str:
    """Return a figure's name: a store may have crossed seeds of both modes."""
    return figure if study.name == "crossed" else f"{study.name}_{figure}"


def heat_map(study: Crossed) -> Drawing | None:
    """Draw the mean outcome of each pair of seeds of the two streams with most levels."""
    two = sorted(study.factors, key=lambda name: -len(np.unique(study.factors[name])))[:2]
    if len(two) < 2:
        return None
    a, b = two
    first, second = (f"seed_{study.streams[name]}" for name in two)
    table = study.rows.pivot_table(index=first, columns=second, values="y", aggfunc="mean")
    table = table.loc[table.mean(axis=1).sort_values().index, table.mean(axis=0).sort_values().index]
    result = study.outcome
    values = table.to_numpy()
    shown = values if result.is_loss else np.exp(values) if result.is_time else special.expit(-values)
    figure, axes = canvas(height=min(5.0, 1.6 + 0.22 * len(table)))
    axes.grid(visible=False)
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    logarithmic = result.is_time and low > 0
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(shown),
        cmap=SEQUENTIAL if result.is_time or result.is_loss else SEQUENTIAL.reversed(),
        edgecolors=LIGHT["paper"],
        linewidth=0.8,
        norm="log" if logarithmic else None,
    )
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks([])
    best = "lowest" if result.is_loss else "fastest"
    axes.set_xlabel(f"{b} seeds, {best} on the left")
    axes.set_ylabel(f"{a} seeds, {best} on top")
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    ticks = np.geomspace(low, high, 4) if logarithmic else np.linspace(low, high, 4)
    bar.set_ticks(ticks, labels=[f"{v:,.0f}" if result.is_time else f"{v:.3g}" for v in ticks])
    bar.ax.minorticks_off()
    if result.is_loss:
        label, what = "validation loss", f"mean {result.name}"
    elif result.is_time:
        label, what = "mean step of generalisation", "geometric mean of the step of generalisation"
    else:
        label, what = "accuracy", "mean accuracy at the horizon"
    bar.set_label(label, color=SOFT)
    caption = f"Each square: {what} of one {a} seed and one {b} seed ({len(study.rows)} runs)."
    data = table.reset_index().melt(id_vars=first, value_name="mean outcome")
    return Drawing(_named(study, "heat_map"), f"{a.capitalize()} seeds against {b} seeds", caption, figure, data)


def layer_shares(study: Layers) -> Drawing | None:
    """Draw each layer's Shapley share with its interval, in rows for each set of layers; None where none adds up."""
    results = [r for r in study.results if r.adds_up]
    if not results:
        return None
    frame = study.shares.rename(columns={"Shapley share": "value"})
    control = "no bit changed"
    frame = frame[["transplant", "layer", "value", "low", "high", control]]
    sets: dict[frozenset[str], list[Transplant]] = {}
    for result in results:
        sets.setdefault(frozenset(result.transplant.factors), []).append(result.transplant)
    hues = SERIES[:-1]  # the last one is that of controls
    few = len(results) <= len(hues)
    whose = {r.transplant.name: r.transplant.name if few else r.transplant.recipient for r in results}
    counts = Counter(whose.values())
    named = list(counts) if len(counts) <= len(hues) else []
    colours = {name: SERIES[named.index(who)] if who in named else BLUE for name, who in whose.items()}
    labels = named if few else [f"{name} ← {counts[name]} donor{'s' * (counts[name] > 1)}" for name in named]

    line = 0.14 if few else 0.09
    heights = {names: 0.22 + line * len(ones) for names, ones in sets.items()}
    inches = sum(len(names) * height for names, height in heights.items())
    figure, axes = canvas(height=max(2.0, 1.0 + inches + 0.17 * len(labels)))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color=SOFT, linewidth=0.8)
    top, middles = 0.0, {}
    for number, (names, ones) in enumerate(sorted(sets.items(), key=lambda item: (-len(item[1]), len(item[0])))):
        if number:
            axes.axhline(top, color=LINE, linewidth=0.8)
        here = frame[frame["transplant"].isin([t.name for t in ones])]
        size = here["value"].abs().groupby(here["layer"]).mean().sort_values(ascending=False)
        for layer in size.index:
            middles[number, layer] = top - heights[names] / 2
            rows = here[here["layer"] == layer].set_index("transplant").loc[[t.name for t in ones]]
            y = top - 0.11 - line * (np.arange(len(ones)) + 0.5)
            shades = [
                GREY if c is not None and not pd.isna(c) and bool(c) else colours[n] for n, c in rows[control].items()
            ]
            axes.hlines(y, rows["low"], rows["high"], colors=shades, linewidth=3 if few else 2, alpha=0.35)
            axes.scatter(rows["value"], y, s=28 if few else 14, color=shades, zorder=3, edgecolors="none")
            top -= heights[names]
    for i, label in enumerate(labels):
        axes.annotate(
            label,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 4 + 12 * (len(labels) - 1 - i)),
            textcoords="offset points",
            color=SERIES[i],
            fontsize=SMALL,
        )
    axes.set_yticks(list(middles.values()), [fill(layer, 20, break_long_words=False) for _, layer in middles])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(top, 0)
    _factor_ticks(axes, float(frame["low"].min()), float(frame["high"].max()))
    if study.is_time:
        axes.set_xlabel("ratio of times\n(left of 1: faster with the donor's weights)")
    else:
        axes.set_xlabel("ratio of the odds of a wrong answer\n(left of 1: better with the donor's weights)")
    caption = (
        "Shapley share of each layer's initial weights with 95% intervals, one point per transplant (recipient "
        "← donor). The shares of a transplant multiply to its total. Grey: negative controls, layers that start "
        "constant."
    )
    if not few:
        caption += " One colour per recipient." if named else ""
        caption += " Transplants in which other layers were exchanged have rows of their own." * (len(sets) > 1)
    return Drawing("layer_shares", "What each layer's initial weights contribute", caption, figure, frame)


def _factor_ticks(axes: Axes, low: float, high: float) -> None:
    """Label an axis of log ratios by the ratios."""
    decades = (high - low) / np.log(10)
    if decades > 3:
        every = int(np.ceil(decades / 4))
        powers = [p for p in range(-every * 20, every * 20 + 1, every) if low <= p * np.log(10) <= high]
        labels = [f"{10.0**p:,.0f}" if p >= 0 else f"{10.0**p:g}" for p in powers]
        axes.set_xticks(np.log(10) * np.array(powers), labels)
        return
    ratios = [0.05, 0.1, 0.2, 0.33, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2, 3, 5, 10, 20]
    shown = [r for r in ratios if low - 0.05 <= np.log(r) <= high + 0.05]
    while len(shown) > 7:
        shown = [r for i, r in enumerate(shown) if r == 1.0 or (i - shown.index(1.0)) % 2 == 0]
    axes.set_xticks(np.log(shown), [f"{r:g}" for r in shown])


def repeat_kinds(study: Repeats) -> Drawing | None:
    """Draw the share of repeats that hit again for each kind of repeat; None for a single kind."""
    if len(study.tests) < 2:
        return None
    frame = pd.DataFrame(
        [
            {"name": t.name, "value": e.value, "low": e.low, "high": e.high, "candidates": len(t.units), "repeats": e.n}
            for t in study.tests
            for e in [t.result.pooled]
        ]
    )
    colours = [ROSE if not t.free else BLUE if len(t.kind.fixed) == 1 else AMBER for t in study.tests]
    caption = (
        f"Share of the candidates' repeats that are {study.tests[0].kind.hit.words} again, with 95% intervals. Red: "
        "all seeds are kept, only the rounding differs. Amber: the two named streams are kept, the third is "
        "redrawn. Blue: one stream is kept."
    )
    return intervals("repeat_kinds", "Repeats by what is kept", caption, frame, colours, "share of repeats", True)


MOST_CANDIDATES = 30
"""Largest number of candidates in the figure; its csv has all."""


def repeat_candidates(study: Repeats) -> Drawing:
    """Draw, for the first kind of repeat, each candidate's share of hits and the share of other seeds."""
    test = study.tests[0]
    names = test.units["candidate"].str.replace(
        r"(?<=[a-z]) ", "\u00a0", regex=True
    )  # a line never ends within `init 4711`
    frame = test.units.assign(name=names, value=test.units["share"])
    shown = frame.head(MOST_CANDIDATES)
    called = shown["verdict"].isin([MOST_REPEATS, MORE_OFTEN])
    caption = (
        f"How often each candidate was {test.kind.hit.words} again ({test.kind.change}), with exact 95% intervals. "
        "Green: more often than other seeds, at a false-discovery rate of 5%. The run that chose a candidate is not "
        "counted."
    )
    base = next((c.base for c in test.result.candidates if c.base is not None), None)
    if base is not None:
        caption += f" Band: other seeds, {base.percent()}."
    colours = [TEAL if yes else GREY for yes in called]
    label = f"share of repeats that are {test.kind.hit.words}"
    made = intervals("repeat_candidates", "Repeats of each candidate", caption, shown, colours, label, True)
    axes = made.figure.axes[0]
    axes.set_xlim(-0.01, 1.02)
    if base is not None:
        axes.axvspan(base.low, base.high, color=BLUE, alpha=0.18, linewidth=0)
    return Drawing(made.name, made.title, made.caption, made.figure, test.units)


def prediction_curve(study: Prediction) -> Drawing:
    """Draw the cross-validated AUROC by the step of prediction."""
    looks = study.looks
    figure, axes = canvas()
    axes.fill_between(looks["step"], looks["low"], looks["high"], color=BLUE, alpha=0.16, linewidth=0)
    axes.plot(looks["step"], looks["auroc"], color=BLUE, marker="o", markersize=4)
    axes.axhline(0.5, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.annotate("chance", (1, 0.5), xycoords=("axes fraction", "data"), xytext=(-2, 4),
                  textcoords="offset points", ha="right", fontsize=SMALL, color=SOFT)  # fmt: skip
    axes.set_ylim(min(0.4, float(looks["low"].min()) - 0.02), 1.02)
    axes.set_xlim(0, float(looks["step"].max()) * 1.04)
    axes.set_ylabel("AUROC")
    steps_axis(axes, "step of the prediction")
    caption = f"Out-of-fold AUROC with 95% intervals for seeds {study.meaning}."
    band = chart.Band("AUROC", BLUE, looks.rename(columns={"step": "x", "auroc": "value"}))
    answer = chart.Chart(
        chart.Axis("step of the prediction", 0, float(looks["step"].max()) * 1.04),
        chart.Axis("AUROC", min(0.4, float(looks["low"].min()) - 0.02), 1.02),
        (chart.Rule("y", 0.5, "chance"), band),
    )
    return Drawing("prediction", "AUROC by the step of the prediction", caption, figure, looks, charts=(answer,))
