"""Loss curves of the GPT runs."""

from __future__ import annotations

from typing import Final, Literal

import pandas as pd

from analysis.figures.chart import Axis, Chart, Lines, of_all
from analysis.figures.curves import spread
from analysis.figures.render import draw
from analysis.figures.style import SERIES, WIDTH, Drawing
from analysis.studies.gpt import Gpt
from analysis.studies.in_flight import InFlight

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
    x = Axis("step", 0, float(data["step"].max()))
    y = Axis.around("loss (nats per token)", data["val_loss"], data["train_loss"])
    return Chart(x, y, tuple(layer for layer in layers if len(layer.frame)), height=2.8), data


def curves_in_flight(study: InFlight) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) so far, one colour per run."""
    groups = {str(run)[:NAMED]: pd.Index([run]) for run in study.steps["run_id"].unique()}
    chart, data = _losses(groups, study.steps, study.curves)
    caption = "Thick: validation, thin: training. Long runs show every n-th step."
    runs = f"{len(groups):,} run{'s' * (len(groups) > 1)} in flight"
    return draw("curves_in_flight", "Loss so far", caption, [chart], data.drop(columns="preset"), runs)


def loss_curves(study: Gpt) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) of every run, one colour per preset and setting."""
    groups: dict[str, pd.Index] = {}
    for _, rows in study.runs.groupby(["preset", "config_id", "data"], sort=True):
        name = str(rows["condition"].iloc[0]).removeprefix("gpt/")
        groups[name] = groups.get(name, rows.index[:0]).append(rows.index)
    chart, data = _losses(groups, study.steps, study.curves)
    caption = (
        f"{len(study.runs)} runs. Thick: validation, thin: training; training loss is averaged over short stretches of "
        "steps."
    )
    width = WIDTH if len(groups) <= len(SERIES) else 1.4 * WIDTH  # for names of conditions on one line
    return draw("loss_curves", "Loss of the GPT runs", caption, [chart], data, "runs", of=len(study.runs), width=width)
