"""One value of a setting against its reference: how many times as long seeds take to generalise.

Like is compared with like: the same seeds on both sides where enough of them were run on
both, and times only up to a step to which all of them are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from analysis.observations import Observations, floats
from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.survival import Times, logrank
from analysis.studies.families import FEWEST, Family, triples

FEW_LATE = 0.05
"""Share of runs that may count with the horizon before a ratio is a bound only: they move it by less than its interval
says. With more of them a true ratio of 8 came out as 6.7, and its interval held the truth in 71% of the cases."""
FLAT = 1e-9
"""Spread of log times below which all are equal, but for rounding."""


@dataclass(frozen=True)
class Contrast:
    """One value of a setting against the reference."""

    setting: str
    value: str
    reference: str
    rows: pd.DataFrame
    base: pd.DataFrame
    """The runs of the reference on the other side: of the same seeds, row by row, if ``paired``."""
    paired: bool
    horizon: float
    """Steps: times count up to here, the largest step up to which every run's time is known."""
    slowdown: Estimate | None
    """Time to generalise over that of the reference (geometric mean of restricted times)."""
    bound: str
    """``at least`` or ``at most`` where more runs of one side had not generalised by the horizon: they count with it,
    which pulls the ratio towards 1. ``no`` where most runs of neither had; empty where (nearly) all had."""
    p: float | None
    """That the slowdown is 1, two-sided; None where there is none."""
    logrank_p: float | None
    """None where nothing generalised."""
    timed: pd.DataFrame
    timed_base: pd.DataFrame
    """The runs whose times are compared: all, or the pairs of the longest budget where the others end too early."""
    at: str = ""
    """Values of other settings that tell its family from another one of the same setting."""

    @property
    def label(self) -> str:
        """``setting=value``, with the other settings where those tell it apart."""
        return f"{self.setting}={self.value}{f' ({self.at})' if self.at else ''}"


def contrast(observations: Observations, family: Family, value: str) -> Contrast:
    """Compare one value with the family's reference."""
    rows, base = family.groups[value], family.groups[family.reference]
    mine, theirs = (
        dict(zip(triples(rows), rows.index, strict=True)),
        dict(zip(triples(base), base.index, strict=True)),
    )
    both = [t for t in mine if t in theirs]
    paired = len(both) >= FEWEST
    if paired:
        rows, base = rows.loc[[mine[t] for t in both]], base.loc[[theirs[t] for t in both]]
    timed, timed_base = rows, base
    log, log0, horizon, bound = _restricted_pair(observations, timed, timed_base)
    if bound and paired and (longest := _longest(rows, base)) is not None:
        timed, timed_base = longest
        log, log0, horizon, bound = _restricted_pair(observations, timed, timed_base)
    try:
        logrank_p = logrank([observations.times(base), observations.times(rows)]).p
    except NotEnoughData:
        logrank_p = None
    slowdown, p = (None, None) if bound == "no" else ratio_of_times(log, log0, paired)
    if slowdown is not None and bound:
        slowdown = replace(slowdown, high=np.inf) if bound == "at least" else replace(slowdown, low=0.0)
    return Contrast(
        family.setting,
        value,
        family.reference,
        rows,
        base,
        paired,
        horizon,
        slowdown,
        bound,
        p,
        logrank_p,
        timed,
        timed_base,
        family.at,
    )


def _restricted_pair(
    observations: Observations, rows: pd.DataFrame, base: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray, float, str]:
    """Return both sides' log times up to the largest step to which all are known, that step, and the bound's word."""
    t, t0 = observations.times(rows), observations.times(base)
    budgets = np.concatenate([floats(r["config.train.steps"]) for r in (rows, base)])
    unseen = np.concatenate([x.left[~x.seen] for x in (t, t0)])
    horizon = float(unseen.min()) if len(unseen) else float(budgets.max())
    log, log0 = restricted(t, horizon), restricted(t0, horizon)
    return log, log0, horizon, bound_of(log, log0, float(np.log(horizon)))


def bound_of(log: np.ndarray, log0: np.ndarray, end: float) -> str:
    """Return what runs that count with the horizon make of the ratio of ``log`` to ``log0``."""
    late, late0 = (float((x >= end).mean()) for x in (log, log0))
    if min(late, late0) > 0.5:
        return "no"
    if max(late, late0) <= FEW_LATE:
        return ""
    if late == late0:  # of both sides alike: the side that takes longer is cut off more
        return "at least" if log.mean() > log0.mean() else "at most"
    return "at least" if late > late0 else "at most"


def _longest(rows: pd.DataFrame, base: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the pairs of the longest budget, where some but not all pairs have it and they are enough to compare."""
    budgets = np.minimum(*(floats(r["config.train.steps"]) for r in (rows, base)))
    kept = budgets == budgets.max()
    return (rows[kept], base[kept]) if FEWEST <= kept.sum() < len(kept) else None


def restricted(times: Times, horizon: float) -> np.ndarray:
    late = ~times.seen | (times.right > horizon)
    return np.asarray(np.log(np.where(late, horizon, np.maximum(times.points, 1.0))))


def ratio_of_times(log: np.ndarray, log0: np.ndarray, paired: bool) -> tuple[Estimate, float]:
    """Return the ratio of geometric means and its p-value: Student's t on the log scale (Welch's where not paired)."""
    method = "paired t on log time" if paired else "Welch's t on log time"
    n = len(log) if paired else len(log) + len(log0)
    mean = float(log.mean() - log0.mean())
    spread = np.ptp(log - log0) if paired else max(np.ptp(log), np.ptp(log0))
    if spread < FLAT:
        # Without any spread there is no interval to speak of; what is left to test is the sign.
        p = 1.0 if abs(mean) < FLAT else 2 * 0.5 ** min(len(log), len(log0))
        return Estimate(float(np.exp(mean)), float(np.exp(mean)), float(np.exp(mean)), n, method), p
    if paired:
        se, dof = float((log - log0).std(ddof=1)) / np.sqrt(n), n - 1.0
    else:  # by hand: scipy's warns where one of the groups has no spread, all of it being at the horizon
        v, v0 = (float(x.var(ddof=1)) / len(x) for x in (log, log0))
        se, dof = float(np.sqrt(v + v0)), (v + v0) ** 2 / (v**2 / (len(log) - 1) + v0**2 / (len(log0) - 1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * se
    p = 2 * float(stats.t.sf(abs(mean) / se, dof))
    return Estimate(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), n, method), p
