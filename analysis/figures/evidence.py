"""Figures beside papers and of the pages in ``results/``, from data frames. Call them under ``style.RC``.

Accuracy has a logit axis: from 1% to 2% is as far as from 98% to 99%, so that rare seeds at both
ends are visible.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from grok.analysis.criteria import DIARY, UNJUDGED, usual_length
from grok.analysis.figures import style
from grok.analysis.figures.curves import spread, stacked
from grok.analysis.figures.render import draw
from grok.analysis.studies.branching import Branching, validation_examples
from grok.analysis.studies.census import Census
from grok.analysis.studies.papers import Papers, Trained, parts

Floats = NDArray[np.float64]
CHOSEN: Final = (style.TEAL, style.AMBER, style.BLUE)
"""Colours of the chosen runs, in their order."""
LOGIT_TICKS: Final = (0.001, 0.01, 0.05, DIARY.normal_accuracy, 0.5, 0.75, 0.9, DIARY.super_accuracy, 0.999)
MOST_FAINT: Final = 200
MOST_STRIPS: Final = 18
"""Largest number of families (a parent and its redrawn streams) with a strip each."""


def logit(accuracy: pd.Series | Floats, examples: int) -> Floats:
    """Return ln(right / wrong) of accuracies over ``examples`` examples, with half an example added to both counts."""
    hits = np.asarray(accuracy, dtype=float) * examples + 0.5
    return np.asarray(np.log(hits / (examples + 1 - hits)))


def branch_strips(study: Branching) -> style.Drawing | None:
    """Draw the children of each parent and redrawn stream as points, and the random seeds of the census below them.

    With many parents, one strip has those of a kind. None without a census.
    """
    if study.census.empty:
        return None
    census, examples, step = study.census["accuracy"], study.examples, study.horizon
    children = study.children.rename(columns={"accuracy": "val_acc"})
    one = children.groupby("seed")["parent"].transform("nunique") == 1  # named parents can share a master seed
    names = ("seed " + children["seed"].astype(str)).where(one, "run " + children["parent"].str[:8])
    by_parent = len(set(zip(names, children["redrawn"], strict=True))) <= MOST_STRIPS
    children["parent"] = names if by_parent else children["kind"]
    children = children.sort_values("parent", kind="stable")
    rows = pd.concat([pd.DataFrame({"parent": "census", "redrawn": "", "val_acc": census}), children])
    every = rows[["parent", "redrawn", "val_acc"]].astype({"val_acc": float}).reset_index(drop=True)
    strips = every.groupby(["parent", "redrawn"], sort=False)
    every = every.assign(logit=logit(every["val_acc"], examples), height=strips.ngroup())
    labels = [
        f"{'census of random seeds' if parent == 'census' else f'{parent}: {redrawn}'}\n"
        f"{int((accuracy > DIARY.super_accuracy).sum())} super of {len(accuracy):,}"
        for (parent, redrawn), accuracy in strips["val_acc"]
    ]
    # offsets that separate equal values and show no pattern
    apart = (every.groupby("height")["logit"].rank(method="first") - 1) * 0.6180339887498949 % 1.0 - 0.5
    every = every.assign(x=special.expit(every["logit"]), y=every["height"] + 0.68 * apart)
    every = every.sort_values("height", kind="stable")
    kinds = np.where(every["val_acc"] > DIARY.super_accuracy, "super", "fast")
    kinds = np.where(every["val_acc"] < DIARY.normal_accuracy, "normal", kinds)
    layers = []
    for kind in ("normal", "fast", "super"):
        here = every[kinds == kind]
        for part, size in ((here[here["height"] == 0], 4 if len(census) > 200 else 14), (here[here["height"] > 0], 14)):
            name, colour = f"{kind} ({len(here):,})", style.CLASS_COLOURS[kind]
            layers += [style.Points(name, colour, part, size)] if len(part) else []
    medians = every.groupby("height")["val_acc"].median()
    middle = pd.DataFrame({"x": special.expit(logit(medians, examples)), "y": medians.index})
    ticks = {float(height): name for height, name in enumerate(labels)}
    chart = style.Chart(
        logit_axis(f"validation accuracy at step {step:,} (logit axis)", every["x"], examples),
        style.ChartAxis("", -0.6, len(labels) - 0.4, ticks=ticks),
        (*_thresholds(examples), *layers, style.Points("median", style.INK, middle, 300, "|")),
        height=0.9 + 0.42 * len(labels),
    )
    caption = (
        f"Each point is a run at step {step:,}. Lowest row: the census of {len(census):,} random seeds. Other rows: "
        "children of one parent, or of all parents of a kind, with the named streams redrawn and the others kept. "
        f"Dashed: the diary's thresholds ({DIARY.normal_accuracy} and {DIARY.super_accuracy})."
    )
    count = f"{children['run_id'].nunique():,} children, {len(census):,} seeds"
    data = every.drop(columns=["x", "y", "height"])
    return draw("redraw_strips", "Children with redrawn streams, and random seeds", caption, [chart], data, count)


def census_iconic(census: Census) -> style.Drawing | None:
    """Draw training (dashed) and validation accuracy (solid) over log steps, the others faint beside two seeds.

    In colour: the best seed of the two best classes of the census, else the two best seeds.
    """
    ranked = census.rows[census.rows["label"] != UNJUDGED].sort_values("accuracy", ascending=False, kind="stable")
    if len(ranked) < 3:
        return None
    kinds = census.kinds.reindex(ranked.index)
    picks = {kind: group.index[0] for kind, group in ranked.groupby(kinds)}
    best = [picks[kind] for kind in ("super", "fast", "early", "late") if kind in picks]
    best = list(dict.fromkeys([*best, *ranked.index]))[:2]
    chosen = {str(run): f"seed {int(ranked.loc[run, 'seed'])} ({kinds[run]})" for run in best}
    last = usual_length(census.curves.groupby("run_id")["step"].max().to_numpy(dtype=np.int64))
    known = census.curves[census.curves["step"].between(1, last)].sort_values(["run_id", "step"], kind="stable")
    every = pd.Index(known["run_id"].unique())
    others = every.difference(pd.Index(list(chosen)))
    faint = spread(others, MOST_FAINT)
    rest, few = f"other seeds ({style.of_all(len(faint), len(others))})", frozenset(faint)
    beside = known[known["run_id"].isin(others)]
    layers = [
        style.Lines(rest, style.GREY, beside, "step", "train_acc", few, 0.25, 0.6, "dashed"),
        style.Lines(rest, style.GREY, beside, "step", "val_acc", few, 0.35, 0.7),
    ]
    for (run, name), colour in zip(chosen.items(), CHOSEN, strict=False):
        curve, one = known[known["run_id"] == run], frozenset([run])
        layers.append(style.Lines(name, colour, curve, "step", "train_acc", one, 1.0, 1.1, "dashed"))
        layers.append(style.Lines(name, colour, curve, "step", "val_acc", one, 1.0, 2.0))
    chart = style.Chart(
        style.ChartAxis("step (log)", float(known["step"].min()), float(known["step"].max()), "log"),
        style.ChartAxis("accuracy (dashed: training)", -0.02, 1.03),
        tuple(layers),
    )
    caption = (
        f"Training accuracy (mini-batches, dashed) and validation accuracy (solid) of {len(faint) + len(chosen):,} "
        f"seeds{f', evenly selected of {len(every):,}' if len(faint) < len(others) else ''}."
    )
    data = known[known["run_id"].isin([*faint, *chosen])][["run_id", "step", "train_acc", "val_acc"]]
    data = data.assign(name=data["run_id"].map(dict(chosen)).fillna("other"))
    title = "Training and validation accuracy, seed by seed"
    return draw("iconic", title, caption, [chart], data, "seeds", of=len(every))


def accuracy_histogram(census: Census, bins: int = 40) -> style.Drawing | None:
    """Draw the histogram of logit validation accuracy at the horizon, by class; None off the diary's task."""
    rows = census.rows[census.rows["label"].isin(["normal", "fast", "super"])]
    if rows.empty or not census.population.has_diary_task:
        return None
    examples = validation_examples(rows.iloc[0])
    accuracy = rows["accuracy"].astype(float)
    x = logit(accuracy, examples)
    ends = logit(np.array([DIARY.normal_accuracy, DIARY.super_accuracy]), examples)
    edges = _edges(x, ends, bins)
    classes = {"normal": x < ends[0], "fast": (x >= ends[0]) & (x <= ends[1]), "super": x > ends[1]}
    data = pd.DataFrame({"logit from": edges[:-1], "logit to": edges[1:]})
    data = data.assign(**{name: np.histogram(x[here], edges)[0] for name, here in classes.items()})
    places = special.expit(edges)
    layers, y = stacked(places, [(name, style.CLASS_COLOURS[name], data[name].to_numpy()) for name in classes])
    label = f"validation accuracy at step {census.horizon:,} (logit axis)"
    marks = pd.Series(special.expit(x), rows.index)
    chart = style.Chart(logit_axis(label, places, examples), y, (*layers, *_thresholds(examples)), marks)
    caption = (
        f"Validation accuracy of {len(rows):,} seeds at step {census.horizon:,} on a logit axis. Dashed: the diary's "
        f"thresholds ({DIARY.normal_accuracy} and {DIARY.super_accuracy})."
    )
    return draw("logit_histogram", "Validation accuracy on a logit axis", caption, [chart], data, "seeds", of=len(rows))


def _edges(x: Floats, thresholds: Floats, bins: int) -> Floats:
    """Return bin edges over ``x`` that include the thresholds, so that each bar has one class."""
    low, high = min(float(x.min()), float(thresholds[0])) - 0.1, max(float(x.max()), float(thresholds[1])) + 0.1
    width = (high - low) / bins
    ends = [low, *thresholds, high]
    parts = [np.linspace(a, b, max(2, round((b - a) / width) + 1)) for a, b in pairwise(ends)]
    return np.unique(np.concatenate(parts))


def _thresholds(examples: int) -> list[style.Rule]:
    ends = logit(np.array([DIARY.normal_accuracy, DIARY.super_accuracy]), examples)
    return [style.Rule("x", float(place)) for place in special.expit(ends)]


def logit_axis(label: str, x: pd.Series | Floats, examples: int) -> style.ChartAxis:
    """Return the logit axis of accuracies ``x`` as :func:`logit` corrects them, with ticks that do not overlap."""
    thresholds = (DIARY.normal_accuracy, DIARY.super_accuracy)
    known = special.logit(np.concatenate([np.asarray(x, dtype=float), thresholds]))
    low, high = float(known.min()) - 0.4, float(known.max()) + 0.4
    kept: dict[float, str] = {}
    for value in sorted(LOGIT_TICKS, key=lambda tick: tick not in thresholds):
        place = float(logit(np.array([value]), examples)[0])
        apart = all(abs(place - special.logit(other)) > 0.11 * (high - low) for other in kept)
        if low <= place <= high and apart:
            kept[float(special.expit(place))] = f"{value:.3g}"
    return style.ChartAxis(label, float(special.expit(low)), float(special.expit(high)), "logit", ticks=kept)


# Accuracy over steps at the settings of papers, one panel per paper, with the papers' steps as rules.

COLUMNS: Final = 2


def beside_papers(study: Papers) -> style.Drawing:
    """Draw validation accuracy (solid) and training accuracy (thin, dashed) over log steps."""
    titles = list(dict.fromkeys(t.paper.title for t in study.trained))
    charts = [_panel(title, [t for t in study.trained if t.paper.title == title], study.curves) for title in titles]
    names = pd.concat([pd.Series(f"{t.paper.title}: {t.arm.name}", t.rows.index) for t in study.trained])
    data = study.curves[["run_id", "step", "train_acc", "val_acc"]]
    data = data.assign(condition=data["run_id"].map(names))
    caption = (
        "Validation accuracy (thick) and training accuracy of mini-batches (thin, dashed), one line per seed. Vertical "
        "line: the paper's step, which the legend or title names. A line that ends below 95% is a run that ended there."
    )
    columns = min(COLUMNS, len(titles))
    count, title = f"{len(names):,} runs", "Accuracy at the settings of papers, with the papers' steps"
    return draw("beside_papers", title, caption, charts, data, count, columns=columns, width=style.WIDTH * columns)


def _panel(title: str, trained: list[Trained], curves: pd.DataFrame) -> style.Chart:
    known = curves[(curves["step"] > 0) & curves["run_id"].isin(pd.concat([t.rows for t in trained]).index)]
    layers: list[style.Lines] = []
    steps: dict[int, style.Rule] = {}
    for i, part in enumerate(part for t in trained for part in parts(t)):
        theirs = part.arm.theirs
        mark = f"; paper: {theirs:,}" if theirs is not None else ""
        colour, group = style.SERIES[i % len(style.SERIES)], f"{part.arm.name} ({len(part.rows)}{mark})"
        mine, runs = known[known["run_id"].isin(part.rows.index)], frozenset(part.rows.index)
        layers.append(style.Lines(group, colour, mine, "step", "train_acc", runs, 0.35, 0.6, "dashed"))
        layers.append(style.Lines(group, colour, mine, "step", "val_acc", runs, 1.0, 1.5))
        if theirs is not None:
            steps.setdefault(theirs, style.Rule("x", theirs, colour=colour))
    phases = trained[0].paper.phases
    steps |= {step: style.Rule("x", step, colour=style.INK) for step in phases.values()}
    last = max([float(known["step"].max()), *steps])
    return style.Chart(
        style.ChartAxis("step (log)", float(known["step"].min()), 1.25 * last, "log"),
        style.ChartAxis("accuracy", -0.02, 1.03),
        (*[steps[step] for step in sorted(steps)], *layers),
        title=": ".join([title, ", ".join(f"{name} {step:,}" for name, step in phases.items())][: 1 + bool(phases)]),
    )
