"""Loss curves and spikes of the GPT runs."""

from __future__ import annotations

import itertools
from typing import Final, Literal

import numpy as np
import pandas as pd

from grok.analysis.figures.curves import spread
from grok.analysis.figures.render import draw
from grok.analysis.figures.style import SERIES, WIDTH, Chart, ChartAxis, Drawing, Lines, of_all
from grok.analysis.studies.gpt import Gpt
from grok.analysis.studies.spikes import Spikes

NAMED = 10
"""Letters of a run's name."""
DASHES: Final[tuple[Literal["solid", "dashed", "dotted"], ...]] = ("solid", "dashed", "dotted")
"""Styles of the conditions that share a colour: of the first six, of the next six, of all others."""


def _losses(groups: dict[str, pd.Index], steps: pd.DataFrame, curves: pd.DataFrame) -> tuple[Chart, pd.DataFrame]:
    """Return the chart of training (thin) and validation loss (thick) of each group of runs, and its numbers."""
    curves = curves.dropna(subset=["val_loss"])
    layers, frames = [], []
    for i, (name, runs) in enumerate(groups.items()):
        colour, dash = SERIES[i % len(SERIES)], DASHES[min(i // len(SERIES), len(DASHES) - 1)]
        train, val = steps[steps["run_id"].isin(runs)], curves[curves["run_id"].isin(runs)]
        drawn = spread(runs)
        group = f"{name} ({of_all(len(drawn), len(runs))})" if len(runs) > 1 else name
        layers.append(Lines(group, colour, train, "step", "train_loss", frozenset(drawn), 0.3, 0.7))
        layers.append(Lines(group, colour, val, "step", "val_loss", frozenset(drawn), 1.0, 1.7, dash))
        parts = [val[["run_id", "step", "val_loss"]], train[["run_id", "step", "train_loss"]]]
        frames += [part.assign(preset=name) for part in parts]
    data = pd.concat(frames)
    x = ChartAxis("step", 0, float(data["step"].max()))
    y = ChartAxis.around("loss (nats per token)", data["val_loss"], data["train_loss"])
    return Chart(x, y, tuple(layer for layer in layers if len(layer.frame)), height=2.8), data


def loss_curves(study: Gpt) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) of every run, one colour per preset and setting."""
    groups: dict[str, pd.Index] = {}
    for _, rows in study.runs.groupby(["preset", "config_id", "data"], sort=True):
        name = str(rows["condition"].iloc[0]).removeprefix("gpt/")
        groups[name] = groups.get(name, rows.index[:0]).append(rows.index)
    chart, data = _losses(groups, study.steps, study.curves)
    caption = "Thick: validation, thin: training; training loss is averaged over short stretches of steps."
    width = WIDTH if len(groups) <= len(SERIES) else 1.4 * WIDTH  # for names of conditions on one line
    return draw(
        "loss_curves", "Loss of the language models", caption, [chart], data, "runs", of=len(study.runs), width=width
    )


USED: Final = {
    "tokens": ("tokens", 1.0), "samples": ("sequences", 1.0), "flops": ("PFLOPs of the blocks", 1e15),
    "hours": ("hours of training steps", 1.0),
}  # fmt: skip
"""Axes beside the step: the label, and what a unit of it is."""


def loss_by_use(study: Gpt) -> Drawing | None:
    """Draw validation loss by tokens, sequences, FLOPs and hours, one colour per preset and setting."""
    if study.used.empty:
        return None
    used = study.used.assign(**{name: study.used[name] / unit for name, (_, unit) in USED.items()})
    names = study.runs["condition"].str.removeprefix("gpt/")
    y = ChartAxis.around("validation loss (nats)", used["val_loss"])
    charts = []
    for column, (label, _) in USED.items():
        known = used.dropna(subset=[column])
        layers = []
        for i, (name, runs) in enumerate(study.runs.groupby(names, sort=True)):
            frame = known[known["run_id"].isin(runs.index)]
            drawn = frozenset(spread(runs.index))
            layers.append(Lines(str(name), SERIES[i % len(SERIES)], frame, column, "val_loss", drawn, 0.8, 1.1))
        if len(known):
            x = ChartAxis(label, 0, float(known[column].max()))
            charts.append(Chart(x, y, tuple(layer for layer in layers if len(layer.frame)), height=1.7))
    caption = "Validation loss by what was used until then. FLOPs leave out the head; hours leave out evaluations."
    title = "Loss by what was used"
    return draw("loss_by_use", title, caption, charts, used, "runs", of=len(study.runs), columns=2, width=1.4 * WIDTH)


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
