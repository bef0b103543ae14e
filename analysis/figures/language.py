"""Loss curves of the GPT runs."""

from __future__ import annotations

import pandas as pd

from analysis.figures.curves import lines
from analysis.figures.style import SERIES, SOFT, Drawing, canvas, steps_axis
from analysis.studies.gpt import Gpt


def loss_curves(study: Gpt) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) of every run, one colour per preset and setting."""
    figure, axes = canvas(height=3.6)
    kinds = list(study.runs.groupby(["preset", "config_id", "data"], sort=True))
    frames = []
    for i, (_, group) in enumerate(kinds):
        colour = SERIES[i % len(SERIES)]
        train = study.steps[study.steps["run_id"].isin(group.index)]
        lines(axes, train, "step", "train_loss", colors=colour, alpha=0.3, linewidths=0.7)
        val = study.curves[study.curves["run_id"].isin(group.index) & study.curves["val_loss"].notna()]
        lines(axes, val, "step", "val_loss", colors=colour, linewidths=1.6)
        name = str(group["condition"].iloc[0]).removeprefix("gpt/")
        axes.annotate(
            f"{name} ({len(group)})",
            (1, 1),
            xycoords="axes fraction",
            xytext=(-2, -10 - 13 * i),
            textcoords="offset points",
            ha="right",
            color=colour,
            fontsize=8.5,
        )
        frames.append(val[["run_id", "step", "val_loss"]].assign(preset=name))
        frames.append(train[["run_id", "step", "train_loss"]].assign(preset=name))
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylabel("loss (nats per token)")
    steps_axis(axes)
    axes.annotate("thick: validation, thin: training", (0, 1), xycoords="axes fraction", xytext=(2, 4),
                  textcoords="offset points", fontsize=8, color=SOFT)  # fmt: skip
    caption = f"{len(study.runs)} runs; training loss is averaged over short stretches of steps."
    return Drawing("loss_curves", "Loss of the GPT runs", caption, figure, pd.concat(frames))
