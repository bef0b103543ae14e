"""A chart as data: its axes and what is drawn on them.

A chart is declared once. ``render`` draws it by matplotlib, the page's scripts draw it in a browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

SOFT = "#6b7480"
"""Colour of rules: the palette's ``soft``."""


@dataclass(frozen=True)
class Axis:
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
class Lines:
    """One line per run, from the columns ``run_id``, ``step``, ``x`` and ``y`` of a frame sorted by run and step."""

    group: str
    colour: str
    frame: pd.DataFrame
    x: str
    y: str
    drawn: frozenset[str]
    """Runs that are always drawn; the others are drawn while they are highlighted on the page."""
    alpha: float = 0.6
    width: float = 1.0
    dash: Literal["solid", "dashed", "dotted"] = "solid"


@dataclass(frozen=True)
class Points:
    """One point per row, from the columns ``x`` and ``y``, and ``run_id`` if each is a run.

    A column ``times`` says how many runs lie at that place: the area is in proportion.
    """

    group: str
    colour: str
    frame: pd.DataFrame
    size: float = 14.0
    """Area in square points."""
    marker: Literal["o", "|"] = "o"


@dataclass(frozen=True)
class Bars:
    """Counts by bin, from the columns ``low``, ``high`` and ``count``; groups of one bin are stacked."""

    group: str
    colour: str
    frame: pd.DataFrame


@dataclass(frozen=True)
class Band:
    """A curve with its interval, from the columns ``x``, ``value``, ``low`` and ``high``."""

    group: str
    colour: str
    frame: pd.DataFrame
    stairs: bool = False


@dataclass(frozen=True)
class Intervals:
    """Values with their intervals, from the columns ``place`` (on the other axis), ``value``, ``low`` and ``high``.

    A column ``bound`` is 1 where the value is at least, and -1 where it is at most what is drawn (else 0).
    """

    group: str
    colour: str
    frame: pd.DataFrame
    vertical: bool = False
    size: float = 30.0
    """Area of the point in square points; the interval's line is thinner for smaller points."""


@dataclass(frozen=True)
class Rule:
    """A dashed line across the chart at ``at`` of the axis ``axis`` (x or y), or the diagonal."""

    axis: Literal["x", "y", "diagonal"]
    at: float = 0.0
    label: str = ""
    colour: str = SOFT
    until: float | None = None
    """Other end of a strip, which is drawn in place of the line."""


@dataclass(frozen=True)
class Cells:
    """A matrix of values as coloured cells, its first row on top; ``best`` names the end that is green."""

    values: pd.DataFrame
    label: str
    best: Literal["low", "high"] = "low"
    log: bool = False


@dataclass(frozen=True)
class Surface:
    """Values over two axes, linear between the points, from the columns ``x``, ``y`` and ``value``."""

    frame: pd.DataFrame
    label: str
    best: Literal["low", "high"] = "low"


Layer = Lines | Points | Bars | Band | Intervals | Rule | Cells | Surface


@dataclass(frozen=True)
class Chart:
    """Axes, and layers from back to front. Layers of one group share a place in the legend."""

    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    marks: pd.Series | None = None
    """Place of each run (index: run_id) on the x axis of a chart of counts or shares."""
    title: str = ""
    """Name of the chart among others of the same figure."""
    height: float = 2.4
    """Height in inches, of the axes with their numbers."""

    @property
    def drawn(self) -> int:
        """The number of runs that are drawn: lines, points, or those that bars count."""
        named: set[str] = set()
        counted = 0
        for layer in self.layers:
            if isinstance(layer, Lines):
                named |= layer.drawn & set(layer.frame["run_id"])
            elif isinstance(layer, Points) and "run_id" in layer.frame:
                named |= set(layer.frame["run_id"])
            elif isinstance(layer, Bars):
                counted += int(layer.frame["count"].sum())
        return max(len(named), counted)


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
