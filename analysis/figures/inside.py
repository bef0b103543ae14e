"""Figures of the measurements inside a network, over the step relative to the step of generalisation."""

from __future__ import annotations

import pandas as pd

from analysis.figures.chart import Axis, Band, Chart, Rule
from analysis.figures.render import draw
from analysis.figures.style import BLUE, Drawing
from analysis.studies.mechanism import MEANINGS, Mechanism

LOG_FROM = 30.0
"""Ratio of largest to smallest value from which the axis is logarithmic."""


def aligned(study: Mechanism) -> list[Drawing]:
    """Draw median and quartiles of each measurement over relative time, one figure each; constant ones are left out."""
    return [_one(name, frame) for name, frame in study.aligned.items() if frame["low"].min() < frame["high"].max()]


def _one(name: str, frame: pd.DataFrame) -> Drawing:
    smallest = float(frame["low"].min())
    log = smallest > 0 and float(frame["high"].max()) / smallest >= LOG_FROM
    chart = Chart(
        Axis("step divided by the step of generalisation", 0, float(frame["clock"].max())),
        Axis.around(name, frame["low"], frame["high"], scale="log" if log else "linear"),
        (Rule("x", 1, "generalises"), Band("", BLUE, frame.rename(columns={"clock": "x", "median": "value"}))),
        height=1.9,
    )
    meaning = MEANINGS.get(name, "")
    title = f"{meaning[0].upper()}{meaning[1:]}" if meaning else name
    runs = f"{int(frame['runs'].iloc[0]):,} runs"
    caption = f"Median and middle half of {runs} that generalised."
    return draw(f"inside_{name}", title, caption, [chart], frame, runs)
