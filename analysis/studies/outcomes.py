"""The outcome of a run for studies of causes: log time, the log odds of a wrong answer, or the final loss.

On the first two scales independent causes add up. On the scale of accuracy they do not: it is bounded by
0 and 1, so additive causes look like an interaction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.criteria import DIARY, accuracy_at
from analysis.observations import Observations, floats
from analysis.statistics.estimate import Estimate, NotEnoughData

MOST_CENSORED = 0.5
"""Largest share of runs without generalisation for an outcome of times."""
FEW_CUT_OFF = 0.2
"""Share of runs at the end of a scale up to which an additive crossed design shows less than 3% of interaction. With
half of the runs at the end it shows up to 10%."""
CHANCE = 1.5
"""An accuracy below this many times chance level is at the lower end of its scale."""


@dataclass(frozen=True)
class Outcome:
    """One number per run (n,); smaller is faster."""

    values: NDArray[np.float64]
    name: str
    """Its name in words."""
    is_time: bool
    horizon: float
    """Step up to which times count, or at which accuracy is read."""
    censored: float
    """Share of runs at the end of the scale: not generalised by the horizon; at chance level, or without an error."""
    rounding: float = 0.0
    """Variance of a value from the interval between evaluations, or between two accuracies, alone.

    A lower bound of the error variance.
    """
    saturated: NDArray[np.bool_] | None = None
    """Runs (n,) at chance level or without an error, whose log odds say how many examples there are; else None."""
    is_loss: bool = False
    """Whether it is a language model's validation loss, in nats per token."""


def restricted_log_time(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return ln(min(step of generalisation, horizon)) of each run.

    The horizon is the largest step up to which every run's time is known. Only runs that did not
    generalise limit it.

    Raises:
        NotEnoughData: there is no run, or more than half of the runs had not generalised by the horizon.
    """
    if rows.empty:
        raise NotEnoughData("runs")
    times = observations.times(rows)
    budget = float(floats(rows["config.train.steps"]).max())
    horizon = float(times.left[~times.seen].min(initial=budget))
    # A run that generalised at its last evaluation counts as generalised within the horizon.
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

    Half an equation is added to both counts, so that the odds are finite.

    Raises:
        NotEnoughData: not all runs were evaluated at the horizon, or all are equally accurate.
    """
    horizon = DIARY.horizon_of(rows)
    accuracy = floats(accuracy_at(observations.curves_of(rows.index), rows.index, horizon))
    known = np.isfinite(accuracy)
    if not known.all() or float(np.ptp(accuracy)) == 0:
        raise NotEnoughData("runs of one length that either generalise or differ in accuracy at their end")
    modulus = floats(rows["config.task.modulus"])
    equations = np.maximum(1.0, modulus**2 * (1 - floats(rows["config.task.train_fraction"])))
    right = accuracy * equations
    wrong = equations - right
    values = np.log(wrong + 0.5) - np.log(right + 0.5)
    width = 1 / (wrong + 0.5) + 1 / (right + 0.5)  # from one number of right answers to the next
    cut_off = (accuracy < CHANCE / modulus) | (right > equations - 1)
    name = f"log odds of a wrong answer at step {horizon:,}"
    return Outcome(values, name, False, horizon, float(cut_off.mean()), float((width**2).mean() / 12), cut_off)


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
    """Return the restricted log time, or the log odds of a wrong answer if too many times are censored.

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


def change_in_words(change: Estimate, is_time: bool) -> str:
    """Return a change of log time, or of the log odds of a wrong answer, as a ratio in words."""
    ratio = np.exp([change.value, change.low, change.high])
    if change.low <= 0 <= change.high:
        value, low, high = map(ratio_in_words, ratio)
        what = "times as long" if is_time else "times the odds of a wrong answer"
        return f"no clear change, {value} {what} ({low} to {high})"
    if change.value > 0:
        value, low, high = map(ratio_in_words, ratio)
        return f"{value} {'times slower' if is_time else 'times the odds of a wrong answer'} ({low} to {high})"
    value, high, low = (ratio_in_words(1 / r) for r in ratio)
    return f"{value} {'times faster' if is_time else 'times smaller odds of a wrong answer'} ({low} to {high})"


def ratio_in_words(value: float) -> str:
    """Return a ratio with about two significant digits.

    >>> [ratio_in_words(ratio) for ratio in (0.694, 4.03, 22.4, 378_019.9, 3e12)]
    ['0.69', '4.0', '22', '380,000', '3e+12']
    """
    if value < 10:
        return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
    return f"{float(f'{value:.2g}'):,.0f}" if value < 1e9 else f"{value:.2g}"
