"""The content of an interactive chart as data: run, step and value of each line, point and bar.

The page's scripts draw a chart from it, with the same numbers as the matplotlib figure.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Axis:
    """One axis with its ends ``low`` and ``high``."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False
    """The axis has counts: ticks only at whole numbers."""
    linear_until: float | None = None
    """The axis is linear below this value and logarithmic above; None: ``log`` decides."""


@dataclass(frozen=True)
class Lines:
    """One line per run, from the columns ``run_id``, ``step``, ``x`` and ``y`` of a frame sorted by run and step."""

    group: str
    colour: str
    frame: pd.DataFrame
    x: str
    y: str
    drawn: frozenset[str]
    """Runs that are always drawn; the others are drawn while they are highlighted."""
    alpha: float = 0.6
    width: float = 1.0


@dataclass(frozen=True)
class Points:
    """One point per run, from the columns ``run_id``, ``x`` and ``y``. Without a group it has no legend."""

    group: str
    colour: str
    frame: pd.DataFrame


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
class Rule:
    """A dashed line across the chart at ``at`` of the axis ``axis`` (x or y), or the diagonal."""

    axis: str
    at: float
    label: str = ""


Layer = Lines | Points | Bars | Band | Rule


@dataclass(frozen=True)
class Chart:
    """Axes, and layers from back to front."""

    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    marks: pd.Series | None = None
    """Place of each run (index: run_id) on the x axis of a chart of counts or shares."""
