"""Figures of one setting at a time: the ratio of times for each value, and each setting's cumulative curves."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, NullLocator

from analysis.figures import survival
from analysis.figures.style import AMBER, GREY, INK, SOFT, TEAL, Drawing, canvas
from analysis.studies.conditions import Comparison

MOST_CURVES = 6
FEWEST_ROWS = 3
"""Smallest number of contrasts for a figure; the table shows fewer."""


def slowdowns(study: Comparison) -> Drawing | None:
    """Draw the time of each value relative to its reference on a log axis; an arrow marks a bound."""
    shown = [c for c in study.contrasts if c.slowdown is not None]
    if len(shown) < FEWEST_ROWS:
        return None
    frame = pd.DataFrame(
        [
            {
                "name": c.label,
                "against": c.reference,
                "value": c.slowdown.value,
                "low": c.slowdown.low,
                "high": c.slowdown.high,
                "bound": c.bound,
                "up to step": c.horizon,
                "runs": len(c.rows),
                "p": study.p.get(c.label, np.nan),
            }
            for c in shown
            if c.slowdown is not None
        ]
    )
    n = len(frame)
    figure, axes = canvas(height=max(2.0, 1.1 + 0.27 * n))
    y = np.arange(n)[::-1]
    clear = (frame["p"] < 0.05).to_numpy()
    colours = np.where(~clear, GREY, np.where(frame["value"] > 1, AMBER, TEAL)).tolist()
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    ends = [frame[end].where(np.isfinite(frame[end]) & (frame[end] > 0), frame["value"]) for end in ("low", "high")]
    axes.hlines(y, *ends, colors=colours, linewidth=3, alpha=0.35)
    axes.scatter(frame["value"], y, s=34, color=colours, zorder=3, edgecolors="none")
    for place, value, bound, colour in zip(y, frame["value"], frame["bound"], colours, strict=True):
        if bound:
            way = 1 if bound == "at least" else -1
            axes.annotate("", (value, place), xytext=(26 * way, 0), textcoords="offset points",
                          arrowprops={"arrowstyle": "<-", "color": colour, "linewidth": 1.2})  # fmt: skip
    axes.axvline(1, color=SOFT, linewidth=0.8)
    low, high = min(0.8, float(ends[0].min())) / 1.1, max(1.25, float(ends[1].max())) * 1.25
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= t <= high]
    axes.set_xticks(ticks)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"×{v:g}"))
    axes.set_yticks(y, frame["name"].tolist())
    axes.tick_params(axis="y", labelcolor=INK, labelsize=8)
    axes.set_ylim(-0.7, n - 0.3)
    axes.set_xlabel("time to generalise,\nrelative to the reference")
    caption = (
        "Geometric mean of the time to generalise divided by that of the reference, with 95% intervals. Arrow: some "
        "runs had not generalised by the budget, so the value is a bound. Grey: not significant at 5% (Holm)."
    )
    return Drawing(f"slowdown_{study.name}", "How much slower or faster?", caption, figure, frame)


def family_curves(study: Comparison) -> list[Drawing]:
    """Draw the cumulative curves of every setting for which some run generalised, one figure each."""
    made = []
    for i, (family, curves) in enumerate(study.families):
        if not any(len(curve.times) for curve, _ in curves.values()):
            continue
        label = [(f"{value} (n={curve.n})", curve) for value, (curve, _) in list(curves.items())[:MOST_CURVES]]
        ends = [end for _, end in list(curves.values())[:MOST_CURVES]]
        n = sum(curve.n for curve, _ in curves.values())
        caption = f"Kaplan-Meier with 95% bands, {n} runs by {family.title}. A curve ends where too few runs are left."
        name = "by_" + family.setting.replace(".", "_") + (f"_{i + 1}" if family.at else "")
        made.append(survival.compare(name, f"Time to generalise by {family.title}", caption, label, max(ends), ends))
    return made
