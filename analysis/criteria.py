"""The only definitions of super, fast and normal seeds, and of the outcome of a run in studies of causes.

By accuracy (the diary's definition): validation accuracy at step 3,000 above 0.98 is *super*,
below 0.25 *normal*, in between *fast*. The thresholds were made for the diary's regime. If at
least half of the runs are shorter than 3,000 steps, the horizon is the largest step that half of
them reached, and the report says so.

By time, for any task: a seed is *early* if it generalises at least three times faster than the
median seed. The median accounts for censored runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.observations import Observations, floats, has_diary_task
from grok.analysis.statistics.estimate import Estimate, NotEnoughData
from grok.analysis.statistics.proportions import share
from grok.analysis.statistics.survival import Times, quantile

CLASSES: Final = ("super", "fast", "normal", "diverged")
"""Classes of judged seeds, best first."""
UNJUDGED: Final = "not judged"
"""Class of a run that ended, or was last evaluated, before the horizon."""


def usual_length(steps: NDArray[np.int64] | pd.Series) -> int:
    """Return the largest length, in steps, that at least half of the runs (n,) have.

    >>> usual_length(np.array([3000] * 92 + [20_000] * 8)), usual_length(np.array([3000, 20_000]))
    (3000, 20000)

    Raises:
        NotEnoughData: there is no run.
    """
    if not len(steps):
        raise NotEnoughData("at least one finished run")
    return int(np.quantile(np.asarray(steps, dtype=np.int64), 0.5, method="higher"))


def share_by(rows: pd.DataFrame, event: NDArray[np.float64], step: int) -> Estimate:
    """Return the share of runs whose ``event`` (n,) was by ``step``, of those that were to be trained so long.

    Of shorter ones nobody knows, and longer ones alone would be observed later.
    """
    long = (rows["config.train.steps"] >= step).to_numpy()
    return share(int((event[long] <= step).sum()), int(long.sum()))


FEWEST_OF_A_SPEED: Final = 3
"""Smallest number of runs whose median can be three times as slow as one of them."""


@dataclass(frozen=True, slots=True)
class Criteria:
    """Thresholds of the two definitions."""

    horizon: int = 3000
    """Step at which accuracy is judged."""
    super_accuracy: float = 0.98
    """Super: validation accuracy above this at the horizon."""
    normal_accuracy: float = 0.25
    """Normal: validation accuracy below this at the horizon."""
    speedup: float = 3.0
    """Super by time: generalises at least this many times faster than the median seed."""

    def horizon_of(self, rows: pd.DataFrame) -> int:
        """Return the step at which the runs in ``rows`` are judged. The lengths of diverged runs do not count.

        It is ``horizon`` if at least half of the runs are that long, otherwise the largest step that half reached.
        Early stopping ends runs because they have generalised. A horizon after their end would leave
        out these runs and bias the share low. So the horizon is never after the first step at which
        early stopping may end a run (``train.stop_horizon``).
        """
        lasting = rows[rows["status"] != "diverged"]
        rows = lasting if len(lasting) else rows
        stopped = rows["config.train.stop_horizon"][rows["stop_reason"] == "generalised"]
        return int(min([self.horizon, usual_length(rows["steps"]), *stopped.dropna().astype(int)]))

    def classify(self, accuracy: pd.Series, diverged: pd.Series) -> pd.Series:
        """Return the class of each run from its accuracy at the horizon (NaN: not judged)."""
        label = np.select(
            [diverged, accuracy > self.super_accuracy, accuracy < self.normal_accuracy, accuracy.notna()],
            ["diverged", "super", "normal", "fast"],
            UNJUDGED,
        )
        return pd.Series(label, index=accuracy.index, dtype=object)


DIARY: Final = Criteria()
"""The diary's thresholds."""


def called(row: pd.Series, *classes: str) -> str:
    """Return what runs of ``classes`` are in words: on another task than the diary's, above which accuracy they are."""
    bound = DIARY.normal_accuracy if "fast" in classes else DIARY.super_accuracy
    return " or ".join(classes) if has_diary_task(row) else f"above {bound:.0%}"


def accuracy_at(curves: pd.DataFrame, run_ids: pd.Index, horizon: int) -> pd.Series:
    """Return each run's validation accuracy at ``horizon``, NaN if it is not known.

    It is known from an evaluation at that step. Without one it counts as known if the evaluations
    before and after it give the same class; the value is then that of the earlier one.
    """
    usable = curves[["run_id", "step", "val_acc"]].dropna()
    before = usable[usable["step"] <= horizon].sort_values("step").groupby("run_id").last()
    after = usable[usable["step"] >= horizon].sort_values("step").groupby("run_id").first()
    before, after = before.reindex(run_ids), after.reindex(run_ids)
    no = pd.Series(False, index=run_ids)
    agree = DIARY.classify(before["val_acc"], no) == DIARY.classify(after["val_acc"], no)
    exact = before["step"] == horizon
    return before["val_acc"].where(exact | (agree & after["step"].notna()))


def held_by(curves: pd.DataFrame, rows: pd.DataFrame, horizon: int, accuracy: float) -> pd.Series:
    """Return whether each run reached ``accuracy`` by ``horizon`` and held it at the next evaluation.

    2: it was above it at two evaluations in a row, the first of them by the horizon. 1: it was above it at its last
    evaluation, which nothing follows, so that nothing speaks against it. 0: neither, or it diverged. NaN: fewer than
    two evaluations after the start. A run that dips at the horizon itself is not lost by this, and neither is one that
    ends there.
    """
    seen = curves[["run_id", "step", "val_acc"]].dropna()
    seen = seen[seen["run_id"].isin(rows.index) & (seen["step"] > 0)].sort_values(["run_id", "step"])
    above = seen["val_acc"] > accuracy
    follows = seen["run_id"] == seen["run_id"].shift(-1)
    held = 2.0 * (above & follows & above.shift(-1, fill_value=False)) + (above & ~follows)
    by_run = held.where(seen["step"] <= horizon, 0.0).groupby(seen["run_id"]).agg(["max", "size"]).reindex(rows.index)
    return by_run["max"].mask(rows["status"] == "diverged", 0.0).where(by_run["size"] >= 2)


@dataclass(frozen=True)
class SpeedJudgement:
    """The definition by time, applied to one group of runs."""

    median: Estimate
    threshold: float
    """Steps: the median over ``speedup``."""
    is_early: NDArray[np.bool_]
    judged: NDArray[np.bool_]
    """False for a run whose budget ends before the threshold, also if it generalised: counting
    only the hits among short runs would bias the share high."""


def judge_by_time(times: Times, budgets: NDArray[np.float64]) -> SpeedJudgement:
    """Return which runs generalise at least ``DIARY.speedup`` times faster than the median run.

    ``budgets`` are the planned lengths in steps. A run counts as super only if its first
    evaluation as generalised is not after the threshold. So rare evaluations can miss a super
    seed but cannot report a false one.

    Raises:
        NotEnoughData: less than half of the runs generalised, so there is no median; or it is that of few runs.
    """
    if len(times) < FEWEST_OF_A_SPEED:
        raise NotEnoughData(f"at least {FEWEST_OF_A_SPEED} seeds")
    median = quantile(times, 0.5)
    threshold = median.value / DIARY.speedup
    judged = budgets >= threshold
    return SpeedJudgement(median, threshold, judged & (times.right <= threshold), judged)


# The outcome of a run for studies of causes: log time, the log odds of a wrong answer, or the final loss.
#
# On the first two scales independent causes add up. On the scale of accuracy they do not: it is bounded by
# 0 and 1, so additive causes look like an interaction.

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


def known_until(observations: Observations, rows: pd.DataFrame) -> float:
    """Return the largest step up to which the time of every run is known: runs without generalisation limit it."""
    times = observations.times(rows)
    return float(times.left[~times.seen].min(initial=float(floats(rows["config.train.steps"]).max())))


def restricted(times: Times, horizon: float) -> NDArray[np.float64]:
    """Return ln(min(time, horizon)) of each run (n,).

    A run that generalised at the evaluation of the horizon did so within it.
    """
    late = ~times.seen | (times.right > horizon)
    return np.asarray(np.log(np.where(late, horizon, np.maximum(times.points, 1.0))))


def restricted_log_time(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return ln(min(step of generalisation, horizon)) of each run, up to the step to which all times are known.

    Raises:
        NotEnoughData: there is no run, or more than half of the runs had not generalised by the horizon.
    """
    if rows.empty:
        raise NotEnoughData("runs")
    times, horizon = observations.times(rows), known_until(observations, rows)
    late = ~times.seen | (times.right > horizon)
    censored = float(late.mean())
    if censored > MOST_CENSORED:
        raise NotEnoughData(
            f"longer runs of these seeds: {censored:.0%} of {len(rows)} had not generalised by step {horizon:,.0f}"
        )
    values = restricted(times, horizon)
    seen = times.take(~late)
    width = np.log(np.maximum(seen.right, 1.0)) - np.log(np.maximum(seen.left, 1.0))
    name = f"log step of generalisation up to step {horizon:,.0f}"
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
    cut_off = (accuracy < CHANCE / modulus) | (wrong < 0.9)  # one may be 0.98: splits round
    name = f"log odds of a wrong answer at step {horizon:,}"
    return Outcome(values, name, False, horizon, float(cut_off.mean()), float((width**2).mean() / 12), cut_off)


def last_common(
    observations: Observations, rows: pd.DataFrame, name: str, until: float = np.inf
) -> tuple[int, pd.Series] | None:
    """Return the last step up to ``until`` at which all runs have a finite ``name``, with its values; None: no such."""
    curves = observations.curves_of(rows.index)
    known = curves[np.isfinite(floats(curves[name])) & (curves["step"] > 0) & (curves["step"] <= until)]
    runs = known.groupby("step")["run_id"].nunique()
    common = runs.index[runs == len(rows)]
    if not len(common):
        return None
    step = int(common.max())
    return step, known[known["step"] == step].set_index("run_id")[name].reindex(rows.index)


def final_loss(observations: Observations, rows: pd.DataFrame) -> Outcome:
    """Return the validation loss of each run at the last step at which all were evaluated, in nats per token.

    Raises:
        NotEnoughData: the runs were not evaluated at one step, or their losses are equal.
    """
    at = last_common(observations, rows, "val_loss")
    if at is None:
        raise NotEnoughData("runs that were all evaluated at one step, with a finite loss")
    step, losses = at[0], floats(at[1])
    if float(np.ptp(losses)) == 0:
        raise NotEnoughData("final losses that differ")
    return Outcome(losses, f"validation loss at step {step:,} (nats per token)", False, step, 0.0, is_loss=True)


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
    clear = not change.low <= 0 <= change.high
    sign = -1 if clear and change.value < 0 else 1
    low, high = (ratio_in_words(math.exp(end)) for end in sorted((sign * change.low, sign * change.high)))
    what = "times as long" if not clear else "times slower" if sign > 0 else "times faster"
    if not is_time:
        what = f"times {'the' if sign > 0 else 'smaller'} odds of a wrong answer"
    text = f"{ratio_in_words(math.exp(sign * change.value))} {what} ({low} to {high})"
    return text if clear else f"no clear change, {text}"


def ratio_in_words(value: float) -> str:
    """Return a ratio with about two significant digits.

    >>> [ratio_in_words(ratio) for ratio in (0.694, 4.03, 22.4, 378_019.9, 3e12)]
    ['0.69', '4.0', '22', '380,000', '3e+12']
    """
    if value < 10:
        return f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
    return f"{float(f'{value:.2g}'):,.0f}" if value < 1e9 else f"{value:.2g}"
