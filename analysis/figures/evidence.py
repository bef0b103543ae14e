"""Figures of the pages in ``results/``, from data frames. Call them under ``style.RC``.

Accuracy has a logit axis: from 1% to 2% is as far as from 98% to 99%, so that rare seeds at both
ends are visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray
from scipy import special, stats

from analysis.criteria import DIARY, UNJUDGED, usual_length
from analysis.figures.curves import lines, spread
from analysis.figures.style import AMBER, BLUE, GREY, INK, SMALL, SOFT, TEAL, Drawing, canvas, log_axis
from analysis.statistics.lognormal import LogNormal
from analysis.statistics.survival import kaplan_meier, watched_until
from analysis.studies.branching import Branching, validation_examples
from analysis.studies.census import Census

Floats = NDArray[np.float64]
CHOSEN: Final = (TEAL, AMBER, BLUE)
"""Colours of the chosen runs, in their order."""
LOGIT_TICKS: Final = (0.001, 0.01, 0.05, DIARY.normal_accuracy, 0.5, 0.75, 0.9, DIARY.super_accuracy, 0.999)
MOST_FAINT: Final = 200
MOST_STRIPS: Final = 18
"""Largest number of families (a parent and its redrawn streams) with a strip each."""


def logit(accuracy: pd.Series | Floats, examples: int) -> Floats:
    """Return ln(right / wrong) of accuracies over ``examples`` examples, with half an example added to both counts."""
    hits = np.asarray(accuracy, dtype=float) * examples + 0.5
    return np.asarray(np.log(hits / (examples + 1 - hits)))


def iconic(curves: pd.DataFrame, chosen: Mapping[str, str]) -> Drawing:
    """Draw training (dashed) and validation accuracy (solid) over log steps: the chosen runs in colour, others faint.

    ``curves``: columns run_id, step, train_acc, val_acc. ``chosen``: the legend's name by run_id, such as
    ``{"3f...": "seed 512 (super)"}``, for at most three runs.

    Raises:
        ValueError: more than three runs are chosen, or one is not among the curves.
    """
    known = curves[curves["step"] > 0].sort_values(["run_id", "step"], kind="stable")
    every = pd.Index(known["run_id"].unique())
    missing = [run for run in chosen if run not in every]
    if missing or len(chosen) > len(CHOSEN):
        raise ValueError(f"choose up to {len(CHOSEN)} runs of the curves; without a curve: {missing}")
    faint = spread(every.difference(pd.Index(list(chosen))), MOST_FAINT)
    figure, axes = canvas(height=3.4)
    here = known[known["run_id"].isin(faint)]
    lines(axes, here, "step", "train_acc", colors=GREY, alpha=0.25, linewidths=0.6, linestyles="dashed", zorder=1)
    lines(axes, here, "step", "val_acc", colors=GREY, alpha=0.35, linewidths=0.7, zorder=1)
    for (run, name), colour in zip(chosen.items(), CHOSEN, strict=False):
        curve = known[known["run_id"] == run]
        axes.plot(curve["step"], curve["train_acc"], color=colour, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3)
        axes.plot(curve["step"], curve["val_acc"], color=colour, linewidth=2, zorder=4, label=name)
    axes.plot([], [], color=GREY, linewidth=1, label=f"{len(every) - len(chosen):,} other seeds")
    axes.plot([], [], color=INK, linewidth=1, linestyle=(0, (4, 2)), label="training")
    axes.plot([], [], color=INK, linewidth=1.6, label="validation")
    log_axis(axes.xaxis)
    axes.set_xlim(float(known["step"].min()), float(known["step"].max()))
    axes.set_ylim(-0.02, 1.03)
    axes.set_xlabel("step (log)")
    axes.set_ylabel("accuracy")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, borderaxespad=0)
    caption = (
        f"Training accuracy (mini-batches, dashed) and validation accuracy (solid) of {len(every):,} seeds"
        + (f", {len(faint):,} of the others drawn" if len(faint) < len(every) - len(chosen) else "")
        + "."
    )
    data = known[known["run_id"].isin([*faint, *chosen])][["run_id", "step", "train_acc", "val_acc"]]
    data = data.assign(name=data["run_id"].map(dict(chosen)).fillna("other"))
    title = "Training and validation accuracy, seed by seed"
    return Drawing("iconic", title, caption, figure, data, f"{len(every):,} seeds")


def branch_strips(study: Branching) -> Drawing | None:
    """Draw the children of every family and the census; with many parents, one strip per kind of parent."""
    children = pd.concat(
        [family.rows.assign(redrawn=family.name) for family in study.families], ignore_index=True
    ).rename(columns={"accuracy": "val_acc"})
    if study.census.empty:
        return None
    one = children.groupby("seed")["parent"].transform("nunique") == 1  # named parents can share a master seed
    names = ("seed " + children["seed"].astype(str)).where(one, "run " + children["parent"].str[:8])
    by_parent = len(set(zip(names, children["redrawn"], strict=True))) <= MOST_STRIPS
    children["parent"] = names if by_parent else children["kind"] + " parents"
    order = children.sort_values(["parent"], kind="stable")[["parent", "redrawn", "val_acc"]]
    return redraw_strips(order, study.census["accuracy"], study.examples, study.horizon)


def census_logit(census: Census) -> Drawing | None:
    """Draw the logit accuracies of a census of the diary's task; None for other tasks."""
    judged = census.rows[census.rows["label"].isin(["super", "fast", "normal"])]
    if judged.empty or not census.has_diary_task:
        return None
    examples = validation_examples(judged.iloc[0])
    return logit_histogram(judged["accuracy"].astype(float), examples, census.horizon)


def census_iconic(census: Census) -> Drawing | None:
    """Draw the curves of a census, with the best super and the best fast seed in colour (else the two best seeds)."""
    ranked = census.rows[census.rows["label"] != UNJUDGED].sort_values("accuracy", ascending=False, kind="stable")
    if len(ranked) < 3:
        return None
    picks = {label: group.index[0] for label, group in ranked.groupby("label") if label in ("super", "fast")}
    chosen = [picks[label] for label in ("super", "fast") if label in picks]
    chosen = list(dict.fromkeys([*chosen, *ranked.index]))[:2]
    names = {str(run): f"seed {int(ranked.loc[run, 'seed'])} ({ranked.loc[run, 'label']})" for run in chosen}
    ends = census.curves.groupby("run_id")["step"].max()
    return iconic(census.curves[census.curves["step"] <= usual_length(ends.to_numpy(dtype=np.int64))], names)


def redraw_strips(children: pd.DataFrame, census: pd.Series, examples: int, step: int = DIARY.horizon) -> Drawing:
    """Draw the children of each parent and redrawn stream as points, and the seeds of the census below them.

    ``children``: columns parent (its name), redrawn (stream or streams) and val_acc at ``step``;
    ``census``: validation accuracies of random seeds at the same step; ``examples``: validation examples.
    """
    groups = [(str(parent), str(redrawn), group["val_acc"])
              for (parent, redrawn), group in children.groupby(["parent", "redrawn"], sort=False)]  # fmt: skip
    figure, axes = canvas(width=6.4, height=1.5 + 0.36 * (len(groups) + 1))
    _thresholds(axes, examples)
    names, frames = [], []
    rows = [("census", "", census), *groups]
    for height, (parent, redrawn, values) in enumerate(rows):
        x = logit(values, examples)
        accuracy = np.asarray(values, dtype=float)
        is_super = accuracy > DIARY.super_accuracy
        colour = np.where(is_super, TEAL, np.where(accuracy < DIARY.normal_accuracy, GREY, AMBER))
        most = 2 if len(x) > 200 else 14
        axes.scatter(x, height + _apart(x), s=most, color=colour, alpha=0.5 if most == 2 else 0.85, edgecolors="none")
        axes.plot([np.median(x)] * 2, [height - 0.36, height + 0.36], color=INK, linewidth=1.4, zorder=4)
        name = "census of random seeds" if parent == "census" else f"{parent}: {redrawn} redrawn"
        names.append(f"{name}\n{int(is_super.sum())} super of {len(x):,}")
        frames.append(pd.DataFrame({"parent": parent, "redrawn": redrawn, "val_acc": accuracy, "logit": x}))
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    _logit_axis(axes, examples, np.concatenate([frame["logit"].to_numpy() for frame in frames]))
    axes.set_xlabel(f"validation accuracy at step {step:,} (logit axis)")
    caption = (
        f"Each point is a run at step {step:,}. Lowest row: the census of {len(census):,} random seeds. Other rows: "
        "children of one parent, or of all parents of a kind, with the named streams redrawn and the others kept. Bar: "
        f"median. Dashed: the diary's thresholds ({DIARY.normal_accuracy} and {DIARY.super_accuracy})."
    )
    count = f"{len(children):,} children, {len(census):,} seeds"
    return Drawing(
        "redraw_strips", "Children with redrawn streams, and random seeds", caption, figure, pd.concat(frames), count
    )


def qq_log_time(fitted: LogNormal, level: float = 0.95) -> Drawing | None:
    """Draw the normal quantile plot of log times, with the pointwise band of samples of one log-normal.

    The line is ``fitted``. Censored runs count in the fit and in the ranks (Kaplan-Meier) but have no point. Times
    after the last step with enough runs at risk have none either: their ranks are those of a few longer runs, and the
    band, which is that of a sample of all runs, would be far too narrow for them. None if no time is left.
    """
    known, centre, width = fitted.times, fitted.mean, fitted.sd
    n, seen = len(known), int(known.seen.sum())
    end = watched_until(known)
    curve = kaplan_meier(known).until(end)
    if not len(curve.times):
        return None
    late = int((known.seen & (known.points > end)).sum())
    before = np.concatenate([[1.0], curve.survival[:-1]])
    rank = 1 - (before + curve.survival) / 2
    place = np.clip(rank * n + 0.5, 1, n)
    tail = (1 - level) / 2
    low, high = (
        np.exp(centre + width * special.ndtri(stats.beta.ppf(p, place, n - place + 1))) for p in (tail, 1 - tail)
    )
    z = special.ndtri(rank)
    figure, axes = canvas(height=3.4)
    axes.fill_between(z, low, high, color=GREY, alpha=0.25, linewidth=0)
    axes.plot(z, np.exp(centre + width * z), color=SOFT, linewidth=1)
    outside = (curve.times < low) | (curve.times > high)
    for here, label, style in (
        (~outside, "inside the band", {"s": 14, "color": BLUE}),
        (outside, "outside it", {"s": 22, "color": AMBER, "marker": "D"}),
    ):
        if here.any():
            axes.scatter(z[here], curve.times[here], label=label, edgecolors="none", zorder=3, **style)
    axes.yaxis.grid(True)
    log_axis(axes.yaxis)
    axes.set_xlabel("standard normal quantile")
    axes.set_ylabel("step of generalisation (log)")
    axes.legend(loc="upper left")
    caption = (
        f"{seen:,} of {n:,} seeds generalised; seeds with the same step share a point. Line: the log-normal of maximum "
        "likelihood (median "
        f"{fitted.median:,.0f} steps, standard deviation of the log {width:.2f}). Band: {level:.0%} of samples of it "
        f"have the point of that rank inside; {int(outside.sum())} points lie outside."
    )
    if late:
        caption += (
            f" {late} seeds that generalised after step {end:,.0f} have no point: too few were trained that long to "
            "know their ranks."
        )
    frame = pd.DataFrame({"normal": z, "step": curve.times, "runs": curve.events, "low": low, "high": high})
    return Drawing("qq_log_time", "Is one log-normal enough?", caption, figure, frame, f"{n:,} seeds")


def logit_histogram(accuracy: pd.Series, examples: int, step: int = DIARY.horizon, bins: int = 40) -> Drawing:
    """Draw the histogram of logit validation accuracy at ``step``, with the diary's thresholds and classes.

    ``accuracy``: one value per seed; ``examples``: validation examples.
    """
    values = accuracy.dropna()
    x = logit(values, examples)
    ends = logit(np.array([DIARY.normal_accuracy, DIARY.super_accuracy]), examples)
    edges = _edges(x, ends, bins)
    figure, axes = canvas()
    _thresholds(axes, examples)
    classes = (
        ("normal", GREY, x < ends[0]),
        ("fast", AMBER, (x >= ends[0]) & (x <= ends[1])),
        ("super", TEAL, x > ends[1]),
    )
    data = pd.DataFrame({"logit from": edges[:-1], "logit to": edges[1:]})
    for name, colour, here in classes:
        data[name] = np.histogram(x[here], edges)[0]
        label = f"{name} ({int(here.sum()):,})"
        axes.bar(edges[:-1], data[name], np.diff(edges) * 0.92, align="edge", color=colour, label=label)
    top = float(data[["normal", "fast", "super"]].to_numpy().max(initial=1))
    if top > 50:
        axes.set_yscale("symlog", linthresh=10, linscale=0.6)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylabel("seeds (log above 10)" if top > 50 else "seeds")
    _logit_axis(axes, examples, x)
    axes.set_xlabel(f"validation accuracy at step {step:,} (logit axis)")
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.22), ncols=3, borderaxespad=0, columnspacing=1, handlelength=1.2
    )
    caption = (
        f"Validation accuracy of {len(values):,} seeds at step {step:,} on a logit axis. Dashed: the diary's "
        f"thresholds ({DIARY.normal_accuracy} and {DIARY.super_accuracy})."
    )
    return Drawing(
        "logit_histogram", "Validation accuracy on a logit axis", caption, figure, data, f"{len(values):,} seeds"
    )


def _edges(x: Floats, thresholds: Floats, bins: int) -> Floats:
    """Return bin edges over ``x`` that include the thresholds, so that each bar has one class."""
    low, high = min(float(x.min()), float(thresholds[0])) - 0.1, max(float(x.max()), float(thresholds[1])) + 0.1
    width = (high - low) / bins
    ends = [low, *thresholds, high]
    parts = [np.linspace(a, b, max(2, round((b - a) / width) + 1)) for a, b in pairwise(ends)]
    return np.unique(np.concatenate(parts))


def _apart(x: Floats, most: float = 0.34) -> Floats:
    """Return deterministic vertical offsets (n,) that separate equal values and show no pattern."""
    turns = np.argsort(np.argsort(x, kind="stable"), kind="stable") * 0.6180339887498949 % 1.0
    return np.asarray((2 * turns - 1) * most)


def _thresholds(axes: Axes, examples: int) -> None:
    for threshold in (DIARY.normal_accuracy, DIARY.super_accuracy):
        x = float(logit(np.array([threshold]), examples)[0])
        axes.axvline(x, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)


def _logit_axis(axes: Axes, examples: int, x: Floats) -> None:
    """Label a logit axis by accuracies."""
    ends = logit(np.array([DIARY.normal_accuracy, DIARY.super_accuracy]), examples)
    low, high = min(float(x.min()), float(ends[0])) - 0.5, max(float(x.max()), float(ends[1])) + 0.5
    at = logit(np.array(LOGIT_TICKS), examples)
    shown = [(place, value) for place, value in zip(at, LOGIT_TICKS, strict=True) if low <= place <= high]
    kept: list[tuple[float, float]] = []
    for place, value in sorted(shown, key=lambda pair: pair[1] not in (DIARY.normal_accuracy, DIARY.super_accuracy)):
        if all(abs(place - other) > 0.11 * (high - low) for other, _ in kept):
            kept.append((place, value))
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator([place for place, _ in kept]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([place for place, _ in kept], [f"{value:.3g}" for _, value in kept], fontsize=SMALL)
