"""Accuracy over steps at the settings of papers, one panel per paper, with the papers' steps as marks."""

from __future__ import annotations

from itertools import cycle
from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from analysis.figures.curves import lines
from analysis.figures.style import INK, PAPER, SERIES, SMALL, SOFT, WIDTH, Drawing, canvas, log_axis
from analysis.studies.papers import Papers, Trained, parts

COLUMNS: Final = 2
HEIGHTS: Final = (0.72, 0.34)
"""Alternating heights of the marks' labels, because two marks may be close."""
WIDE: Final = 200
"""Ratio of last to first step above which a decade has two labels instead of three."""
PANEL: Final = 3.3
"""Height of a panel in inches, including the legend."""


def beside_papers(study: Papers) -> Drawing:
    """Draw validation accuracy (solid) and training accuracy (thin, dashed) over log steps."""
    titles = list(dict.fromkeys(t.paper.title for t in study.trained))
    rows, columns = -(-len(titles) // COLUMNS), min(COLUMNS, len(titles))
    figure, grid = canvas(WIDTH * columns, PANEL * rows + 0.4, rows, columns, squeeze=False)
    panels = list(grid.flat)
    for axes, title in zip(panels, titles, strict=False):
        _panel(axes, title, [t for t in study.trained if t.paper.title == title], study.curves)
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    names = pd.concat([pd.Series(f"{t.paper.title}: {t.arm.name}", t.rows.index) for t in study.trained])
    data = study.curves[["run_id", "step", "train_acc", "val_acc"]]
    data = data.assign(condition=data["run_id"].map(names))
    caption = (
        "Validation accuracy (thick) and training accuracy of mini-batches (thin, dashed), one line per seed. Vertical "
        "line: the paper's step. A line that ends below 95% is a run that ended there."
    )
    title = "Accuracy at the settings of papers, with the papers' steps"
    return Drawing("beside_papers", title, caption, figure, data, f"{len(names):,} runs")


def _panel(axes: Axes, title: str, trained: list[Trained], curves: pd.DataFrame) -> None:
    known = curves[(curves["step"] > 0) & curves["run_id"].isin(pd.concat([t.rows for t in trained]).index)]
    marks: dict[int, str] = {}
    for i, part in enumerate(part for t in trained for part in parts(t)):
        colour = SERIES[i % len(SERIES)]
        mine = known[known["run_id"].isin(part.rows.index)]
        lines(axes, mine, "step", "train_acc", colors=colour, linewidths=0.6, linestyles="dashed", alpha=0.35)
        lines(axes, mine, "step", "val_acc", colors=colour, linewidths=1.5)
        axes.plot([], [], color=colour, linewidth=1.6, label=f"{part.arm.name} ({len(part.rows)})")
        if part.arm.theirs is not None:
            marks.setdefault(part.arm.theirs, colour)
    first, last = float(known["step"].min()), float(known["step"].max())
    named = {step: (f"paper: {step:,}", colour) for step, colour in marks.items()}
    named |= {step: (f"paper, {name}: {step:,}", INK) for name, step in trained[0].paper.phases.items()}
    for height, (step, (text, colour)) in zip(cycle(HEIGHTS), sorted(named.items()), strict=False):
        _mark(axes, step, text, colour, height)
        last = max(last, step)
    log_axis(axes.xaxis)
    if last > WIDE * first:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=12))
    axes.set_xlim(first, 1.25 * last)
    axes.set_ylim(-0.02, 1.03)
    axes.set_ylabel("accuracy")
    axes.set_xlabel("step (log)")
    axes.set_title(title, loc="left", color=SOFT)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.22), ncols=2, borderaxespad=0, fontsize=SMALL - 1.5)


def _mark(axes: Axes, step: int, text: str, colour: str, height: float) -> None:
    axes.axvline(step, color=colour, linewidth=1, linestyle=(0, (2, 2)), zorder=0)
    box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 0.5}
    axes.annotate(text, (step, height), xytext=(-3, 0), textcoords="offset points", rotation=90, ha="right",
                  va="center", fontsize=SMALL - 2, color=colour, bbox=box, zorder=5)  # fmt: skip
