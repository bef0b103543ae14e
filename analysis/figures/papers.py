"""Accuracy over steps at the settings of papers, one panel per paper, with the papers' steps as rules."""

from __future__ import annotations

from typing import Final

import pandas as pd

from analysis.figures.chart import Axis, Chart, Lines, Rule
from analysis.figures.render import draw
from analysis.figures.style import INK, SERIES, WIDTH, Drawing
from analysis.studies.papers import Papers, Trained, parts

COLUMNS: Final = 2


def beside_papers(study: Papers) -> Drawing:
    """Draw validation accuracy (solid) and training accuracy (thin, dashed) over log steps."""
    titles = list(dict.fromkeys(t.paper.title for t in study.trained))
    charts = [_panel(title, [t for t in study.trained if t.paper.title == title], study.curves) for title in titles]
    names = pd.concat([pd.Series(f"{t.paper.title}: {t.arm.name}", t.rows.index) for t in study.trained])
    data = study.curves[["run_id", "step", "train_acc", "val_acc"]]
    data = data.assign(condition=data["run_id"].map(names))
    caption = (
        "Validation accuracy (thick) and training accuracy of mini-batches (thin, dashed), one line per seed. Vertical "
        "line: the paper's step. A line that ends below 95% is a run that ended there."
    )
    columns = min(COLUMNS, len(titles))
    count, title = f"{len(names):,} runs", "Accuracy at the settings of papers, with the papers' steps"
    return draw("beside_papers", title, caption, charts, data, count, columns=columns, width=WIDTH * columns)


def _panel(title: str, trained: list[Trained], curves: pd.DataFrame) -> Chart:
    known = curves[(curves["step"] > 0) & curves["run_id"].isin(pd.concat([t.rows for t in trained]).index)]
    layers: list[Lines] = []
    steps: dict[int, Rule] = {}
    for i, part in enumerate(part for t in trained for part in parts(t)):
        colour, group = SERIES[i % len(SERIES)], f"{part.arm.name} ({len(part.rows)})"
        mine, runs = known[known["run_id"].isin(part.rows.index)], frozenset(part.rows.index)
        layers.append(Lines(group, colour, mine, "step", "train_acc", runs, 0.35, 0.6, "dashed"))
        layers.append(Lines(group, colour, mine, "step", "val_acc", runs, 1.0, 1.5))
        theirs = part.arm.theirs
        if theirs is not None:
            steps.setdefault(theirs, Rule("x", theirs, f"paper: {theirs:,}", colour))
    for name, step in trained[0].paper.phases.items():
        steps[step] = Rule("x", step, f"paper, {name}: {step:,}", INK)
    last = max([float(known["step"].max()), *steps])
    return Chart(
        Axis("step (log)", float(known["step"].min()), 1.25 * last, "log"),
        Axis("accuracy", -0.02, 1.03),
        (*[steps[step] for step in sorted(steps)], *layers),
        title=title,
    )
