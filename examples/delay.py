"""Your own figure in the report: the time of each seed from memorising to generalising.

    grok report results/store --with delay.delay

It is a function of the store's observations. It returns a list of ``Drawing``s, one for each condition. The report
shows them in a section of their own, whose heading is followed by the first line of the function's docstring.
"""

import pandas as pd

from grok.analysis.figures.style import BLUE, Drawing, canvas
from grok.analysis.observations import Observations


def delay(observations: Observations) -> list[Drawing]:
    """How does the step of generalising depend on the step of memorising?"""
    drawings = []
    for number, (condition, rows) in enumerate(observations.by_condition(), 1):
        both = rows.dropna(subset=["memorised_step", "grokked_step"])
        if len(both):
            drawings.append(draw(f"delay_{number}", condition, both))
    return drawings


def draw(name: str, condition: str, rows: pd.DataFrame) -> Drawing:
    """Draw the runs of one condition; ``condition`` is empty if the store has no other."""
    frame = pd.DataFrame({event: rows[f"{event}_step"].astype(float) for event in ("memorised", "grokked")})
    figure, axes = canvas()
    axes.scatter(frame["memorised"], frame["grokked"], s=14, color=BLUE)
    axes.set_xlabel("step of memorising")
    axes.set_ylabel("step of generalising")
    waited = (frame["grokked"] / frame["memorised"]).median()
    caption = f"Each point is a run that generalised. Their median ratio of the two steps: {waited:.1f}."
    title = f"From memorising to generalising{': ' if condition else ''}{condition}"
    return Drawing(name, title, caption, figure, frame, f"{len(frame):,} runs")
