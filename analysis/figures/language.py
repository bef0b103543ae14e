"""Loss curves of the GPT runs."""

from __future__ import annotations

from textwrap import fill
from typing import Final, Literal

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.chart import Axis, Chart, Lines
from analysis.figures.curves import bounds, lines, spread
from analysis.figures.style import SERIES, SMALL, SOFT, Drawing, canvas, steps_axis
from analysis.studies.gpt import Gpt
from analysis.studies.in_flight import InFlight

NAMED = 10
"""Letters of a run's name."""
DASHES: Final[tuple[Literal["solid", "dashed", "dotted"], ...]] = ("solid", "dashed", "dotted")
"""Styles of the conditions that share a colour: of the first six, of the next six, of all others."""
LEGEND_LINE, LEGEND_WIDTH = 0.17, 55
"""Inches of a line of the legend, and its largest number of characters."""
INSIDE = 40
"""Largest number of characters of a name beside the curves."""


def curves_in_flight(study: InFlight) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) so far, one colour per run."""
    figure, axes = canvas(height=3.2)
    val = study.curves.dropna(subset=["val_loss"])
    layers: list[Lines] = []
    for i, run_id in enumerate(study.steps["run_id"].unique()):
        colour = SERIES[i % len(SERIES)]
        train, scored = study.steps[study.steps["run_id"] == run_id], val[val["run_id"] == run_id]
        lines(axes, train, "step", "train_loss", colors=colour, alpha=0.4, linewidths=0.7)
        lines(axes, scored, "step", "val_loss", colors=colour, linewidths=1.6)
        name, only = str(run_id)[:NAMED], frozenset([run_id])
        if i < len(SERIES):
            axes.annotate(name, (1, 1), (-2, -10 - 13 * i), "axes fraction", "offset points", ha="right",
                          color=colour, fontsize=SMALL)  # fmt: skip
        layers.append(Lines(f"{name}: training", colour, train, "step", "train_loss", only, 0.4, 0.7))
        layers.append(Lines(f"{name}: validation", colour, scored, "step", "val_loss", only, 1.0, 1.8))
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylabel("loss (nats per token)")
    steps_axis(axes)
    data = pd.concat([val[["run_id", "step", "val_loss"]], study.steps[["run_id", "step", "train_loss"]]])
    count = study.steps["run_id"].nunique()
    caption = "Thick: validation, thin: training. Long runs show every n-th step."
    losses = pd.concat([data["val_loss"], data["train_loss"]])
    chart = Chart(
        Axis("step", 0, float(data["step"].max())),
        Axis("loss (nats per token)", *bounds(losses)),
        tuple(layer for layer in layers if len(layer.frame)),
    )
    runs = f"{count:,} run{'s' if count > 1 else ''} in flight"
    return Drawing("curves_in_flight", "Loss so far", caption, figure, data, runs, (chart,))


def loss_curves(study: Gpt) -> Drawing:
    """Draw training loss (thin) and validation loss (thick) of every run, one colour per preset and setting.

    The names of more conditions than colours, and long names, are below the curves, which they would cover.
    """
    kinds = list(study.runs.groupby(["preset", "config_id", "data"], sort=True))
    names = [_name(group) for _, group in kinds]
    below = len(kinds) > len(SERIES) or any(len(name) > INSIDE for name in names)
    unlike = len(SERIES) * len(DASHES)
    names = [*names[:unlike], *([f"and {len(names) - unlike} more, dotted"] if len(names) > unlike else [])]
    rows = sum(name.count("\n") + 1 for name in names) if below else 0
    figure, axes = canvas(height=3.6 + LEGEND_LINE * rows)
    frames: list[pd.DataFrame] = []
    layers: list[Lines] = []
    for i, (_, group) in enumerate(kinds):
        colour = SERIES[i % len(SERIES)]
        train = study.steps[study.steps["run_id"].isin(group.index)]
        dash = DASHES[min(i // len(SERIES), len(DASHES) - 1)]
        lines(axes, train, "step", "train_loss", colors=colour, alpha=0.3, linewidths=0.7)
        val = study.curves[study.curves["run_id"].isin(group.index) & study.curves["val_loss"].notna()]
        lines(axes, val, "step", "val_loss", colors=colour, linewidths=1.6, linestyles=dash)
        name = str(group["condition"].iloc[0]).removeprefix("gpt/")
        if not below:
            axes.annotate(
                f"{name} ({len(group)})",
                (1, 1),
                xycoords="axes fraction",
                xytext=(-2, -10 - 13 * i),
                textcoords="offset points",
                ha="right",
                color=colour,
                fontsize=SMALL,
            )
        frames.append(val[["run_id", "step", "val_loss"]].assign(preset=name))
        frames.append(train[["run_id", "step", "train_loss"]].assign(preset=name))
        ids = frozenset(spread(group.index))
        layers.append(Lines(f"{name}: training", colour, train, "step", "train_loss", ids, 0.3, 0.7))
        layers.append(Lines(f"{name}: validation ({len(group):,})", colour, val, "step", "val_loss", ids, 1.0, 1.8))
    if below:
        _legend(figure, names)
    axes.autoscale_view()
    axes.set_xlim(left=0)
    axes.set_ylabel("loss (nats per token)")
    steps_axis(axes)
    axes.annotate("thick: validation, thin: training", (0, 1), xycoords="axes fraction", xytext=(2, 4),
                  textcoords="offset points", fontsize=SMALL, color=SOFT)  # fmt: skip
    caption = f"{len(study.runs)} runs; training loss is averaged over short stretches of steps."
    data = pd.concat(frames)
    losses = pd.concat([data["val_loss"], data["train_loss"]])
    chart = Chart(
        Axis("step", 0, float(data["step"].max())),
        Axis("loss (nats per token)", *bounds(losses)),
        tuple(layer for layer in layers if len(layer.frame)),
    )
    return Drawing("loss_curves", "Loss of the GPT runs", caption, figure, data, f"{len(study.runs):,} runs", (chart,))


def _name(group: pd.DataFrame) -> str:
    """Return a condition's name in the legend, with the number of its runs, in short lines."""
    return fill(f"{str(group['condition'].iloc[0]).removeprefix('gpt/')} ({len(group)})", LEGEND_WIDTH)


def _legend(figure: Figure, names: list[str]) -> None:
    """Write the names of the conditions below the axes, each with its line; those without a line of their own last."""
    handles = [Line2D([], [], color=colour, linestyle=dash) for dash in DASHES for colour in SERIES]
    handles = [*handles, Line2D([], [], linestyle="none")][: len(names)]
    figure.legend(handles, names, loc="outside lower left", fontsize=SMALL - 1, labelspacing=0.25)
