"""One value of a setting against its reference: the ratio of the times to generalise.

If enough seeds were run with both values, only these are compared. Times count up to the largest
step to which all of them are known.
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
"""Largest share of runs that count with the horizon in a ratio; with more, the ratio is only a bound. With more of
them, in simulations a true ratio of 8 was estimated as 6.7, and its interval covered the truth in 71% of the cases."""
FLAT = 1e-9
"""Range of log times below which all are equal except for rounding."""


@dataclass(frozen=True)
class Contrast:
    """One value of a setting against the reference."""

    setting: str
    value: str
    reference: str
    rows: pd.DataFrame
    base: pd.DataFrame
    """The runs of the reference; if ``paired``, of the same seeds, row by row."""
    paired: bool
    horizon: float
    """Step up to which times count: the largest one up to which every run's time is known."""
    slowdown: Estimate | None
    """Time to generalise divided by that of the reference (geometric means of restricted times)."""
    bound: str
    """``at least`` or ``at most`` if more runs of one side had not generalised by the horizon: they count with it,
    which biases the ratio towards 1. ``no`` if most runs of both sides had not; empty if (nearly) all had."""
    p: float | None
    """Two-sided p-value of: the slowdown is 1. None without a slowdown."""
    logrank_p: float | None
    """p-value of the log-rank test; None if no run generalised."""
    timed: pd.DataFrame
    """The runs whose times are compared: all, or those with the longest budget if the others end too early."""
    timed_base: pd.DataFrame
    """The same of the reference."""
    at: str = ""
    """Values of other settings, if the setting has several families."""

    @property
    def label(self) -> str:
        """``setting=value``, followed by ``at`` in parentheses."""
        return f"{self.setting}={self.value}{f' ({self.at})' if self.at else ''}"


def contrast(observations: Observations, family: Family, value: str) -> Contrast:
    """Return the comparison of one value with the family's reference."""
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
    """Return both sides' log times up to the largest step to which all are known, that step, and the word ``bound``."""
    t, t0 = observations.times(rows), observations.times(base)
    budgets = np.concatenate([floats(r["config.train.steps"]) for r in (rows, base)])
    unseen = np.concatenate([x.left[~x.seen] for x in (t, t0)])
    horizon = float(unseen.min()) if len(unseen) else float(budgets.max())
    log, log0 = restricted(t, horizon), restricted(t0, horizon)
    return log, log0, horizon, bound_of(log, log0, float(np.log(horizon)))


def bound_of(log: np.ndarray, log0: np.ndarray, end: float) -> str:
    """Return :attr:`Contrast.bound` for the log times ``log`` and ``log0`` with the log of the horizon ``end``."""
    late, late0 = (float((x >= end).mean()) for x in (log, log0))
    if min(late, late0) > 0.5:
        return "no"
    if max(late, late0) <= FEW_LATE:
        return ""
    if late == late0:  # equal shares: the slower side loses more by the horizon
        return "at least" if log.mean() > log0.mean() else "at most"
    return "at least" if late > late0 else "at most"


def _longest(rows: pd.DataFrame, base: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the pairs with the longest budget; None if all pairs have it, or too few."""
    budgets = np.minimum(*(floats(r["config.train.steps"]) for r in (rows, base)))
    kept = budgets == budgets.max()
    return (rows[kept], base[kept]) if FEWEST <= kept.sum() < len(kept) else None


def restricted(times: Times, horizon: float) -> np.ndarray:
    """Return ln(min(time, horizon)) of each run (n,)."""
    late = ~times.seen | (times.right > horizon)
    return np.asarray(np.log(np.where(late, horizon, np.maximum(times.points, 1.0))))


def ratio_of_times(log: np.ndarray, log0: np.ndarray, paired: bool) -> tuple[Estimate, float]:
    """Return the ratio of geometric means and its p-value, by Student's t on the log scale (Welch's if not paired)."""
    method = "paired t on log time" if paired else "Welch's t on log time"
    n = len(log) if paired else len(log) + len(log0)
    mean = float(log.mean() - log0.mean())
    spread = np.ptp(log - log0) if paired else max(np.ptp(log), np.ptp(log0))
    if spread < FLAT:
        # Without spread the t test is undefined; the sign test remains.
        p = 1.0 if abs(mean) < FLAT else 2 * 0.5 ** min(len(log), len(log0))
        return Estimate(float(np.exp(mean)), float(np.exp(mean)), float(np.exp(mean)), n, method), p
    if paired:
        se, dof = float((log - log0).std(ddof=1)) / np.sqrt(n), n - 1.0
    else:  # scipy's version warns if one group has no spread because all its runs are at the horizon
        v, v0 = (float(x.var(ddof=1)) / len(x) for x in (log, log0))
        se, dof = float(np.sqrt(v + v0)), (v + v0) ** 2 / (v**2 / (len(log) - 1) + v0**2 / (len(log0) - 1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * se
    p = 2 * float(stats.t.sf(abs(mean) / se, dof))
    return Estimate(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), n, method), p
