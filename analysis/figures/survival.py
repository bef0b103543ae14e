"""Cumulative curves of generalisation with their bands, of populations, conditions and single settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from grok.analysis.figures.render import draw
from grok.analysis.figures.style import AMBER, BLUE, SERIES, Band, Chart, ChartAxis, Drawing, Rule
from grok.analysis.statistics.survival import SurvivalCurve, kaplan_meier
from grok.analysis.studies.base import Study
from grok.analysis.studies.conditions import Comparison
from grok.analysis.studies.survival import Survival
from grok.analysis.studies.val_shuffle import ValShuffle


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
    return Chart(ChartAxis("step", 0, end), ChartAxis(label, 0, 1.04, percent=True), (Rule("y", 0.5), *bands))


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


def compare(
    name: str, title: str, caption: str, curves: Sequence[tuple[str, SurvivalCurve]], ends: Sequence[float]
) -> Drawing:
    """Draw one cumulative curve per condition; ``ends``: the last step of each."""
    drawn = [
        (f"{label} (n={curve.n:,})", SERIES[i % len(SERIES)], stairs(curve, end))
        for i, ((label, curve), end) in enumerate(zip(curves, ends, strict=True))
    ]
    data = pd.concat([frame.assign(condition=label) for label, _, frame in drawn])
    count = f"{sum(curve.n for _, curve in curves):,} runs"
    return draw(name, title, caption, [shares(drawn, "share generalised")], data, count)


def coupled_curves(study: ValShuffle) -> Drawing:
    """Draw the cumulative curves with separate and with coupled streams."""
    end = float(max(np.max(np.where(t.seen, t.right, t.left)) for t in (study.apart, study.coupled)))
    pairs = [("apart", kaplan_meier(study.apart)), ("coupled", kaplan_meier(study.coupled))]
    caption = (
        "Share of seeds that have generalised, with the validation shuffle separate from the batch order and coupled "
        "to it."
    )
    return compare("val_shuffle", "The val-shuffle bug", caption, pairs, [end, end])


# Cumulative curves of one setting at a time.

MOST_CURVES = 6


def family_curves(study: Comparison) -> list[Drawing]:
    """Draw the cumulative curves of every setting for which some run generalised, one figure each."""
    made = []
    for i, (family, curves) in enumerate(study.families):
        if not any(len(curve.times) for curve, _ in curves.values()):
            continue
        shown = {str(value): pair for value, pair in list(curves.items())[:MOST_CURVES]}
        left = f" {len(curves) - len(shown)} more values are in the table." if len(shown) < len(curves) else ""
        n = sum(curve.n for curve, _ in shown.values())
        caption = f"Kaplan-Meier with 95% bands, {n} runs by {family.title}. A curve ends where too few runs are left."
        name = "by_" + family.setting.replace(".", "_") + (f"_{i + 1}" if family.at else "")
        title = f"Time to generalise by {family.title}"
        pairs = [(value, curve) for value, (curve, _) in shown.items()]
        made.append(compare(name, title, caption + left, pairs, [end for _, end in shown.values()]))
    return made


# Figures that compare the populations of a store.


def cumulative_of_populations(study: Study) -> Drawing:
    """Draw the share generalised by each step, one curve per population."""
    parts = study.parts[: len(SERIES)]
    curves = [(part.about, part.curve) for part in parts]  # type: ignore[attr-defined]
    ends = [min(part.end, part.last) for part in parts]  # type: ignore[attr-defined]
    left = len(study.parts) - len(parts)
    rest = f" {left} more populations are in the table." if left else ""
    caption = f"Kaplan-Meier with 95% bands. A curve ends where too few runs are left.{rest}"
    title = "Share of seeds that have generalised by each step"
    return compare("cumulative", title, caption, curves, ends)
