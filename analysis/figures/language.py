"""Loss curves and spikes of the GPT runs."""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import pandas as pd

from grok.analysis.figures.render import draw
from grok.analysis.figures.seeds import spread
from grok.analysis.figures.style import SERIES, WIDTH, Chart, ChartAxis, Drawing, Lines, of_all
from grok.analysis.studies.gpt import Gpt
from grok.analysis.studies.spikes import Spikes


def _groups(study: Gpt) -> dict[str, tuple[str, pd.Index]]:
    """Return colour and runs of each condition by its name; of more than six only the five of the lowest mean loss.

    The others are one group, in grey.
    """
    names = study.runs["condition"].str.removeprefix("gpt/")
    losses = study.runs.groupby(names)["best_loss"].mean()
    own = losses.index if len(losses) <= len(SERIES) else losses.nsmallest(len(SERIES) - 1).index
    grouped = names.where(names.isin(own), f"{len(losses) - len(own)} conditions of higher loss")
    order = [*(name for name in grouped.unique() if name not in own), *own]
    colours = SERIES[-1:] + SERIES if len(order) > len(own) else SERIES
    return {str(name): (colour, grouped.index[grouped == name]) for name, colour in zip(order, colours, strict=False)}


def _count(study: Gpt) -> str:
    """Return how many of the runs are drawn."""
    return f"{of_all(sum(len(spread(runs)) for _, runs in _groups(study).values()), len(study.runs))} runs"


def _losses(study: Gpt) -> tuple[Chart, pd.DataFrame]:
    """Return the chart of training (thin) and validation loss (thick) of each group of runs, and its numbers."""
    steps, curves = study.steps, study.curves.dropna(subset=["val_loss"])
    faint = 0.3 if curves["step"].nunique() > 2 else 0.8
    layers, frames = [], []
    for name, (colour, runs) in _groups(study).items():
        train, val = steps[steps["run_id"].isin(runs)], curves[curves["run_id"].isin(runs)]
        drawn = spread(runs)
        group = f"{name} ({of_all(len(drawn), len(runs))})" if len(runs) > 1 else name
        layers.append(Lines(group, colour, train, "step", "train_loss", frozenset(drawn), faint, 0.7))
        layers.append(Lines(group, colour, val, "step", "val_loss", frozenset(drawn), 1.0, 1.7))
        parts = [val[["run_id", "step", "val_loss"]], train[["run_id", "step", "train_loss"]]]
        frames += [part.assign(preset=name) for part in parts]
    data = pd.concat(frames)
    x = ChartAxis("step", 0, float(data["step"].max()))
    y = ChartAxis.around("loss (nats per token)", data["val_loss"], data["train_loss"])
    return Chart(x, y, tuple(layer for layer in layers if len(layer.frame)), height=2.8), data


def loss_curves(study: Gpt) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) of every run, one colour per condition."""
    chart, data = _losses(study)
    caption = "Thick: validation, thin: training; training loss is averaged over short stretches of steps."
    return draw("loss_curves", "Loss of the language models", caption, [chart], data, _count(study))


USED: Final = {
    "tokens": ("tokens", 1.0), "samples": ("sequences", 1.0), "flops": ("PFLOPs of the blocks", 1e15),
    "hours": ("hours of training steps", 1.0),
}  # fmt: skip
"""Axes beside the step: the label, and what a unit of it is."""


def loss_by_use(study: Gpt) -> Drawing | None:
    """Draw validation loss by tokens, sequences, FLOPs and hours, one colour per condition; None for one evaluation."""
    if study.used.empty or study.used["step"].nunique() == 1:
        return None
    used = study.used.assign(**{name: study.used[name] / unit for name, (_, unit) in USED.items()})
    y = ChartAxis.around("validation loss (nats)", used["val_loss"])
    charts = []
    for column, (label, _) in USED.items():
        known = used.dropna(subset=[column])
        layers = []
        for name, (colour, runs) in _groups(study).items():
            frame = known[known["run_id"].isin(runs)]
            layers.append(Lines(name, colour, frame, column, "val_loss", frozenset(spread(runs)), 0.8, 1.1))
        if len(known):
            x = ChartAxis(label, 0, float(known[column].max()))
            charts.append(Chart(x, y, tuple(layer for layer in layers if len(layer.frame)), height=1.7))
    caption = "Validation loss by what was used until then. FLOPs leave out the head; hours leave out evaluations."
    title = "Loss by what was used"
    return draw("loss_by_use", title, caption, charts, used, _count(study), columns=2, width=1.4 * WIDTH)


# Losses of runs with and without spikes, by setting.

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
    x = ChartAxis("step", 0, float(curves["step"].max()))
    y = ChartAxis.around("loss (nats)", curves["loss"])
    charts = []
    for panel in panels[:MOST_PANELS]:
        here = runs[(runs[others] == list(panel)).all(axis=1)]
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
