"""Figures that compare the populations of a store."""

from __future__ import annotations

import pandas as pd

from analysis.figures import survival
from analysis.figures.causes import rows_chart, share_axis
from analysis.figures.render import draw
from analysis.figures.style import BLUE, SERIES, Drawing
from analysis.studies.base import Study


def super_shares(study: Study) -> Drawing | None:
    """Draw each population's leading share with its interval."""
    leads = [(part.about, next((f for f in part.findings if f.headline), None)) for part in study.parts]
    shown = [(about, lead) for about, lead in leads if lead is not None and lead.estimate is not None]
    labels = {lead.label for _, lead in shown}
    if len(shown) < 2 or len(labels) > 1:
        return None
    frame = pd.DataFrame(
        [
            {"name": about, "value": e.value, "low": e.low, "high": e.high, "n": e.n}
            for about, lead in shown
            if (e := lead.estimate) is not None
        ]
    )
    (label,) = labels
    caption = f"Share of {label} in each population, with 95% intervals."
    chart = rows_chart(frame, [BLUE] * len(frame), share_axis("share", frame), {})
    return draw("shares_by_population", "Every population", caption, [chart], frame, f"{len(frame)} populations")


def cumulative(study: Study) -> Drawing:
    """Draw the share generalised by each step, one curve per population."""
    parts = study.parts[: len(SERIES)]
    curves = [(part.about, part.curve) for part in parts]  # type: ignore[attr-defined]
    ends = [min(part.end, part.last) for part in parts]  # type: ignore[attr-defined]
    rest = (
        f" {len(study.parts) - len(parts)} more populations are in the table." if len(study.parts) > len(parts) else ""
    )
    caption = (
        "Kaplan-Meier with 95% bands. A curve ends where too few runs are left. A seed counts from the step at which "
        f"it first reached the threshold.{rest}"
    )
    title = "Share of seeds that have generalised by each step"
    return survival.compare("cumulative", title, caption, curves, ends)
