"""Figures of the measurements inside a network, over the step relative to the step of generalisation."""

from __future__ import annotations

import pandas as pd

from analysis.figures.style import BLUE, SMALL, SOFT, Drawing, canvas, log_axis
from analysis.studies.mechanism import MEANINGS, Mechanism

LOG_FROM = 30.0
"""Ratio of largest to smallest value from which the axis is logarithmic."""


def aligned(study: Mechanism) -> list[Drawing]:
    """Draw median and quartiles of each measurement over relative time, one figure each; constant ones are left out."""
    return [_one(name, frame) for name, frame in study.aligned.items() if frame["low"].min() < frame["high"].max()]


def _one(name: str, frame: pd.DataFrame) -> Drawing:
    figure, axes = canvas(height=2.4)
    axes.fill_between(frame["clock"], frame["low"], frame["high"], color=BLUE, alpha=0.16, linewidth=0)
    axes.plot(frame["clock"], frame["median"], color=BLUE)
    smallest = float(frame["low"].min())
    if smallest > 0 and float(frame["high"].max()) / smallest >= LOG_FROM:
        log_axis(axes.yaxis)
    axes.axvline(1, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.annotate("generalises", (1, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                  textcoords="offset points", ha="center", va="bottom", fontsize=SMALL, color=SOFT)  # fmt: skip
    axes.set_xlim(0, float(frame["clock"].max()))
    axes.set_xlabel("step divided by the step of generalisation")
    axes.set_ylabel(name)
    meaning = MEANINGS.get(name, "")
    caption = f"Median and middle half of {int(frame['runs'].iloc[0])} runs that generalised."
    title = f"{meaning[0].upper()}{meaning[1:]}" if meaning else name
    count = f"{int(frame['runs'].iloc[0]):,} runs"
    return Drawing(f"inside_{name}", title, caption, figure, frame, count)
