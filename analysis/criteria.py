"""What a super, a fast and a normal seed is: the one place that says so.

The diary judges a seed by its validation accuracy at step 3,000:
above 0.98 it is *super*, below 0.25 *normal*, and in between *fast*. That definition
belongs to the diary's regime; on another task, or with a smaller budget, the same
thresholds are read at the last step that the runs have in common, and the report says
so. The scale-free definition is by time: a seed is super if it generalises at least
three times faster than the median seed, the median taken with censoring respected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.survival import Times, quantile

CLASSES: Final = ("super", "fast", "normal", "diverged")
"""Every class a judged seed can have, best first."""
UNJUDGED: Final = "not judged"
"""A run that ended, or was not looked at, before the horizon."""


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
    majority: float = 0.5
    """The horizon moves down to the largest step that at least this share of runs reached."""

    def horizon_for(self, steps: NDArray[np.int64]) -> int:
        """Return the step at which runs of these lengths can be judged.

        It is ``horizon`` where at least half of the runs are that long, otherwise the
        largest step that at least half of them reached.
        """
        if not len(steps):
            raise NotEnoughData("at least one finished run")
        reached = np.sort(steps)[::-1]
        return int(min(self.horizon, reached[max(0, int(np.ceil(self.majority * len(steps))) - 1)]))

    def horizon_of(self, rows: pd.DataFrame) -> int:
        """Return the step at which these ``runs`` rows can be judged; diverged runs have no say.

        A run that was stopped early because it had generalised is known up to its end only, and such
        runs are the good ones: judging after it would leave exactly them out of the share. So the
        horizon is never beyond where early stopping began (``train.stop_horizon``).
        """
        lasting = rows[rows["status"] != "diverged"]
        rows = lasting if len(lasting) else rows
        horizon = self.horizon_for(rows["steps"].to_numpy(dtype=np.int64))
        stopped = rows[rows["stop_reason"] == "generalised"]
        return int(min([horizon, *stopped["config.train.stop_horizon"].dropna().astype(int)]))

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


def accuracy_at(curves: pd.DataFrame, run_ids: pd.Index, horizon: int) -> pd.Series:
    """Return each run's validation accuracy at ``horizon``, NaN where it is not known.

    It is known from an evaluation at that very step. A run looked at only before and
    after it is known too when both evaluations agree on the class; the earlier value is
    returned then.
    """
    usable = curves[["run_id", "step", "val_acc"]].dropna()
    before = usable[usable["step"] <= horizon].sort_values("step").groupby("run_id").last()
    after = usable[usable["step"] >= horizon].sort_values("step").groupby("run_id").first()
    before, after = before.reindex(run_ids), after.reindex(run_ids)
    no = pd.Series(False, index=run_ids)
    agree = DIARY.classify(before["val_acc"], no) == DIARY.classify(after["val_acc"], no)
    exact = before["step"] == horizon
    return before["val_acc"].where(exact | (agree & after["step"].notna()))


@dataclass(frozen=True)
class SpeedJudgement:
    """The definition by time, applied to one group of runs."""

    median: Estimate
    threshold: float
    """Steps: the median over ``speedup``."""
    is_super: NDArray[np.bool_]
    judged: NDArray[np.bool_]
    """False for a run whose budget ends before the threshold, whatever it showed until then: counting
    only the hits among short runs would flatter the share."""


def judge_by_time(times: Times, budgets: NDArray[np.float64], criteria: Criteria = DIARY) -> SpeedJudgement:
    """Judge each run by its time to generalise against the median of all of them.

    ``budgets`` are the planned lengths in steps. A run counts as super only if the
    evaluation that found it generalised was itself before the threshold, so coarse
    evaluation can hide a super seed but not invent one.

    Raises:
        NotEnoughData: less than half of the runs generalised, so there is no median.
    """
    median = quantile(times, 0.5)
    threshold = median.value / criteria.speedup
    judged = budgets >= threshold
    return SpeedJudgement(median, threshold, judged & (times.right <= threshold), judged)


@dataclass(frozen=True, slots=True)
class RegimeRule:
    """How slow and fast generalisation are told apart from a run's curves.

    Slow: validation loss climbs before the run generalises, and the weight norm falls
    before it. Fast: the loss does not climb, and the norm falls only after (or never).
    Where the two signs disagree the run is *mixed*.
    """

    climb: float = 1.25
    """Validation loss climbed if it rose to this many times its lowest value so far, before generalising."""

    def classify(
        self, climb: NDArray[np.float64], fall: NDArray[np.float64], grokked: NDArray[np.float64]
    ) -> NDArray[np.str_]:
        """Return ``slow``, ``fast``, ``mixed`` or ``not yet`` for each run.

        ``climb`` is the ratio defined above, ``fall`` the step at which the norm began to
        fall (``weight_norm_fall_step``; infinite: never), ``grokked`` the step of generalisation (NaN: not yet).
        """
        climbed, fell_first = climb >= self.climb, fall < grokked
        return np.select(
            [~np.isfinite(grokked), climbed & fell_first, ~climbed & ~fell_first], ["not yet", "slow", "fast"], "mixed"
        )


REGIMES: Final = RegimeRule()
