"""Curves over steps: accuracy and loss of the seeds by class, and the phase portrait of the regimes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from analysis.criteria import usual_length
from analysis.figures.chart import Axis, Chart, Lines, Points, Rule
from analysis.figures.style import (
    BLUE,
    CLASS_COLOURS,
    GREY,
    SMALL,
    SOFT,
    TEAL,
    VIOLET,
    Drawing,
    canvas,
    log_axis,
    steps_axis,
)
from analysis.studies.census import Census
from analysis.studies.regimes import AFTER, BEFORE, TOGETHER, Regimes

MOST: Final = 60
"""Largest number of lines per group, spread evenly over the runs in order of run_id."""
CLASS_STYLES: Final = {
    "normal": (CLASS_COLOURS["normal"], 0.45, 0.7),
    "fast": (CLASS_COLOURS["fast"], 0.8, 0.9),
    "super": (CLASS_COLOURS["super"], 0.9, 1.1),
}
TIME_STYLES: Final = {"not yet": (GREY, 0.6, 0.7), "later": (BLUE, 0.5, 0.7), "super": (TEAL, 0.9, 1.1)}
"""Label: (colour, opacity, line width), drawn in this order."""
REGIME_COLOURS: Final = {BEFORE: BLUE, TOGETHER: VIOLET, AFTER: TEAL}


def spread(ids: pd.Index, most: int = MOST) -> pd.Index:
    """Return at most ``most`` of ``ids``, evenly spaced."""
    ids = ids.sort_values()
    return ids if len(ids) <= most else ids[np.linspace(0, len(ids) - 1, most).astype(int)]


def lines(axes: Axes, curves: pd.DataFrame, x: str, y: str, **options: Any) -> None:
    """Draw one thin line per run."""
    paths = [g[[x, y]].to_numpy(dtype=float) for _, g in curves.dropna(subset=[x, y]).groupby("run_id", sort=True)]
    axes.add_collection(LineCollection(paths, **options))


def bounds(values: pd.Series) -> tuple[float, float]:
    """Return the ends of an axis for ``values``, with a margin of 4%."""
    finite = values.to_numpy(dtype=float)
    finite = finite[np.isfinite(finite)]
    first, last = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    room = 0.04 * (last - first) or 1.0
    return first - room, last + room


def seed_curves(census: Census) -> Drawing | None:
    """Draw validation accuracy and loss over steps, coloured by the seed's class."""
    if census.curves.empty:
        return None
    label, styles = census.rows["label"], CLASS_STYLES
    if not census.has_diary_task:
        # The diary's thresholds were made for its task; on other tasks the definition by time applies.
        seen = np.where(census.times.seen, "later", "not yet")
        fastest = census.by_time.is_super if census.by_time is not None else np.zeros(len(seen), dtype=bool)
        label, styles = pd.Series(np.where(fastest, "super", seen), index=label.index), TIME_STYLES
    figure, (top, bottom) = canvas(height=4.6, rows=2, sharex=True)
    drawn, layers = [], []
    for z, (name, (colour, alpha, width)) in enumerate(styles.items(), 1):
        ids = spread(label.index[label == name])
        chosen = census.curves[census.curves["run_id"].isin(ids)]
        if chosen.empty:
            continue
        style = {"colors": colour, "alpha": alpha, "linewidths": width, "zorder": z}
        lines(top, chosen, "step", "val_acc", **style)
        lines(bottom, chosen, "step", "val_loss", **style)
        drawn.append(chosen.assign(label=name))
        members = label.index[label == name]
        frame = census.curves[census.curves["run_id"].isin(members)]
        layers.append((f"{name} ({len(members):,})", colour, frame, frozenset(ids), alpha, width))
    if not drawn:
        return None
    data = pd.concat(drawn)[["run_id", "label", "step", "val_acc", "val_loss"]]
    ends = census.curves[census.curves["run_id"].isin(label.index)].groupby("run_id")["step"].max()
    last = usual_length(ends.to_numpy(dtype=np.int64))  # a few long runs would leave no room for all others
    longer = int((ends > last).sum())
    top.set_xlim(0, last)
    top.set_ylim(-0.02, 1.03)
    top.set_ylabel("validation accuracy")
    most_loss = float(np.nanquantile(data["val_loss"].to_numpy(dtype=float), 0.999)) * 1.08
    bottom.set_ylim(0, most_loss)
    bottom.set_ylabel("validation loss")
    steps_axis(bottom)
    for i, name in enumerate(n for n in reversed(styles) if (data["label"] == n).any()):
        top.annotate(
            f"{name} ({int((label == name).sum()):,})",
            (1, 1),
            xycoords="axes fraction",
            xytext=(-2 - 88 * i, 3),
            textcoords="offset points",
            ha="right",
            color=SOFT if styles[name][0] == GREY else styles[name][0],
            fontsize=SMALL,
        )
    caption = f"Up to {MOST} seeds of each class, evenly selected; the counts are of all {len(label):,} seeds."
    if styles is TIME_STYLES:
        caption += " Later: generalised, but not super."
    if longer:
        runs = f"{longer} runs go" if longer > 1 else "1 run goes"
        caption += f" {runs} on beyond the axis, up to step {ends.max():,}."
    charts = tuple(
        Chart(
            Axis("step", 0, last),
            axis,
            tuple(
                Lines(group, colour, frame, "step", y, ids, alpha, width)
                for group, colour, frame, ids, alpha, width in layers
            ),
        )
        for y, axis in (
            ("val_acc", Axis("validation accuracy", -0.02, 1.03)),
            ("val_loss", Axis("validation loss", 0, most_loss)),
        )
    )
    count = f"{len(label):,} seeds"
    return Drawing("seed_curves", "Accuracy and loss of single seeds", caption, figure, data, count, charts)


def phase_portrait(regimes: Regimes) -> Drawing | None:
    """Draw validation loss against weight norm, one line per run from start to end, by order of events."""
    figure, axes = canvas(height=3.6)
    drawn, notes = [], []
    layers: list[Lines] = []
    dots: list[Points] = []
    curves = regimes.curves[regimes.curves["step"] > 0].dropna(subset=["weight_norm", "val_loss"])
    curves = curves[curves["val_loss"] > 0]
    for name in REGIME_COLOURS:
        every = regimes.events.index[regimes.events["first"] == name]
        ids = spread(every, 30)
        chosen = curves[curves["run_id"].isin(ids)]
        if chosen.empty:
            continue
        lines(
            axes,
            chosen,
            "weight_norm",
            "val_loss",
            colors=REGIME_COLOURS[name],
            alpha=0.5,
            linewidths=0.8,
            zorder={BEFORE: 1, TOGETHER: 2, AFTER: 3}[name],
        )
        at = chosen[chosen["step"] == chosen["run_id"].map(regimes.events["grokked"])]
        axes.scatter(at["weight_norm"], at["val_loss"], s=14, color=REGIME_COLOURS[name], edgecolors="none", zorder=4)
        drawn.append(chosen.assign(first=name)[["run_id", "first", "step", "weight_norm", "val_loss"]])
        notes.append((name, len(every)))
        colour = REGIME_COLOURS[name]
        layers.append(
            Lines(f"{name} ({len(every):,})", colour, drawn[-1], "weight_norm", "val_loss", frozenset(ids), 0.5)
        )
        dots.append(Points("", colour, at.rename(columns={"weight_norm": "x", "val_loss": "y"})[["run_id", "x", "y"]]))
    if not drawn:
        return None
    data = pd.concat(drawn)
    axes.set_yscale("log")
    axes.autoscale_view()
    axes.set_xlabel("weight norm (without embeddings)")
    axes.set_ylabel("validation loss")
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    for i, (name, n) in enumerate(notes):
        axes.annotate(
            f"{name} ({n})",
            (0, 1),
            xycoords="axes fraction",
            xytext=(4 + 70 * i, 4),
            textcoords="offset points",
            color=REGIME_COLOURS[name],
            fontsize=SMALL,
        )
    caption = (
        f"Each line is one of {sum(n for _, n in notes):,} generalised seeds (up to 30 per order of events), from its "
        "first evaluation to its last. The dot marks the step of generalisation."
    )
    loss = data["val_loss"]
    chart = Chart(
        Axis("weight norm (without embeddings)", *bounds(data["weight_norm"])),
        Axis("validation loss", 0.9 * float(loss.min()), 1.1 * float(loss.max()), log=True),
        (*layers, *dots),
    )
    count = f"{sum(n for _, n in notes):,} seeds"
    return Drawing("phase_portrait", "Weight norm against validation loss", caption, figure, data, count, (chart,))


def order_of_events(regimes: Regimes) -> Drawing | None:
    """Draw the step at which the norm began to fall against the step of generalisation."""
    done = regimes.events[regimes.events["first"].isin(list(REGIME_COLOURS))]
    if done.empty:
        return None
    figure, axes = canvas(height=3.6)
    last = float(regimes.curves["step"].max())
    never = last * 1.25
    x = done["grokked"].to_numpy(dtype=float)
    y = np.where(np.isfinite(done["fall"]), done["fall"], never)
    low = max(1.0, 0.7 * float(min(x.min(), y.min())))
    axes.plot([low, never], [low, never], color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
    for name in REGIME_COLOURS:
        here = (done["first"] == name).to_numpy()
        if here.any():
            label, colour = f"{name} ({int(here.sum()):,})", REGIME_COLOURS[name]
            axes.scatter(x[here], y[here], s=16, alpha=0.75, color=colour, edgecolors="none", zorder=2, label=label)
    for axis in (axes.xaxis, axes.yaxis):
        log_axis(axis)
    axes.set_xlim(low, never)
    axes.set_ylim(low, never * 1.15)
    axes.set_xlabel("step of generalisation")
    axes.set_ylabel("step at which the norm began to fall")
    axes.annotate(
        "norm falls first",
        (0.97, 0.05),
        xycoords="axes fraction",
        ha="right",
        color=REGIME_COLOURS[BEFORE],
        fontsize=SMALL,
    )
    axes.annotate(
        "generalises first",
        (0, 1),
        xycoords="axes fraction",
        xytext=(4, 4),
        textcoords="offset points",
        color=REGIME_COLOURS[AFTER],
        fontsize=SMALL,
    )
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.18), borderaxespad=0)
    missing = int((~np.isfinite(done["fall"])).sum())
    if missing:
        axes.axhline(never / 1.06, color=SOFT, linewidth=0.6, zorder=1)
        axes.annotate(
            "not fallen", (1, never / 1.06), xycoords=("axes fraction", "data"), xytext=(-4, -3),
            textcoords="offset points", ha="right", va="top", color=SOFT, fontsize=SMALL,
        )  # fmt: skip
    caption = f"{len(done):,} generalised seeds. On the dashed line both happen at the same step. "
    caption += (
        f"The norm of {missing} seeds, at the upper edge, had not fallen by 1% when they ended." if missing else ""
    )
    data = done[["grokked", "fall", "climb", "first"]].rename_axis("run_id").reset_index()
    places = pd.DataFrame({"run_id": done.index, "x": x, "y": y})
    layers = tuple(
        Points(f"{name} ({int(here.sum()):,})", REGIME_COLOURS[name], places[here])
        for name in REGIME_COLOURS
        if (here := (done["first"] == name).to_numpy()).any()
    )
    chart = Chart(
        Axis("step of generalisation", low, never, log=True),
        Axis("step at which the norm began to fall", low, never * 1.15, log=True),
        (Rule("diagonal", 0.0), *layers),
    )
    count = f"{len(done):,} seeds"
    title = "Fall of the weight norm and generalisation"
    return Drawing("order_of_events", title, caption.strip(), figure, data, count, (chart,))
