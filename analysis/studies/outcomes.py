"""The one number per run that studies of causes explain: log time, the log odds of a wrong answer, or the final loss.

The first two are scales on which independent causes add up. Accuracy itself is none: it is squeezed
against 0 and 1, and causes that add up look like an interaction on it.
"""

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
FEW_CUT_OFF = 0.2
"""Up to this share of runs at the end of a scale a cross that is additive shows less than 3% of interaction; with
half of the runs there it shows up to 10%."""
CHANCE = 1.5
"""An accuracy below this many times that of guessing is at the lower end of its scale."""


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
    """Share of runs at the end of the scale: had not generalised by then; no better than guessing, or all right."""
    rounding: float = 0.0
    """Variance that the spacing of the evaluations alone gives a value: replicates may agree no better than that."""
    is_loss: bool = False
    """A language model's validation loss, in nats per token."""


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


def wrong_log_odds(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return the log odds of a wrong answer of each run: minus the logit of its accuracy at the horizon.

    Half an equation is added on either side, so that no run is infinitely good.

    Raises:
        NotEnoughData: the runs were not evaluated at one step, or all are equally accurate.
    """
    horizon = DIARY.horizon_of(rows)
    accuracy = floats(accuracy_at(observations.curves_of(rows.index), rows.index, horizon))
    known = np.isfinite(accuracy)
    if not known.all() or float(np.ptp(accuracy)) == 0:
        raise NotEnoughData("runs of one length that either generalise or differ in accuracy at their end")
    modulus = floats(rows["config.task.modulus"])
    equations = np.maximum(1.0, modulus**2 * (1 - floats(rows["config.task.train_fraction"])))
    right = accuracy * equations
    values = np.log(equations - right + 0.5) - np.log(right + 0.5)
    cut_off = (accuracy < CHANCE / modulus) | (right > equations - 1)
    name = f"log odds of a wrong answer at step {horizon:,}"
    return Outcome(values, name, False, horizon, float(cut_off.mean()))


def final_loss(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return the validation loss of each run at the last step at which all were evaluated, in nats per token.

    Raises:
        NotEnoughData: the runs were not evaluated at one step, or their losses are equal.
    """
    curves = observations.curves_of(rows.index)
    known = curves[np.isfinite(floats(curves["val_loss"])) & (curves["step"] > 0)]
    runs = known.groupby("step")["run_id"].nunique()
    common = runs.index[runs == len(rows)]
    if not len(common):
        raise NotEnoughData("runs that were all evaluated at one step, with a finite loss")
    step = int(common.max())
    losses = floats(known[known["step"] == step].set_index("run_id")["val_loss"].reindex(rows.index))
    if float(np.ptp(losses)) == 0:
        raise NotEnoughData("final losses that differ")
    return Outcome(losses, f"validation loss at step {step:,}, in nats per token", False, step, 0.0, is_loss=True)


def outcome(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return the restricted log time, or the log odds of a wrong answer where too many times are cut off.

    Raises:
        NotEnoughData: neither is known.
    """
    try:
        times = restricted_log_time(observations, rows)
    except NotEnoughData:
        if rows.empty:
            raise
        return wrong_log_odds(observations, rows)
    if times.censored > FEW_CUT_OFF:
        try:
            odds = wrong_log_odds(observations, rows)
        except NotEnoughData:
            return times
        return odds if odds.censored <= FEW_CUT_OFF else times
    return times
