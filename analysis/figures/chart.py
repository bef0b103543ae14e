"""What a figure shows, as data that a page draws and points at: which run, which step, which value.

A chart stands beside the drawing of the same numbers by matplotlib. Nothing is drawn here.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Axis:
    """One axis. ``low`` and ``high`` are its ends."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False
    """Counts: no ticks between whole numbers."""
    linear_until: float | None = None
    """From here on the axis is logarithmic, below it linear; None: it is what ``log`` says."""


@dataclass(frozen=True)
class Lines:
    """One line per run, from the columns ``run_id``, ``step``, ``x`` and ``y`` of a frame sorted by run and step."""

    group: str
    colour: str
    frame: pd.DataFrame
    x: str
    y: str
    drawn: frozenset[str]
    """Runs that are always seen; the others are drawn while they are highlighted."""
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
    """Axes, and what is drawn between them from back to front."""

    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    marks: pd.Series | None = None
    """Where each run (index: run_id) stands on the x axis of a chart of counts or shares."""
