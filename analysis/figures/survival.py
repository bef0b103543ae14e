"""Cumulative curves of generalisation with their bands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figures.chart import Axis, Band, Chart, Rule
from analysis.figures.evidence import qq_log_time
from analysis.figures.render import draw
from analysis.figures.style import AMBER, BLUE, SERIES, Drawing
from analysis.statistics.survival import SurvivalCurve, kaplan_meier
from analysis.studies.survival import Survival
from analysis.studies.val_shuffle import ValShuffle


def stairs(curve: SurvivalCurve, end: float) -> pd.DataFrame:
    """Return the share generalised by each step up to ``end`` with its band (columns: step, share, low, high)."""
    curve = curve.until(end)

    def share(surviving: np.ndarray) -> np.ndarray:
        return 1 - np.concatenate([[1.0], surviving, surviving[-1:] if len(curve.times) else [1.0]])

    steps = np.concatenate([[0.0], curve.times, [end]])
    parts = {"share": share(curve.survival), "low": share(curve.high), "high": share(curve.low)}
    return pd.DataFrame({"step": steps, **parts})


def shares(curves: Sequence[tuple[str, str, pd.DataFrame]], label: str = "share of seeds") -> Chart:
    """Return the chart of cumulative curves, each (name, colour, numbers as :func:`stairs` returns them)."""
    bands = [
        Band(name, colour, frame.rename(columns={"step": "x", "share": "value"}), stairs=True)
        for name, colour, frame in curves
    ]
    end = max(float(frame["step"].max()) for _, _, frame in curves)
    return Chart(Axis("step", 0, end), Axis(label, 0, 1.04, percent=True), (Rule("y", 0.5), *bands))


def cumulative(study: Survival) -> Drawing:
    """Draw the share of seeds that have memorised and generalised by each step."""
    end = float(np.max(np.where(study.times.seen, 0, study.times.left)))
    end = min(study.end, max(end, float(np.max(study.times.right[study.times.seen], initial=0))))
    curves = [("generalised", BLUE, stairs(study.curve, end))]
    if study.memorised.seen.any():
        curves.append(("memorised", AMBER, stairs(study.memorised_curve, end)))
    n, seen = len(study.times), int(study.times.seen.sum())
    caption = f"Kaplan-Meier with 95% bands: {seen:,} of {n:,} seeds generalised, {n - seen:,} are censored."
    data = pd.concat([frame.assign(event=name) for name, _, frame in curves])
    title = "Share of seeds that have generalised by each step"
    return draw("cumulative", title, caption, [shares(curves)], data, f"{n:,} seeds")


def quantile_plot(study: Survival) -> Drawing | None:
    """Draw the times against the quantiles of the fitted log-normal; None if none was fitted."""
    if study.lognormal is None:
        return None
    return qq_log_time(study.lognormal)


def compare(
    name: str, title: str, caption: str, curves: Sequence[tuple[str, SurvivalCurve]], ends: Sequence[float]
) -> Drawing:
    """Draw one cumulative curve per condition; ``ends``: the last step of each."""
    drawn = [
        (f"{label} (n={curve.n:,})", SERIES[i % len(SERIES)], stairs(curve, end))
        for i, ((label, curve), end) in enumerate(zip(curves, ends, strict=True))
    ]
    data = pd.concat([frame.assign(condition=label) for label, _, frame in drawn])
    count = f"{sum(curve.n for _, curve in curves):,} seeds"
    return draw(name, title, caption, [shares(drawn, "share of seeds generalised")], data, count)


def coupled_curves(study: ValShuffle) -> Drawing:
    """Draw the cumulative curves with separate and with coupled streams."""
    end = float(max(np.max(np.where(t.seen, t.right, t.left)) for t in (study.apart, study.coupled)))
    pairs = [("apart", kaplan_meier(study.apart)), ("coupled", kaplan_meier(study.coupled))]
    caption = (
        "Share of seeds that have generalised, with the validation shuffle separate from the batch order and coupled "
        "to it."
    )
    return compare("val_shuffle", "The val-shuffle bug", caption, pairs, [end, end])
