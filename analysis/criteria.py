"""The only definitions of super, fast and normal seeds.

By accuracy (the diary's definition): validation accuracy at step 3,000 above 0.98 is *super*,
below 0.25 *normal*, in between *fast*. The thresholds were made for the diary's regime. If at
least half of the runs are shorter than 3,000 steps, the horizon is the largest step that half of
them reached, and the report says so.

By time, for any task: a seed is super if it generalises at least three times faster than the
median seed. The median accounts for censored runs.
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
"""Classes of judged seeds, best first."""
FEW_LONGER: Final = 0.02
"""Largest share of runs that are longer than the usual length, if less than ``MOST_EQUAL`` have one length."""
MOST_EQUAL: Final = 0.8
"""Smallest share of runs with one length by which this length is the usual one."""
UNJUDGED: Final = "not judged"
"""Class of a run that ended, or was last evaluated, before the horizon."""


def usual_length(steps: NDArray[np.int64]) -> int:
    """Return the length of runs without the few that are longer: most seeds were not observed after it.

    It is the length that most runs (``MOST_EQUAL``) have. Where lengths vary, ``FEW_LONGER`` of the runs are longer.

    >>> usual_length(np.array([3000] * 92 + [20_000] * 8)), usual_length(np.array([3000, 20_000]))
    (3000, 20000)
    """
    lengths, counts = np.unique(steps, return_counts=True)
    if len(lengths) and counts.max() >= MOST_EQUAL * len(steps):
        return int(lengths[counts.argmax()])
    return int(np.quantile(steps, 1 - FEW_LONGER, method="higher"))


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
    """If fewer runs than this share reach the horizon, it is the largest step that this share reached."""

    def horizon_for(self, steps: NDArray[np.int64]) -> int:
        """Return the step at which runs of these lengths (steps) are judged.

        It is ``horizon`` if the share ``majority`` of the runs is that long, otherwise the
        largest step that this share reached.

        Raises:
            NotEnoughData: there is no run.
        """
        if not len(steps):
            raise NotEnoughData("at least one finished run")
        reached = np.sort(steps)[::-1]
        return int(min(self.horizon, reached[max(0, int(np.ceil(self.majority * len(steps))) - 1)]))

    def horizon_of(self, rows: pd.DataFrame) -> int:
        """Return the step at which the runs in ``rows`` are judged. The lengths of diverged runs do not count.

        Early stopping ends runs because they have generalised. A horizon after their end would leave
        out these runs and bias the share low. So the horizon is never after the first step at which
        early stopping may end a run (``train.stop_horizon``).
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
    two evaluations. A run that dips at the horizon itself is not lost by this, and neither is one that
    ends there.
    """
    seen = curves[["run_id", "step", "val_acc"]].dropna()
    seen = seen[seen["run_id"].isin(rows.index)].sort_values(["run_id", "step"])
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
    is_super: NDArray[np.bool_]
    judged: NDArray[np.bool_]
    """False for a run whose budget ends before the threshold, also if it generalised: counting
    only the hits among short runs would bias the share high."""


def judge_by_time(times: Times, budgets: NDArray[np.float64], criteria: Criteria = DIARY) -> SpeedJudgement:
    """Return which runs generalise at least ``speedup`` times faster than the median run.

    ``budgets`` are the planned lengths in steps. A run counts as super only if its first
    evaluation as generalised is not after the threshold. So rare evaluations can miss a super
    seed but cannot report a false one.

    Raises:
        NotEnoughData: less than half of the runs generalised, so there is no median.
    """
    median = quantile(times, 0.5)
    threshold = median.value / criteria.speedup
    judged = budgets >= threshold
    return SpeedJudgement(median, threshold, judged & (times.right <= threshold), judged)
