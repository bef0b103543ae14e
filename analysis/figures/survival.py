"""Cumulative curves of generalisation with their bands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.figures.chart import Axis, Band, Chart, Rule
from analysis.figures.evidence import qq_log_time
from analysis.figures.style import AMBER, BLUE, SERIES, SMALL, SOFT, Drawing, canvas, direct_label, steps_axis
from analysis.statistics.survival import SurvivalCurve, kaplan_meier
from analysis.studies.survival import Survival
from analysis.studies.val_shuffle import ValShuffle


def stairs(axes: Axes, curve: SurvivalCurve, end: float, colour: str) -> pd.DataFrame:
    """Draw the share generalised by each step up to ``end`` with its band; return the numbers."""
    curve = curve.until(end)
    x = np.concatenate([[0.0], curve.times, [end]])
    value = 1 - np.concatenate([[1.0], curve.survival, curve.survival[-1:] if len(curve.times) else [1.0]])
    low = 1 - np.concatenate([[1.0], curve.high, curve.high[-1:] if len(curve.times) else [1.0]])
    high = 1 - np.concatenate([[1.0], curve.low, curve.low[-1:] if len(curve.times) else [1.0]])
    axes.fill_between(x, low, high, step="post", color=colour, alpha=0.16, linewidth=0)
    axes.step(x, value, where="post", color=colour)
    return pd.DataFrame({"step": x, "share": value, "low": low, "high": high})


def cumulative(study: Survival) -> Drawing:
    """Draw the share of seeds that have memorised and generalised by each step."""
    figure, axes = canvas()
    end = float(np.max(np.where(study.times.seen, 0, study.times.left)))
    end = min(study.end, max(end, float(np.max(study.times.right[study.times.seen], initial=0))))
    done = stairs(axes, study.curve, end, BLUE).assign(event="generalised")
    frames = [done]
    _name(axes, done, 0.3, "generalised", BLUE)
    if study.memorised.seen.any():
        frames.append(stairs(axes, study.memorised_curve, end, AMBER).assign(event="memorised"))
        _name(axes, frames[-1], 0.8, "memorised", AMBER)
    axes.axhline(0.5, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.set_xlim(0, end)
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
    axes.set_ylabel("share of seeds")
    steps_axis(axes)
    n, seen = len(study.times), int(study.times.seen.sum())
    caption = f"Kaplan-Meier with 95% bands: {seen:,} of {n:,} seeds generalised, {n - seen:,} are censored."
    bands = [("generalised", BLUE), ("memorised", AMBER)][: len(frames)]
    chart = shares_chart([(name, colour, frame) for (name, colour), frame in zip(bands, frames, strict=True)], end)
    data = pd.concat(frames)
    title = "Share of seeds that have generalised by each step"
    return Drawing("cumulative", title, caption, figure, data, f"{n:,}", (chart,))


def quantile_plot(study: Survival) -> Drawing | None:
    """Draw the times against the quantiles of the fitted log-normal; None if none was fitted."""
    if study.lognormal is None:
        return None
    return qq_log_time(study.lognormal)


def shares_chart(curves: Sequence[tuple[str, str, pd.DataFrame]], end: float) -> Chart:
    """Return the chart of cumulative curves, each (name, colour, numbers as :func:`stairs` returns them)."""
    bands = [
        Band(name, colour, frame.rename(columns={"step": "x", "share": "value"}), stairs=True)
        for name, colour, frame in curves
    ]
    half = Rule("y", 0.5)
    return Chart(Axis("step", 0, end), Axis("share of seeds", 0, 1.03, percent=True), (half, *bands))


def _name(axes: Axes, data: pd.DataFrame, height: float, text: str, colour: str) -> None:
    """Write ``text`` right of its curve, at the share ``height`` of the curve's last value."""
    share = height * float(data["share"].iloc[-1])
    step = data["step"].to_numpy()[int(np.argmax(data["share"].to_numpy() >= share))]
    direct_label(axes, float(step), share, text, colour)


def _apart(shares: list[float], gap: float = 0.075) -> list[float]:
    """Return heights near the sorted ``shares`` that are at least ``gap`` apart, so that labels do not overlap."""
    heights = list(shares)
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    ceiling = max(1.0, gap * (len(heights) - 1))
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    return heights


def compare(
    name: str,
    title: str,
    caption: str,
    curves: Sequence[tuple[str, SurvivalCurve]],
    end: float,
    ends: Sequence[float] | None = None,
) -> Drawing:
    """Draw one cumulative curve per condition, with its label at the right edge.

    ``ends``: the last step of each curve (default: ``end``).
    """
    figure, axes = canvas(height=3.4)
    frames, labels, drawn = [], [], []
    for i, (label, curve) in enumerate(curves):
        colour = SERIES[i % len(SERIES)]
        data = stairs(axes, curve, ends[i] if ends else end, colour)
        frames.append(data.assign(condition=label))
        drawn.append((label, colour, data))
        labels.append((float(data["share"].iloc[-1]), label, colour))
    labels.sort()
    for (_, label, colour), y in zip(labels, _apart([share for share, _, _ in labels]), strict=True):
        axes.annotate(
            label,
            (1, y),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            textcoords="offset points",
            color=colour,
            fontsize=SMALL,
            va="center",
            annotation_clip=False,
        )
    axes.set_xlim(0, end)
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
    axes.set_ylabel("share of seeds generalised")
    steps_axis(axes)
    axes.xaxis.set_major_locator(MaxNLocator(4))  # the labels at the right take space
    return Drawing(name, title, caption, figure, pd.concat(frames), charts=(shares_chart(drawn, end),))


def coupled_curves(study: ValShuffle) -> Drawing:
    """Draw the cumulative curves with separate and with coupled streams."""
    end = float(max(np.max(np.where(t.seen, t.right, t.left)) for t in (study.apart, study.coupled)))
    pairs = [
        (f"apart (n={len(study.apart)})", kaplan_meier(study.apart)),
        (f"coupled (n={len(study.coupled)})", kaplan_meier(study.coupled)),
    ]
    caption = (
        "Share of seeds that have generalised, with the validation shuffle separate from the batch order and coupled "
        "to it."
    )
    return compare("val_shuffle", "The val-shuffle bug", caption, pairs, end)
