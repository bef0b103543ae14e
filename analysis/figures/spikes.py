"""Losses of runs with and without spikes, by setting."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd

from analysis.figures.curves import lines
from analysis.figures.style import SERIES, SMALL, WIDTH, Drawing, canvas, steps_axis
from analysis.studies.spikes import Spikes

MOST_PANELS = 8
PANEL_HEIGHT, LINE_HEIGHT = 1.7, 0.14
"""Inches of a panel, and of each line above it."""


def spike_curves(study: Spikes) -> Drawing | None:
    """Draw every run's training loss: one colour per value of one setting, one panel per value of the others.

    None if no run spiked.
    """
    runs = study.runs
    if not runs["spiked"].any():
        return None
    by_size = sorted(study.factors, key=lambda factor: -runs[factor].nunique())
    colour, others = by_size[:1], sorted(by_size[1:], key=study.factors.index)
    shown = list(itertools.product(*(dict.fromkeys(runs[factor]) for factor in others)))[:MOST_PANELS]
    values = list(dict.fromkeys(runs[colour[0]])) if colour else [""]
    columns = 1 if len(shown) == 1 else 2
    height = 0.9 + (PANEL_HEIGHT + LINE_HEIGHT * len(others)) * math.ceil(len(shown) / columns)
    figure, grid = canvas(
        WIDTH, height, math.ceil(len(shown) / columns), columns, sharex=True, sharey=True, squeeze=False
    )
    for axes, panel in itertools.zip_longest(grid.ravel(), shown):
        if panel is None:
            axes.set_axis_off()
            continue
        here = runs[
            np.logical_and.reduce(
                [runs[f] == v for f, v in zip(others, panel, strict=True)] or [runs["spiked"].notna()]
            )
        ]
        for i, value in enumerate(values):
            group = here[here[colour[0]] == value] if colour else here
            drawn = study.curves[study.curves["run_id"].isin(group.index) & np.isfinite(study.curves["loss"])]
            lines(axes, drawn, "step", "loss", colors=SERIES[i % len(SERIES)], alpha=0.8, linewidths=1.1)
        axes.autoscale_view()
        axes.set_xlim(left=0)
        words = [_said(f, v) for f, v in zip(others, panel, strict=True)]
        count = f"{int(here['spiked'].sum())} of {len(here)} spiked"
        axes.set_title("\n".join([*words, count]), fontsize=SMALL, loc="left")
    for axes in grid[-1]:
        steps_axis(axes)
    for axes in grid[:, 0]:
        axes.set_ylabel("loss (nats)")
    if colour:
        for i, value in enumerate(values):
            grid[0, -1].annotate(
                _said(colour[0], value),
                (1, 1),
                xycoords="axes fraction",
                xytext=(-2, -8 - 12 * i),
                textcoords="offset points",
                ha="right",
                color=SERIES[i % len(SERIES)],
                fontsize=SMALL,
            )
    caption = "Training loss of every run, a running median of three steps; all panels have the same axes."
    data = study.curves.merge(runs[[*study.factors, "seed"]], left_on="run_id", right_index=True)
    n = f"{len(runs):,} runs"
    return Drawing("spike_curves", "Training loss and spikes", caption, figure, pd.DataFrame(data), n)


def _said(factor: str, value: str) -> str:
    """Return ``layers 2, d_model 288`` for settings that go together, ``lr 0.03`` for one."""
    pairs = zip(factor.split(" and "), value.split(" and "), strict=True)
    return ", ".join(f"{name.rpartition('.')[2]} {one}" for name, one in pairs)
