"""A figure of one's own in the report: how long each seed took from memorising to generalising.

    grok report results/store --with delay.delay

A function of the store's observations that returns a ``Drawing``, or None where there is nothing to show.
"""

import pandas as pd

from analysis.figures.style import BLUE, Drawing, canvas, steps_axis
from analysis.observations import Observations


def delay(observations: Observations) -> Drawing | None:
    """How does the step of generalising go with the step of memorising?"""
    rows = observations.arithmetic.dropna(subset=["memorised_step", "grokked_step"])
    if rows.empty:
        return None
    frame = pd.DataFrame({name: rows[f"{name}_step"].astype(float) for name in ("memorised", "grokked")})
    figure, axes = canvas()
    axes.scatter(frame["memorised"], frame["grokked"], s=14, color=BLUE)
    steps_axis(axes, "step of memorising")
    axes.set_ylabel("step of generalising")
    waited = (frame["grokked"] / frame["memorised"]).median()
    caption = f"Each point is a run that generalised; the median one did so {waited:.1f} times later than it memorised."
    return Drawing("delay", "From memorising to generalising", caption, figure, frame, f"{len(frame):,} runs")
