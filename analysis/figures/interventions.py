"""Figures of one setting at a time: the ratio of times for each value, and each setting's cumulative curves."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.figures import survival
from analysis.figures.causes import rows_chart
from analysis.figures.chart import Axis, Rule
from analysis.figures.render import draw
from analysis.figures.style import AMBER, GREY, TEAL, Drawing
from analysis.studies.conditions import Comparison

MOST_CURVES = 6
FEWEST_ROWS = 3
"""Smallest number of contrasts for a figure; the table shows fewer."""


def slowdowns(study: Comparison) -> Drawing | None:
    """Draw the time of each value relative to its reference on a log axis; an arrow marks a bound."""
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
            for c in study.contrasts
            if c.slowdown is not None
        ]
    )
    if len(frame) < FEWEST_ROWS:
        return None
    ends = {
        end: frame[end].where(np.isfinite(frame[end]) & (frame[end] > 0), frame["value"]) for end in ("low", "high")
    }
    bound = np.where(frame["bound"] == "", 0, np.where(frame["bound"] == "at least", 1, -1))
    colours = np.where(~(frame["p"] < 0.05), GREY, np.where(frame["value"] > 1, AMBER, TEAL))
    groups = {AMBER: "slower", TEAL: "faster", GREY: "not significant"}
    x = Axis.around("time to generalise, relative to the reference", *ends.values(), [0.8, 1.25], scale="log")
    chart = rows_chart(frame.assign(**ends, bound=bound), colours.tolist(), x, groups, [Rule("x", 1)])
    caption = (
        "Geometric mean of the time to generalise divided by that of the reference, with 95% intervals. Arrow: some "
        "runs had not generalised by the budget, so the value is a bound. Significant: at 5% (Holm)."
    )
    count = f"{int(frame['runs'].sum()):,} runs"
    return draw(f"slowdown_{study.name}", "How much slower or faster?", caption, [chart], frame, count)


def family_curves(study: Comparison) -> list[Drawing]:
    """Draw the cumulative curves of every setting for which some run generalised, one figure each."""
    made = []
    for i, (family, curves) in enumerate(study.families):
        if not any(len(curve.times) for curve, _ in curves.values()):
            continue
        shown = {str(value): pair for value, pair in list(curves.items())[:MOST_CURVES]}
        left = f" {len(curves) - len(shown)} more values are in the table." if len(shown) < len(curves) else ""
        n = sum(curve.n for curve, _ in shown.values())
        caption = f"Kaplan-Meier with 95% bands, {n} runs by {family.title}. A curve ends where too few runs are left."
        name = "by_" + family.setting.replace(".", "_") + (f"_{i + 1}" if family.at else "")
        title = f"Time to generalise by {family.title}"
        pairs = [(value, curve) for value, (curve, _) in shown.items()]
        made.append(survival.compare(name, title, caption + left, pairs, [end for _, end in shown.values()]))
    return made
