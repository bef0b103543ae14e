"""The content of a chart as data, the common style of all figures, and files that are equal for equal data.

Figures are drawn once, in light colours. Each colour of the palette has a dark partner. In the
SVG every palette colour is a CSS variable with the light value as fallback, so that a page (or
the SVG alone) can be dark without a second drawing.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, Final, Literal, Self

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from grok.analysis.statistics.estimate import write_csv
from grok.errors import ConfigError
from grok.untrusted import unlinked

# A chart as data: its axes and what is drawn on them.
#
# A chart is declared once. ``render`` draws it by matplotlib, the page's scripts draw it in a browser.

CHART_SOFT = "#6b7480"
"""Colour of rules: the palette's ``soft``."""


@dataclass(frozen=True)
class ChartAxis:
    """One axis with its ends ``low`` and ``high``."""

    label: str
    low: float
    high: float
    scale: Literal["linear", "log", "logit", "asinh"] = "linear"
    """``asinh``: linear below ``linear_until`` and logarithmic above."""
    linear_until: float = 10.0
    percent: bool = False
    whole: bool = False
    """The axis has counts: ticks only at whole numbers."""
    ticks: Mapping[float, str] | None = None
    """Names by their place; None: numbers that fit the scale."""

    @classmethod
    def around(cls, label: str, *values: Any, **options: Any) -> Self:
        """Return an axis whose ends are those of all finite ``values`` with a margin of 4%."""
        every = np.concatenate([np.ravel(np.asarray(v, dtype=float)) for v in values])
        log = options.get("scale") == "log"
        every = every[np.isfinite(every) & ((every > 0) | (not log))]
        low, high = (float(every.min()), float(every.max())) if len(every) else (1.0, 2.0)
        if log:
            room = (high / low) ** 0.04 if high > low else 1.5
            return cls(label, low / room, high * room, **options)
        room = 0.04 * (high - low) or 1.0
        return cls(label, low - room, high + room, **options)


@dataclass(frozen=True)
class Grouped:
    """A layer of one colour, drawn from a frame. Those of one group share a place in the legend."""

    group: str
    colour: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Lines(Grouped):
    """One line per run, from the columns ``run_id``, ``step``, ``x`` and ``y`` of a frame sorted by run and step."""

    x: str
    y: str
    drawn: frozenset[str]
    """Runs that are always drawn; the others are drawn while they are highlighted on the page."""
    alpha: float = 0.6
    width: float = 1.0
    dash: Literal["solid", "dashed", "dotted"] = "solid"


@dataclass(frozen=True)
class Points(Grouped):
    """One point per row, from the columns ``x`` and ``y``, and ``run_id`` if each is a run.

    A column ``times`` says how many runs lie at that place: the area is in proportion.
    """

    size: float = 14.0
    """Area in square points."""
    marker: Literal["o", "|"] = "o"


@dataclass(frozen=True)
class Bars(Grouped):
    """Counts by bin, from the columns ``low``, ``high`` and ``count``; groups of one bin are stacked."""


@dataclass(frozen=True)
class Band(Grouped):
    """A curve with its interval, from the columns ``x``, ``value``, ``low`` and ``high``."""

    stairs: bool = False


@dataclass(frozen=True)
class Intervals(Grouped):
    """Values with their intervals, from the columns ``place`` (on the other axis), ``value``, ``low`` and ``high``."""

    vertical: bool = False
    size: float = 30.0
    """Area of the point in square points; the interval's line is thinner for smaller points."""


@dataclass(frozen=True)
class Rule:
    """A dashed line across the chart at ``at`` of the axis ``axis`` (x or y), or the diagonal."""

    axis: Literal["x", "y", "diagonal"]
    at: float = 0.0
    label: str = ""
    colour: str = CHART_SOFT
    until: float | None = None
    """Other end of a strip, which is drawn in place of the line."""


@dataclass(frozen=True)
class Cells:
    """A matrix of values as coloured cells, its first row on top; ``best`` names the end that is green."""

    values: pd.DataFrame
    label: str
    best: Literal["low", "high"] = "low"
    log: bool = False


Layer = Lines | Points | Bars | Band | Intervals | Rule | Cells


@dataclass(frozen=True)
class Chart:
    """Axes, and layers from back to front."""

    x: ChartAxis
    y: ChartAxis
    layers: tuple[Layer, ...]
    marks: pd.Series | None = None
    """Place of each run (index: run_id) on the x axis of a chart of counts or shares."""
    title: str = ""
    """Name of the chart among others of the same figure."""
    height: float = 2.4
    """Height in inches, of the axes with their numbers."""


def number(value: float) -> str:
    """Return a number as on an axis.

    >>> number(2500.0), number(0.25), number(3e6), number(1e-7)
    ('2,500', '0.25', '3M', '1e-07')
    """
    if abs(value) >= 1e6:
        return f"{value / 1e9:.4g}G" if abs(value) >= 1e9 else f"{value / 1e6:.4g}M"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.4g}"


def of_all(drawn: int, every: int) -> str:
    """Return how many of all are drawn.

    >>> of_all(60, 1984), of_all(12, 12)
    ('60 of 1,984', '12')
    """
    return f"{drawn:,} of {every:,}" if drawn < every else f"{every:,}"


# The common style of all figures: size, palette, fonts, and files that are equal for equal data.

PALETTE: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#22262b", "#e6e8ea"),
    "soft": ("#6b7480", "#9aa4af"),
    "line": ("#d4d9de", "#3a424b"),
    "paper": ("#fefefd", "#15191e"),
    "grey": ("#8a949f", "#66707b"),
    "blue": ("#3061dd", "#8fb6fb"),
    "amber": ("#a87200", "#f1c04f"),
    "teal": ("#0a5a49", "#2db8a4"),
    "rose": ("#c2447a", "#fb7050"),
    "violet": ("#51297e", "#a172fc"),
}
"""(light, dark) by the colour's name.

The six colours of series are distinguishable also with a colour vision deficiency, mostly by
their lightness; a test checks this.
"""

LIGHT: Final = {name: light for name, (light, _) in PALETTE.items()}
INK, SOFT, LINE, PAPER = LIGHT["ink"], LIGHT["soft"], LIGHT["line"], LIGHT["paper"]
GREY, BLUE, AMBER, TEAL, ROSE, VIOLET = (LIGHT[n] for n in ("grey", "blue", "amber", "teal", "rose", "violet"))
SERIES: Final = (BLUE, AMBER, TEAL, ROSE, VIOLET, GREY)
CLASS_COLOURS: Final = {
    "super": TEAL,
    "fast": AMBER,
    "normal": GREY,
    "diverged": ROSE,
    "not judged": LINE,
}

WIDTH, HEIGHT = 4.4, 3.2
"""Inches; small, so that text stays readable when a phone scales the figure down."""
DPI: Final = 200
SMALL: Final = 9.5
"""Font size of labels inside a figure, in points."""
TITLE_WIDTH: Final = 50
"""Largest number of characters in a line of a title."""

NARROWEST_LINE: Final = 8
"""Smallest number of characters in a line of a title or a label."""

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": LINE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "text.color": INK,
    "text.parse_math": False,  # names may have a dollar sign, which matplotlib would parse as a formula
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "patch.linewidth": 0,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "grok",
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure: the picture, its title and caption, and its numbers."""

    name: str
    title: str
    caption: str
    figure: Figure
    data: pd.DataFrame
    count: str = ""
    """The sample size, such as ``64 seeds``, which is added to the title of the picture."""
    charts: tuple[Chart, ...] = ()
    """Interactive charts of the same numbers for the page; if empty, the page shows the picture."""

    def __post_init__(self) -> None:
        if not isinstance(self.figure, Figure):
            raise ConfigError(
                f"the figure of the Drawing {self.name!r} is a {type(self.figure).__name__}: expected a matplotlib "
                "Figure, such as the first of figure, axes = canvas()"
            )
        count = f"(n = {self.count})".replace(" ", "\N{NO-BREAK SPACE}")  # on one line
        title = f"{self.title} {count}" if self.count else self.title
        width, height = self.figure.get_size_inches()
        with mpl.rc_context(RC):
            style = FontProperties(size=10.5, weight="bold")
            lines = wrapped(title, 0.98 * width, style, TITLE_WIDTH)
            self.figure.suptitle(lines, x=0.01, ha="left", fontproperties=style)
            for axes in self.figure.axes:
                place, label = axes.get_subplotspec(), axes.yaxis.label
                rows = place.get_gridspec().nrows / len(place.rowspan) if place else 1
                room = 0.8 * height / rows - 0.17 * lines.count("\n")
                label.set_text(wrapped(label.get_text(), room, label.get_fontproperties()))

    @property
    def numbers(self) -> bytes:
        """What is drawn, without its names: figures of equal numbers show the same."""
        return self.data.select_dtypes("number").to_numpy().tobytes()

    def _repr_png_(self) -> bytes:
        """Return the PNG that a notebook shows."""
        return self.png()

    def png(self) -> bytes:
        """Return the PNG, in light colours."""
        out = io.BytesIO()
        with mpl.rc_context(RC):
            FigureCanvasAgg(self.figure).print_png(out, metadata={"Software": None})  # type: ignore[no-untyped-call]
            self.figure.set_layout_engine("none")  # keep the layout: the SVG would compute it again
        return out.getvalue()

    def write(self, folder: Path) -> None:
        """Write NAME.png, NAME.svg and NAME.csv into ``folder``."""
        unlinked(folder / f"{self.name}.png").write_bytes(self.png())
        unlinked(folder / f"{self.name}.svg").write_text(self.standalone_svg(), encoding="utf-8")
        write_csv(self.data, unlinked(folder / f"{self.name}.csv"))

    @cached_property
    def svg(self) -> str:
        """The SVG element, with its colours as CSS variables ``--f-NAME`` and the figure's name in its ids."""
        out = io.StringIO()
        with mpl.rc_context(RC):
            FigureCanvasSVG(self.figure).print_svg(out, metadata={"Date": None})  # type: ignore[no-untyped-call]
        text = out.getvalue()
        text = numbered(text[text.index("<svg") :])
        for name, (light, _) in PALETTE.items():
            text = text.replace(light, f"var(--f-{name}, {light})")
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = text.replace("url(#", f"url(#{self.name}-").replace('href="#', f'href="#{self.name}-')
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        return text.strip()

    def standalone_svg(self) -> str:
        """Return the SVG as a file in light colours, without variables: programs that make a PDF of it know none."""
        plain = re.sub(r"var\(--f-\w+, (#\w+)\)", r"\1", self.svg)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{plain}\n'


def numbered(svg: str) -> str:
    """Return an SVG with its shapes' ids numbered: matplotlib makes them from all digits of their coordinates.

    >>> numbered('<clipPath id="p1cfb13ea98"/><path clip-path="url(#p1cfb13ea98)"/>')
    '<clipPath id="p1"/><path clip-path="url(#p1)"/>'
    """
    names = dict.fromkeys(re.findall(r'\bid="([a-zA-Z]+[0-9a-f]{10})"', svg))
    short = {name: f"{name[:-10]}{number}" for number, name in enumerate(names, 1)}
    return re.sub(r'(?<=["#])([a-zA-Z]+[0-9a-f]{10})(?=[")])', lambda found: short.get(found[0], found[0]), svg)


def canvas(width: float = WIDTH, height: float = HEIGHT, rows: int = 1, columns: int = 1, **options: Any) -> Any:
    """Return (figure, axes). Call it under ``RC``, as ``in_style`` does. It changes no global state."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def text_width(text: str, font: FontProperties) -> float:
    """Return the width of the widest line of ``text``, in inches."""
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 72


def wrapped(text: str, inches: float, font: FontProperties, most: int = 1000) -> str:
    """Return ``text`` in lines of at most ``most`` characters, fewer if lines are wider than ``inches``.

    Text that has lines already is returned as it is.
    """
    if "\n" in text:
        return text
    for characters in range(min(most, len(text)), NARROWEST_LINE, -2):
        lines = fill(text, characters)
        if text_width(lines, font) <= inches:
            return lines
    return text


APART: Final = 0.12
"""Smallest distance between two ticks of a logarithmic axis, as a share of its length."""


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return ticks of a logarithmic axis: as many digits of each decade as have room, or even steps on a short axis.

    >>> log_ticks(100, 5000, 7), log_ticks(1e-3, 5e6, 4), log_ticks(2100, 2900, 7)
    ([100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0], [0.001, 1.0, 1000.0, 1000000.0], [2200.0, 2400.0, 2600.0, 2800.0])
    """
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))

    for digits, every in (("123456789", 1), ("1235", 1), ("125", 1), ("13", 1), *(("1", n) for n in range(1, 20))):
        decades = [e for e in range(first, last + 1) if e % every == 0]
        ticks = [float(f"{digit}e{e}") for e in decades for digit in digits]
        ticks = [tick for tick in ticks if 0.999 * low <= tick <= 1.001 * high]
        if 2 <= len(ticks) <= most and min(b / a for a, b in pairwise(ticks)) >= (high / low) ** APART:
            return ticks
    return [float(v) for v in MaxNLocator(4).tick_values(low, high) if low <= v <= high]


def in_style() -> AbstractContextManager[None]:
    """Return a context manager that gives figures the report's fonts and lines."""
    return mpl.rc_context(RC)
