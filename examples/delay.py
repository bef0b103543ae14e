"""Your own figure in the report: the time of each seed from memorising to generalising.

    grok report results/store --with delay.delay

It is a function of the store's observations. It returns a ``Drawing``, or None if there is nothing to show.
"""

import pandas as pd

from analysis.figures.style import BLUE, Drawing, canvas, steps_axis
from analysis.observations import Observations


def delay(observations: Observations) -> Drawing | None:
    """How does the step of generalising depend on the step of memorising?"""
    rows = observations.arithmetic.dropna(subset=["memorised_step", "grokked_step"])
    if rows.empty:
        return None
    frame = pd.DataFrame({name: rows[f"{name}_step"].astype(float) for name in ("memorised", "grokked")})
    figure, axes = canvas()
    axes.scatter(frame["memorised"], frame["grokked"], s=14, color=BLUE)
    steps_axis(axes, "step of memorising")
    axes.set_ylabel("step of generalising")
    waited = (frame["grokked"] / frame["memorised"]).median()
    caption = f"Each point is a run that generalised. Median ratio of the two steps: {waited:.1f}."
    return Drawing("delay", "From memorising to generalising", caption, figure, frame, f"{len(frame):,} runs")
