"""Figures that compare the populations of a store."""

from __future__ import annotations

import textwrap

import pandas as pd

from analysis.figures import survival
from analysis.figures.causes import intervals
from analysis.figures.style import BLUE, SERIES, Drawing
from analysis.studies.base import Study

LABEL_WIDTH = 20
"""Largest number of characters per line of a population's name beside its curve."""


def _lines(name: str, width: int) -> str:
    """Return a name in lines of about ``width`` letters, broken between its words alone."""
    return textwrap.fill(name, width, break_long_words=False)


def super_shares(study: Study) -> Drawing | None:
    """Draw each population's leading share with its interval."""
    leads = [(part.about, next((f for f in part.findings if f.headline), None)) for part in study.parts]
    shown = [(about, lead) for about, lead in leads if lead is not None and lead.estimate is not None]
    labels = {lead.label for _, lead in shown}
    if len(shown) < 2 or len(labels) > 1:
        return None
    frame = pd.DataFrame(
        [
            {
                "name": about,
                "value": e.value,
                "low": e.low,
                "high": e.high,
                "n": e.n,
            }
            for about, lead in shown
            if (e := lead.estimate) is not None
        ]
    )
    (label,) = labels
    caption = f"Share of {label} in each population, with 95% intervals."
    return intervals("shares_by_population", "Every population", caption, frame, [BLUE] * len(frame), "share", True)


def cumulative(study: Study) -> Drawing:
    """Draw the share generalised by each step, one curve per population."""
    parts = study.parts[: len(SERIES)]
    curves = [(_lines(f"{part.about} (n={part.curve.n})", LABEL_WIDTH), part.curve) for part in parts]  # type: ignore[attr-defined]
    ends = [min(part.end, part.last) for part in parts]  # type: ignore[attr-defined]
    rest = (
        f" {len(study.parts) - len(parts)} more populations are in the table." if len(study.parts) > len(parts) else ""
    )
    caption = (
        "Kaplan-Meier with 95% bands. A curve ends where too few runs are left. A seed counts from the step at which "
        f"it first reached the threshold.{rest}"
    )
    title = "Share of seeds that have generalised by each step"
    return survival.compare("cumulative", title, caption, curves, max(ends), ends)
