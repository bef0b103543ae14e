"""Figures of seeds: curves, histograms, strips and cumulative curves, some beside papers or for ``results/`` alone.

Accuracy has a logit axis in some: from 1% to 2% is as far as from 98% to 99%, so that rare seeds at both ends are
visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from grok.analysis.criteria import DIARY, UNJUDGED, usual_length
from grok.analysis.figures import style
from grok.analysis.figures.render import draw
from grok.analysis.observations import floats, how_many
from grok.analysis.statistics.survival import SurvivalCurve, Times, kaplan_meier, watched_until
from grok.analysis.studies.base import Study
from grok.analysis.studies.branching import Branching, validation_examples
from grok.analysis.studies.census import Census
from grok.analysis.studies.conditions import Comparison
from grok.analysis.studies.papers import Papers, Trained, parts
from grok.analysis.studies.regimes import AFTER, BEFORE, TOGETHER, Regimes
from grok.analysis.studies.survival import Survival
from grok.analysis.studies.val_shuffle import ValShuffle

MOST: Final = 60
"""Largest number of lines per group, spread evenly over the runs in order of run_id."""
FEW: Final = 20
"""Number of seeds up to which their lines are bolder."""
CLASS_STYLES: Final = {
    "not": (style.CLASS_COLOURS["not judged"], 0.8, 0.7),
    "diverged": (style.CLASS_COLOURS["diverged"], 0.8, 0.9),
    "normal": (style.CLASS_COLOURS["normal"], 0.45, 0.7),
    "fast": (style.CLASS_COLOURS["fast"], 0.8, 0.9),
    "super": (style.CLASS_COLOURS["super"], 0.9, 1.1),
}
TIME_STYLES: Final = {
    "not": (style.GREY, 0.6, 0.7),
    "generalised": (style.BLUE, 0.5, 0.7),
    "late": (style.BLUE, 0.5, 0.7),
    "early": (style.TEAL, 0.9, 1.1),
}
"""First word of the label: (colour, opacity, line width), drawn in this order."""
REGIME_COLOURS: Final = {BEFORE: style.BLUE, TOGETHER: style.VIOLET, AFTER: style.TEAL}


def spread(ids: pd.Index, most: int = MOST) -> pd.Index:
    """Return at most ``most`` of ``ids``, evenly spaced."""
    ids = ids.sort_values()
    return ids if len(ids) <= most else ids[np.linspace(0, len(ids) - 1, most).astype(int)]


def seed_curves(census: Census) -> style.Drawing | None:
    """Draw validation accuracy over steps, coloured by the seed's class."""
    label, styles = census.kinds, CLASS_STYLES if census.population.has_diary_task else TIME_STYLES
    curves = census.curves[census.curves["run_id"].isin(label.index)]
    layers, frames, drawn = [], [], 0
    bold = 1.6 if len(label) <= FEW else 1.0
    for kind, (colour, alpha, width) in styles.items():
        members = label[label.str.split().str[0] == kind]
        mine = curves[curves["run_id"].isin(members.index)]
        if mine.empty:
            continue
        chosen = frozenset(spread(pd.Index(mine["run_id"].unique())))
        drawn += len(chosen)
        group = f"{members.iloc[0]} ({style.of_all(len(chosen), len(members))})"
        layers.append(style.Lines(group, colour, mine, "step", "val_acc", chosen, min(1, bold * alpha), bold * width))
        frames.append(mine[mine["run_id"].isin(chosen)].assign(label=members.iloc[0]))
    if not frames:
        return None
    ends = curves.groupby("run_id")["step"].max()
    last = _end(census)
    caption = f"One line is one seed. Drawn: {style.of_all(drawn, len(label))}."
    if longer := int((ends > last).sum()):
        caption += f" Runs that go on beyond the axis, up to step {ends.max():,}: {longer}."
    axis = style.ChartAxis("validation accuracy", -0.02, 1.03)
    chart = style.Chart(style.ChartAxis("step", 0, last), axis, tuple(layers), height=2.2)
    data = pd.concat(frames)[["run_id", "label", "step", "val_acc", "val_loss"]]
    title = "Validation accuracy of single seeds"
    return draw("seed_curves", title, caption, [chart], data, f"{style.of_all(drawn, len(label))} seeds")


def _end(census: Census) -> int:
    """Return the step at which the axis ends: few long runs would leave no room for all others."""
    return min(usual_length(census.rows["config.train.steps"]), int(census.curves["step"].max()))


def order_of_events(regimes: Regimes) -> style.Drawing | None:
    """Draw the step at which the norm first fell against the step of generalisation."""
    done = regimes.events[regimes.events["first"].isin(list(REGIME_COLOURS))]
    if done.empty:
        return None
    never = float(regimes.curves["step"].max()) * 1.25
    fell = np.isfinite(done["fall"]).to_numpy()
    places = pd.DataFrame({"run_id": done.index, "x": done["grokked"], "y": np.where(fell, done["fall"], never)})
    low = max(1.0, 0.7 * float(places[["x", "y"]].min().min()))
    layers = []
    for name, colour in REGIME_COLOURS.items():
        here = places[(done["first"] == name).to_numpy()]
        if len(here):
            layers.append(style.Points(f"{name} ({len(here):,})", colour, here))
    missing = int((~fell).sum())
    rules = [style.Rule("diagonal"), *([style.Rule("y", never / 1.06)] if missing else [])]
    chart = style.Chart(
        style.ChartAxis("step of generalisation", low, never, "log"),
        style.ChartAxis("step at which the norm first fell", low, never * 1.15, "log"),
        (*rules, *layers),
        height=2.7,
    )
    caption = (
        f"{len(done):,} generalised seed{'s' * (len(done) > 1)}. On the dashed line both happen at the same step; "
        "below it the norm falls first, above it the seed generalises first."
    )
    if missing:
        caption += f" Above the upper dashed line: not fallen by 1% when the run ended ({missing:,})."
    data = done[["grokked", "fall", "climb", "first"]].rename_axis("run_id").reset_index()
    title = "Fall of the weight norm and generalisation"
    return draw("order_of_events", title, caption, [chart], data, f"{len(done):,} seeds")


# Seed histograms: the step of generalisation.

UNEVEN = 50
"""Ratio of the largest to the smallest bin above which the smallest would be invisible on a linear axis."""


def counts(counted: np.ndarray) -> style.ChartAxis:
    """Return the axis of counts: logarithmic above a few seeds if the counts are uneven."""
    top = max(1.0, float(np.max(counted, initial=0)))
    if top > UNEVEN * float(np.min(counted[counted > 0], initial=top)):
        return style.ChartAxis("seeds (logarithmic above 10)", 0, 1.6 * top, scale="asinh", whole=True)
    return style.ChartAxis("seeds", 0, 1.15 * top, whole=True)


def stacked(edges: np.ndarray, groups: list[tuple[str, str, np.ndarray]]) -> tuple[list[style.Bars], style.ChartAxis]:
    """Return the bars of each group (name, colour, count by bin) that counts something, and their axis."""
    bins = pd.DataFrame({"low": edges[:-1], "high": edges[1:]})
    layers = [
        style.Bars(f"{name} ({int(count.sum()):,})", colour, bins.assign(count=count))
        for name, colour, count in groups
        if count.sum()
    ]
    return layers, counts(np.sum([count for _, _, count in groups], axis=0))


def time_histogram(census: Census) -> style.Drawing:
    """Draw the histogram of the step of generalisation; other seeds stand at the last step they were trained to."""
    times, fast = census.times, census.by_time
    steps = np.where(times.seen, times.right, np.minimum(times.left, floats(census.rows["steps"])))
    edges = _step_edges(times.right[times.seen], float(steps.max()))
    early = fast.is_early if fast else np.zeros(len(times), dtype=bool)
    longest = float(floats(census.rows["steps"]).max())
    whole = bool((steps[~times.seen] == longest).all())
    parts = {
        f"not within {longest:,.0f} steps" if whole else "not by their last step": (style.GREY, ~times.seen),
        "late" if fast else "generalised": (style.BLUE, times.seen & ~early),
        "early": (style.TEAL, early),
    }
    data = pd.DataFrame({"step from": edges[:-1], "step to": edges[1:]}).round(3)
    data = data.assign(**{name: np.histogram(steps[here], edges)[0] for name, (_, here) in parts.items()})
    layers, axis = stacked(edges, [(name, colour, data[name].to_numpy()) for name, (colour, _) in parts.items()])
    rules = [style.Rule("x", fast.median.value, f"median {fast.median.value:,.0f}")] if fast else []
    never = int((~times.seen).sum())
    caption = f"Step of generalisation of {how_many(len(times), 'seed')}. {never:,} had not generalised when their run "
    caption += f"ended{': they stand at their last step' * bool(never)}."
    if fast:
        caption += " Early: at least three times faster than the median."
    marks = pd.Series(times.right[times.seen], index=census.rows.index[times.seen])
    x = style.ChartAxis("step at which the seed generalised", 0, float(edges[-1]))
    chart = style.Chart(x, axis, (*layers, *rules), marks)
    return draw("time_histogram", "When the seeds generalised", caption, [chart], data, f"{len(times):,} seeds")


def _step_edges(times: np.ndarray, budget: float, most: int = 40) -> np.ndarray:
    """Return bin edges at multiples of the evaluation interval, so that no bin is empty by rounding."""
    values = np.unique(times)
    spacing = float(np.diff(values).min()) if len(values) > 1 else max(1.0, budget / most)
    per_bin = max(1, int(np.ceil(budget / spacing / most)))
    step = spacing * per_bin
    return np.append(0, np.arange(step, budget + step, step) + 1e-9 * step)


# Accuracy on a logit axis.

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
    known = census.curves[census.curves["step"].between(1, _end(census))].sort_values(["run_id", "step"], kind="stable")
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
    drawn = len(faint) + len(chosen)
    caption = (
        f"Training accuracy (mini-batches, dashed) and validation accuracy (solid) of {drawn:,} "
        f"seeds{f', evenly selected of {len(every):,}' if len(faint) < len(others) else ''}."
    )
    data = known[known["run_id"].isin([*faint, *chosen])][["run_id", "step", "train_acc", "val_acc"]]
    data = data.assign(name=data["run_id"].map(dict(chosen)).fillna("other"))
    title = "Training and validation accuracy, seed by seed"
    return draw("iconic", title, caption, [chart], data, f"{style.of_all(drawn, len(every))} seeds")


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
    title, count = "Validation accuracy on a logit axis", f"{len(rows):,} seeds"
    return draw("logit_histogram", title, caption, [chart], data, count)


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


# Cumulative curves of generalisation with their bands, of populations, conditions and single settings.


def stairs(curve: SurvivalCurve, end: float) -> pd.DataFrame:
    """Return the share generalised by each step up to ``end`` with its band (columns: step, share, low, high)."""
    curve = curve.until(end)

    def share(surviving: np.ndarray) -> np.ndarray:
        return 1 - np.concatenate([[1.0], surviving, surviving[-1:] if len(curve.times) else [1.0]])

    steps = np.concatenate([[0.0], curve.times, [end]])
    parts = {"share": share(curve.survival), "low": share(curve.high), "high": share(curve.low)}
    return pd.DataFrame({"step": steps, **parts})


def shares(curves: Sequence[tuple[str, str, pd.DataFrame]], label: str = "share of seeds") -> style.Chart:
    """Return the chart of cumulative curves, each (name, colour, numbers as :func:`stairs` returns them)."""
    bands = [
        style.Band(name, colour, frame.rename(columns={"step": "x", "share": "value"}), stairs=True)
        for name, colour, frame in curves
    ]
    end = max(float(frame["step"].max()) for _, _, frame in curves)
    y = style.ChartAxis(label, 0, 1.04, percent=True)
    return style.Chart(style.ChartAxis("step", 0, end), y, (style.Rule("y", 0.5), *bands))


def cumulative(study: Survival) -> style.Drawing:
    """Draw the share of seeds that have memorised and generalised by each step."""
    end = float(np.max(np.where(study.times.seen, 0, study.times.left)))
    end = min(study.end, max(end, float(np.max(study.times.right[study.times.seen], initial=0))))
    curves = [("generalised", style.BLUE, stairs(study.curve, end))]
    if study.memorised.seen.any():
        curves.append(("memorised", style.AMBER, stairs(study.memorised_curve, end)))
    n, seen = len(study.times), int(study.times.seen.sum())
    caption = f"Kaplan-Meier with 95% bands: {seen:,} of {n:,} seeds generalised, {n - seen:,} are censored."
    data = pd.concat([frame.assign(event=name) for name, _, frame in curves])
    title = "Share of seeds that have generalised by each step"
    return draw("cumulative", title, caption, [shares(curves)], data, f"{n:,} seeds")


def compare(name: str, title: str, caption: str, groups: Sequence[tuple[str, Times]]) -> style.Drawing:
    """Draw one cumulative curve per group of runs, up to the last step with enough of them at risk."""
    drawn = []
    for i, (label, times) in enumerate(groups):
        end = min(float(np.max(np.where(times.seen, times.right, times.left))), watched_until(times))
        group = f"{label} (n={len(times):,})"
        drawn.append((group, style.SERIES[i % len(style.SERIES)], stairs(kaplan_meier(times), end)))
    data = pd.concat([frame.assign(condition=label) for label, _, frame in drawn])
    count = f"{sum(len(times) for _, times in groups):,} runs"
    return draw(name, title, caption, [shares(drawn, "share generalised")], data, count)


def coupled_curves(study: ValShuffle) -> style.Drawing:
    """Draw the cumulative curves with separate and with coupled streams."""
    pairs = [("apart", study.apart), ("coupled", study.coupled)]
    caption = (
        "Share of seeds that have generalised, with the validation shuffle separate from the batch order and coupled "
        "to it."
    )
    return compare("val_shuffle", "The val-shuffle bug", caption, pairs)


# Cumulative curves of one setting at a time.

MOST_CURVES = 6


def family_curves(study: Comparison) -> list[style.Drawing]:
    """Draw the cumulative curves of every setting for which some run generalised, one figure each."""
    made = []
    for i, (family, times) in enumerate(study.families):
        if not any(t.seen.any() for t in times.values()):
            continue
        shown = list(times.items())[:MOST_CURVES]
        left = f" {len(times) - len(shown)} more values are in the table." if len(shown) < len(times) else ""
        n = sum(len(t) for _, t in shown)
        caption = f"Kaplan-Meier with 95% bands, {n} runs by {family.title}. A curve ends where too few runs are left."
        name = "by_" + family.setting.replace(".", "_") + (f"_{i + 1}" if family.at else "")
        title = f"Time to generalise by {family.title}"
        made.append(compare(name, title, caption + left, shown))
    return made


# Figures that compare the populations of a store.


def cumulative_of_populations(study: Study) -> style.Drawing:
    """Draw the share generalised by each step, one curve per population."""
    parts = study.parts[: len(style.SERIES)]
    groups = [(part.about, part.times) for part in parts]  # type: ignore[attr-defined]
    left = len(study.parts) - len(parts)
    rest = f" {left} more populations are in the table." if left else ""
    caption = f"Kaplan-Meier with 95% bands. A curve ends where too few runs are left.{rest}"
    title = "Share of seeds that have generalised by each step"
    return compare("cumulative", title, caption, groups)
