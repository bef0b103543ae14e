"""Losses of runs with and without spikes, by setting."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from analysis.figures.chart import Axis, Chart, Lines
from analysis.figures.render import draw
from analysis.figures.style import SERIES, WIDTH, Drawing
from analysis.studies.spikes import Spikes

MOST_PANELS = 8


def spike_curves(study: Spikes) -> Drawing | None:
    """Draw every run's training loss: one colour per value of one setting, one panel per value of the others.

    None if no run spiked.
    """
    runs = study.runs
    if not runs["spiked"].any():
        return None
    by_size = sorted(study.factors, key=lambda factor: -runs[factor].nunique())
    colour, others = by_size[:1], sorted(by_size[1:], key=study.factors.index)
    panels = list(itertools.product(*(dict.fromkeys(runs[factor]) for factor in others)))
    values = list(dict.fromkeys(runs[colour[0]])) if colour else [""]
    curves = study.curves[np.isfinite(study.curves["loss"])]
    x = Axis("step", 0, float(curves["step"].max()))
    y = Axis.around("loss (nats)", curves["loss"])
    charts = []
    for panel in panels[:MOST_PANELS]:
        here = runs[
            np.logical_and.reduce([runs["spiked"].notna(), *(runs[f] == v for f, v in zip(others, panel, strict=True))])
        ]
        layers = []
        for i, value in enumerate(values):
            group = here[here[colour[0]] == value] if colour else here
            frame = curves[curves["run_id"].isin(group.index)]
            name = _said(colour[0], value) if colour else ""
            layers.append(Lines(name, SERIES[i % len(SERIES)], frame, "step", "loss", frozenset(group.index), 0.8, 1.1))
        words = [_said(f, v) for f, v in zip(others, panel, strict=True)]
        title = ", ".join([*words, f"{int(here['spiked'].sum())} of {len(here)} spiked"])
        charts.append(Chart(x, y, tuple(layers), title=title, height=1.7))
    caption = "Training loss of every run, a running median of three steps; all panels have the same axes."
    if len(panels) > MOST_PANELS:
        caption += f" The other {len(panels) - MOST_PANELS} combinations of settings are not drawn."
    data = study.curves.merge(runs[[*study.factors, "seed"]], left_on="run_id", right_index=True)
    columns = 1 if len(charts) == 1 else 2
    title = "Training loss and spikes"
    width = WIDTH if columns == 1 else 1.4 * WIDTH
    count = f"{len(runs):,} runs"
    return draw("spike_curves", title, caption, charts, pd.DataFrame(data), count, columns=columns, width=width)


def _said(factor: str, value: str) -> str:
    """Return ``layers 2, d_model 288`` for settings that go together, ``lr 0.03`` for one."""
    pairs = zip(factor.split(" and "), value.split(" and "), strict=True)
    return ", ".join(f"{name.rpartition('.')[2]} {one}" for name, one in pairs)
