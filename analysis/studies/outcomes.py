"""The one number per run that studies of causes explain: restricted log time, or accuracy where time is unknown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.criteria import DIARY, accuracy_at
from analysis.observations import Observations, floats
from analysis.statistics.estimate import NotEnoughData

MOST_CENSORED = 0.5
"""Above this share of runs that had not generalised, times say too little."""


@dataclass(frozen=True)
class Outcome:
    """A number per run, smaller is faster."""

    values: NDArray[np.float64]
    name: str
    """What it is, in words."""
    is_time: bool
    horizon: float
    """Step up to which times count, or at which accuracy is read."""
    censored: float
    """Share of runs that had not generalised by then."""
    rounding: float = 0.0
    """Variance that the spacing of the evaluations alone gives a value: replicates may agree no better than that."""


def restricted_log_time(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return ln(min(step of generalisation, horizon)) of each run.

    The horizon is the largest step up to which every run's time is known: a short run that
    generalised is known altogether, so only those that did not hold it down.

    Raises:
        NotEnoughData: more than half of the runs had not generalised by then.
    """
    if rows.empty:
        raise NotEnoughData("runs")
    times = observations.times(rows)
    budget = float(floats(rows["config.train.steps"]).max())
    horizon = float(times.left[~times.seen].min(initial=budget))
    # A run seen to generalise at its very last evaluation counts as generalised within the horizon.
    late = ~times.seen | (times.right > horizon)
    censored = float(late.mean())
    if censored > MOST_CENSORED:
        raise NotEnoughData(
            f"longer runs: {censored:.0%} of {len(rows)} had not generalised by step {horizon:,.0f} (train.steps)"
        )
    values = np.log(np.where(late, horizon, np.maximum(times.points, 1.0)))
    seen = times.take(~late)
    width = np.log(np.maximum(seen.right, 1.0)) - np.log(np.maximum(seen.left, 1.0))
    name = f"log step of generalisation, up to step {horizon:,.0f}"
    return Outcome(values, name, True, horizon, censored, float((width**2).mean() / 12))


def outcome(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return the restricted log time, or minus the accuracy at the horizon where most runs are censored.

    Raises:
        NotEnoughData: neither is known.
    """
    try:
        return restricted_log_time(observations, rows)
    except NotEnoughData:
        if rows.empty:
            raise
    horizon = DIARY.horizon_of(rows)
    accuracy = floats(accuracy_at(observations.curves_of(rows.index), rows.index, horizon))
    known = np.isfinite(accuracy)
    if known.mean() < 0.9 or float(np.ptp(accuracy[known])) == 0:
        raise NotEnoughData("runs of one length that either generalise or differ in accuracy at their end")
    return Outcome(
        -np.where(known, accuracy, 0.0), f"accuracy at step {horizon:,}", False, horizon, float((~known).mean())
    )
