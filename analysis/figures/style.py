"""One look for every figure: size, palette, fonts, and files that come out the same every time.

Figures are drawn once, in light colours. Each colour of the palette has a dark partner;
in the SVG every palette colour becomes a CSS variable with the light value as fallback,
so that a page (or the SVG by itself) turns dark without a second drawing.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

PALETTE: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#22262b", "#e6e8ea"),
    "soft": ("#6b7480", "#9aa4af"),
    "line": ("#d4d9de", "#3a424b"),
    "paper": ("#fefefd", "#15191e"),
    "grey": ("#9aa5b1", "#6f7c8a"),
    "blue": ("#3566a8", "#7aa7e0"),
    "amber": ("#c77d1a", "#e9a94c"),
    "teal": ("#12806f", "#4cc2ac"),
    "rose": ("#b8405e", "#e8809a"),
    "violet": ("#6f57a8", "#a995e0"),
}
"""Name of a colour: (light, dark)."""

LIGHT: Final = {name: light for name, (light, _) in PALETTE.items()}
INK, SOFT, LINE, PAPER = LIGHT["ink"], LIGHT["soft"], LIGHT["line"], LIGHT["paper"]
GREY, BLUE, AMBER, TEAL, ROSE, VIOLET = (LIGHT[n] for n in ("grey", "blue", "amber", "teal", "rose", "violet"))
SERIES: Final = (BLUE, AMBER, TEAL, ROSE, VIOLET, GREY)
CLASS_COLOURS: Final = {
    "super": TEAL,
    "super by time": TEAL,
    "fast": AMBER,
    "normal": GREY,
    "diverged": ROSE,
    "not judged": LINE,
}

WIDTH, HEIGHT = 5.0, 3.2
"""Inches; small, so that text stays readable when a phone scales the figure down."""
DPI: Final = 200

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
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
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "patch.linewidth": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "grok",
    "path.simplify_threshold": 0.3,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure: the picture, what it shows, and the numbers behind it."""

    name: str
    title: str
    caption: str
    figure: Figure
    data: pd.DataFrame

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        return self.png()

    def png(self) -> bytes:
        """Return the PNG, light."""
        out = io.BytesIO()
        with mpl.rc_context(RC):
            FigureCanvasAgg(self.figure).print_png(out, metadata={"Software": None})  # type: ignore[no-untyped-call]
            self.figure.set_layout_engine("none")  # it stays as it is: computing it again for the SVG costs as much
        return out.getvalue()

    def write(self, folder: Path) -> None:
        """Write NAME.png, NAME.svg and NAME.csv into ``folder``."""
        (folder / f"{self.name}.png").write_bytes(self.png())
        (folder / f"{self.name}.svg").write_text(self.standalone_svg(), encoding="utf-8")
        self.data.to_csv(folder / f"{self.name}.csv", index=False)

    @cached_property
    def svg(self) -> str:
        """The SVG element, its colours as CSS variables ``--f-NAME`` and its ids made unique by name."""
        out = io.StringIO()
        with mpl.rc_context(RC):
            FigureCanvasSVG(self.figure).print_svg(out, metadata={"Date": None})  # type: ignore[no-untyped-call]
        text = out.getvalue()
        text = text[text.index("<svg") :]
        for name, (light, _) in PALETTE.items():
            text = text.replace(light, f"var(--f-{name}, {light})")
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = text.replace("url(#", f"url(#{self.name}-").replace('href="#', f'href="#{self.name}-')
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        return text.strip()

    def standalone_svg(self) -> str:
        """Return the SVG as a file of its own, dark where the viewer prefers dark."""
        dark = "".join(f"--f-{name}:{value};" for name, (_, value) in PALETTE.items())
        style = f"<style>@media (prefers-color-scheme: dark){{svg{{{dark}}}}}</style>"
        head, body = self.svg.split(">", 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{head}>{style}{body}\n'


def canvas(width: float = WIDTH, height: float = HEIGHT, rows: int = 1, columns: int = 1, **given: Any) -> Any:
    """Return (figure, axes). To be called under ``RC``, as ``figures.drawings`` does; no global state is touched."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    return figure, figure.subplots(rows, columns, **given)


def direct_label(axes: Axes, x: float, y: float, text: str, colour: str, **given: Any) -> None:
    """Write ``text`` beside its line instead of in a legend."""
    options = {"fontsize": 8.5, "va": "center", "ha": "left", **given}
    box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axes.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", color=colour, bbox=box, **options)


def steps_axis(axes: Axes, label: str = "step") -> None:
    """Write steps with thousands separators."""
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(label)


def log_axis(axis: Axis) -> None:
    """Make an axis logarithmic with labels at 1, 2 and 5, so that one decade has more than one number."""
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
