"""Times of a few runs: their geometric mean, where one more would lie, and how many times as long others take.

Log times are taken as normal (as they nearly are), so that three or four runs have an interval: the order
statistics of so few have none at 95%.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.survival import Times

Floats = NDArray[np.float64]


def geometric_mean(times: Times, level: float = LEVEL, one_more: bool = False) -> Estimate:
    """Return the geometric mean of times that were all seen, with Student's interval of log times.

    ``one_more``: the interval in which the time of one more run lies, in place of that of the mean.

    Raises:
        NotEnoughData: fewer than two runs, or one whose time was not seen.
    """
    log = _logs(times)
    n = len(log)
    mean, sd = float(log.mean()), float(log.std(ddof=1))
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * sd * math.sqrt(1 / n + one_more)
    method = "log-normal, one more run" if one_more else "log-normal, Student's t"
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, method, level)


def ratio_of_times(slow: Times, fast: Times, level: float = LEVEL) -> Estimate:
    """Return how many times as long ``slow`` takes as ``fast``: geometric means, Welch's interval of log times.

    Where times of ``slow`` were not seen, they count with the step at which they were cut off: the ratio and the
    lower end are then bounds from below, and the upper end is infinite.

    Raises:
        NotEnoughData: fewer than two runs on a side, or a time of ``fast`` that was not seen.
    """
    a, b = np.log(slow.points), _logs(fast)
    value, n = math.exp(float(a.mean() - b.mean())), len(a) + len(b)
    if not slow.seen.any():  # cut off where we chose to: no spread of its own
        low = math.exp(float(a.min())) / geometric_mean(fast, level).high
        return Estimate(value, low, math.inf, n, "cut off, over the log-normal mean", level)
    if len(a) < 2:
        raise NotEnoughData("two runs or more on each side")
    low, high = (math.exp(end) for end in stats.ttest_ind(a, b, equal_var=False).confidence_interval(level))
    return Estimate(value, low, high if slow.seen.all() else math.inf, n, "log-normal, Welch's t", level)


def growth(share: Floats, times: Times, level: float = LEVEL) -> Estimate:
    """Return by which share time grows for each 0.01 that ``share`` is less: a line through log times.

    Times that were not seen count with the step at which they were cut off, so that growth is a bound from below.

    Raises:
        NotEnoughData: fewer than three values of ``share``, or four runs.
    """
    if len(np.unique(share)) < 3 or len(times) < 4:
        raise NotEnoughData("four runs or more, at three training fractions or more")
    line = stats.linregress(share, np.log(times.points))
    half = float(stats.t.ppf(0.5 + level / 2, len(times) - 2)) * float(line.stderr)
    value, low, high = (math.expm1(-0.01 * slope) for slope in (line.slope, line.slope + half, line.slope - half))
    whole = bool(times.seen.all())
    return Estimate(value, low, high if whole else math.inf, len(times), "line through log times", level)


def _logs(times: Times) -> Floats:
    if len(times) < 2 or not times.seen.all():
        raise NotEnoughData("two runs or more, all of which generalised")
    return np.log(times.points)
