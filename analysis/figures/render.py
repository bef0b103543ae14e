"""Draws declared charts by matplotlib: panels, legends, axes and layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from grok.analysis.figures import style

SEQUENTIAL = LinearSegmentedColormap.from_list("speed", ["#13816e", "#e9e3d2", "#c67e1b"])
"""Colours from best to worst. None is a colour of the palette, so a dark page does not replace them."""
NAME_WIDTH: Final = 24
"""Largest number of characters in a line of a name beside an axis."""
LINE: Final = 0.18
"""Height of a line of text in inches."""
HANDLE: Final = 0.4
"""Inches of a legend's entry beside its text."""
MARGIN: Final = 0.75
"""Inches beside the axes of a panel."""
DASHES: Final[dict[str, Any]] = {"solid": "solid", "dashed": (0, (4, 2)), "dotted": (0, (1, 1.5))}
RULE: Final = (0, (3, 3))
MANY: Final = 500
"""Number of points above which they are smaller and fainter."""


def draw(
    name: str,
    title: str,
    caption: str,
    charts: Sequence[style.Chart],
    data: pd.DataFrame,
    count: str = "",
    *,
    columns: int = 1,
    width: float = style.WIDTH,
) -> style.Drawing:
    """Return the figure with a panel for each of ``charts``.

    ``count``: the sample size, such as ``64 seeds``.
    """
    rows = -(-len(charts) // columns)
    with mpl.rc_context(style.RC):
        rooms = [width / columns - _beside(chart) for chart in charts]
        legends = [
            _legend(chart, room, charts[0] if i else None)
            for i, (chart, room) in enumerate(zip(charts, rooms, strict=True))
        ]
        inches = [chart.height + LINE * lines for chart, (_, lines) in zip(charts, legends, strict=True)]
        heights = [max(inches[i : i + columns]) for i in range(0, len(charts), columns)]
        figure = Figure(figsize=(width, sum(heights) + 0.4), dpi=style.DPI, layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
        for axes in list(grid.flat)[len(charts) :]:
            axes.set_visible(False)
        for i, (axes, chart, (options, _)) in enumerate(zip(grid.flat, charts, legends, strict=False)):
            _panel(axes, chart, rooms[i])
            if options:
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, borderpad=0.3, **options)
            if i % columns and chart.y == charts[i - i % columns].y:
                axes.tick_params(labelleft=False)
                axes.set_ylabel("")
            if i + columns < len(charts) and chart.x == charts[i + columns].x:
                axes.tick_params(labelbottom=False)
                axes.set_xlabel("")
        return style.Drawing(name, title, caption, figure, data, count, tuple(charts))


def _beside(chart: style.Chart) -> float:
    """Return the inches beside the axes of a panel: numbers and a label, or names."""
    names = [row_name(name) for name in (chart.y.ticks or {}).values()]
    return max([MARGIN, *(0.3 + style.text_width(name, FontProperties(size=style.SMALL)) for name in names if name)])


def row_name(name: str) -> str:
    """Return a name beside or below an axis in short lines, unless it has lines already."""
    return name if "\n" in name else fill(name, NAME_WIDTH, break_long_words=False)


def _groups(chart: style.Chart) -> dict[str, tuple[str, Line2D]]:
    """Return colour and legend's handle by the group's name; the last layer of a group gives them."""
    made = {}
    for layer in chart.layers:
        if isinstance(layer, style.Rule | style.Cells) or not layer.group:
            continue
        if isinstance(layer, style.Points | style.Bars):
            marker = "s" if isinstance(layer, style.Bars) else layer.marker
            handle = Line2D([], [], color=layer.colour, linestyle="none", marker=marker, markersize=5.5)
        else:
            dash: Any = DASHES[layer.dash] if isinstance(layer, style.Lines) else "solid"
            point = "o" if isinstance(layer, style.Intervals) else ""
            handle = Line2D([], [], color=layer.colour, linewidth=1.8, linestyle=dash, marker=point, markersize=5)
        made[layer.group] = (layer.colour, handle)
    return made


def _legend(chart: style.Chart, room: float, first: style.Chart | None) -> tuple[dict[str, Any], int]:
    """Return the options of a chart's legend (none: it has no legend) and its lines of text.

    A chart with the same groups as the ``first`` of its figure has only its title.
    """
    groups = _groups(chart)
    colours = {name: colour for name, (colour, _) in groups.items()}
    if first is not None and colours == {name: colour for name, (colour, _) in _groups(first).items()}:
        groups = {}
    font = FontProperties(size=style.SMALL)
    title = fill(chart.title, max(12, int(room * 14)))
    names = [style.wrapped(name, room - HANDLE, font) for name in groups]
    handles = [handle for _, handle in groups.values()]
    if not names:
        return ({"handles": [], "title": title, "alignment": "left"} if title else {}), title.count("\n") + 1
    columns = next(n for n in range(len(names), 0, -1) if n == 1 or _width(names, n, font) <= room)
    lines = max(sum(name.count("\n") + 1 for name in part) for part in np.array_split(names, columns))
    options: dict[str, Any] = {
        "ncols": columns,
        "columnspacing": 1.0,
        "handlelength": 1.2,
        "handletextpad": 0.5,
        "labelspacing": 0.3,
    }
    if title:
        options |= {"title": title, "alignment": "left"}
    return options | {"handles": handles, "labels": names}, int(lines) + bool(title) * (title.count("\n") + 1)


def _width(names: list[str], columns: int, font: FontProperties) -> float:
    """Return the width in inches of a legend with these names in so many columns."""
    return float(
        sum(max(style.text_width(name, font) for name in part) + HANDLE for part in np.array_split(names, columns))
    )


def _panel(axes: Axes, chart: style.Chart, room: float) -> None:
    _axis(axes, "x", chart.x, room)
    _axis(axes, "y", chart.y, chart.height - 0.6)
    axes.set_xlim(chart.x.low, chart.x.high)  # before any label is placed
    axes.set_ylim(chart.y.low, chart.y.high)
    axes.autoscale(enable=False)
    named, coloured = chart.y.ticks is not None, any(isinstance(layer, style.Cells) for layer in chart.layers)
    axes.grid(visible=named and not coloured, axis="x")
    axes.grid(visible=not named and not coloured, axis="y")
    base: dict[float, float] = {}
    ruled = 0
    for z, layer in enumerate(chart.layers, 2):
        if isinstance(layer, style.Bars):
            _bars(axes, layer, base, z)
        elif isinstance(layer, style.Rule):
            _rule(axes, layer, ruled, z, chart)
            ruled += bool(layer.label and layer.axis == "x")
        else:
            PAINTERS[type(layer)](axes, layer, z)


def _axis(axes: Axes, side: str, axis: style.ChartAxis, room: float) -> None:
    """Scale and label one axis; ``room`` in inches."""
    drawn = axes.xaxis if side == "x" else axes.yaxis
    most = max(3, min(7, int(room * (1.7 if side == "x" else 3))))
    options = {"linear_width": axis.linear_until} if axis.scale == "asinh" else {}
    getattr(axes, f"set_{side}scale")(axis.scale, **options)
    if axis.scale == "log":
        drawn.set_major_locator(FixedLocator(style.log_ticks(min(axis.low, axis.high), max(axis.low, axis.high), most)))
    elif axis.scale == "linear":
        drawn.set_major_locator(MaxNLocator(most, integer=axis.whole, steps=[1, 2, 2.5, 5, 10]))
    elif axis.scale == "asinh":
        drawn.set_major_locator(FixedLocator([0.0, *(axis.linear_until * 10.0 ** np.arange(8))]))
    drawn.set_minor_locator(NullLocator())
    drawn.set_major_formatter(lambda value, _: f"{value:.0%}" if axis.percent else style.number(value))
    if axis.ticks is not None:
        drawn.set_ticks(list(axis.ticks), labels=[row_name(name) for name in axis.ticks.values()])
        if side == "y":
            axes.tick_params(axis="y", labelcolor=style.INK)
    # a y label is wrapped with the whole figure, and a name without spaces is never broken
    text = style.wrapped(axis.label, room, FontProperties(size=10)) if side == "x" and " " in axis.label else axis.label
    drawn.set_label_text(text)


def _lines(axes: Axes, layer: style.Lines, z: int) -> None:
    frame = layer.frame[layer.frame["run_id"].isin(layer.drawn)].dropna(subset=[layer.x, layer.y])
    paths = [run[[layer.x, layer.y]].to_numpy(dtype=float) for _, run in frame.groupby("run_id", sort=True)]
    options = {
        "colors": layer.colour,
        "alpha": layer.alpha,
        "linewidths": layer.width,
        "linestyles": DASHES[layer.dash],
    }
    axes.add_collection(LineCollection(paths, zorder=z, **options))


def _points(axes: Axes, layer: style.Points, z: int) -> None:
    many = len(layer.frame) > MANY
    size = (layer.size / 5 if many else layer.size) * layer.frame.get("times", 1.0)
    style: Any = {"color": layer.colour} if layer.marker == "|" else {"facecolors": layer.colour, "linewidths": 0}
    axes.scatter(layer.frame["x"], layer.frame["y"], s=size, marker=layer.marker, alpha=0.5 if many else 0.8, zorder=z,
                 clip_on=False, **style)  # fmt: skip


def _bars(axes: Axes, layer: style.Bars, base: dict[float, float], z: int) -> None:
    """Draw bars upon those of the same bins, whose heights are in ``base``."""
    low, high, count = (layer.frame[name].to_numpy(dtype=float) for name in ("low", "high", "count"))
    bottom = np.array([base.get(place, 0.0) for place in low.tolist()])
    axes.bar(low + 0.05 * (high - low), count, 0.9 * (high - low), bottom, align="edge", color=layer.colour, zorder=z)
    base.update(zip(low.tolist(), (bottom + count).tolist(), strict=True))


def _band(axes: Axes, layer: style.Band, z: int) -> None:
    frame, step = layer.frame, "post" if layer.stairs else None
    options = {"color": layer.colour, "alpha": 0.16, "linewidth": 0}
    axes.fill_between(frame["x"], frame["low"], frame["high"], step=step, zorder=z, **options)  # type: ignore[arg-type]
    drawstyle = "steps-post" if layer.stairs else "default"
    axes.plot(frame["x"], frame["value"], color=layer.colour, drawstyle=drawstyle, zorder=z)


def _intervals(axes: Axes, layer: style.Intervals, z: int) -> None:
    frame = layer.frame
    across, width = (axes.vlines if layer.vertical else axes.hlines), 1.0 + layer.size / 15
    across(frame["place"], frame["low"], frame["high"], colors=layer.colour, linewidth=width, alpha=0.35, zorder=z)
    pairs = ("place", "value") if layer.vertical else ("value", "place")
    options = {"color": layer.colour, "edgecolors": "none", "zorder": z + 0.5, "clip_on": False}
    axes.scatter(frame[pairs[0]], frame[pairs[1]], s=layer.size, **options)  # type: ignore[arg-type]


def _rule(axes: Axes, layer: style.Rule, before: int, z: int, chart: style.Chart) -> None:
    """Draw a rule; its label stands lower the more labels of upright rules were ``before`` it."""
    if layer.axis == "diagonal":
        ends = [max(chart.x.low, chart.y.low), min(chart.x.high, chart.y.high)]
        axes.plot(ends, ends, color=layer.colour, linewidth=0.9, linestyle=RULE, zorder=z)
        return
    upright = layer.axis == "x"
    if layer.until is not None:
        (axes.axvspan if upright else axes.axhspan)(layer.at, layer.until, color=layer.colour, alpha=0.18, linewidth=0)
        return
    (axes.axvline if upright else axes.axhline)(
        layer.at, color=layer.colour, linewidth=0.9, linestyle=RULE, zorder=z)  # fmt: skip
    if not layer.label:
        return
    box = {"facecolor": style.PAPER, "edgecolor": "none", "alpha": 0.7, "pad": 0.8}
    options: dict[str, Any] = {"color": layer.colour, "fontsize": style.SMALL, "zorder": 90, "bbox": box}
    if upright:
        right = axes.transAxes.inverted().transform(axes.transData.transform((layer.at, 1.0)))[0] > 0.6
        axes.annotate(layer.label, (layer.at, 1), (-4 if right else 4, -3 - 12 * before), ("data", "axes fraction"),
                      "offset points", ha="right" if right else "left", va="top", **options)  # fmt: skip
    else:
        above = axes.transAxes.inverted().transform(axes.transData.transform((chart.x.high, layer.at)))[1] <= 0.5
        axes.annotate(layer.label, (1, layer.at), (-3, 3 if above else -3), ("axes fraction", "data"), "offset points",
                      ha="right", va="bottom" if above else "top", **options)  # fmt: skip


def _cells(axes: Axes, layer: style.Cells, z: int) -> None:
    values = layer.values.to_numpy(dtype=float)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    log = layer.log and low > 0
    colours = SEQUENTIAL if layer.best == "low" else SEQUENTIAL.reversed()
    mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap=colours, edgecolors=style.PAPER, linewidth=0.8,
                           norm="log" if log else None, zorder=z)  # fmt: skip
    ticks = np.geomspace(low, high, 4) if log else np.linspace(low, high, 4)
    bar: Any = axes.figure.colorbar(mesh, ax=axes, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.set_label(layer.label, color=style.SOFT)
    bar.ax.minorticks_off()
    bar.set_ticks(ticks, labels=[style.number(float(f"{tick:.3g}")) for tick in ticks])


PAINTERS: Final[dict[type[style.Layer], Callable[[Axes, Any, int], None]]] = {
    style.Lines: _lines,
    style.Points: _points,
    style.Band: _band,
    style.Intervals: _intervals,
    style.Cells: _cells,
}
