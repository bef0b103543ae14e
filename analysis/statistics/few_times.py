"""Times of a few runs: geometric mean, prediction interval, and ratios, on the assumption of log-normal times.

With this assumption three or four runs have an interval; order statistics of so few have none at 95%.
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
    """Return the geometric mean of uncensored times (steps), with Student's interval of log times.

    ``one_more``: return the prediction interval of one more run instead of the interval of the mean.

    Raises:
        NotEnoughData: there are fewer than two runs, or a time is censored.
    """
    log = _logs(times)
    n = len(log)
    mean, sd = float(log.mean()), float(log.std(ddof=1))
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * sd * math.sqrt(1 / n + one_more)
    method = "log-normal, one more run" if one_more else "log-normal, Student's t"
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n, method, level)


def ratio_of_times(slow: Times, fast: Times, level: float = LEVEL) -> Estimate:
    """Return the ratio of the geometric means of ``slow`` and ``fast``, with Welch's interval of log times.

    Raises:
        NotEnoughData: one side has fewer than two runs or a censored time (then `least_ratio` is a bound).
    """
    a, b = _logs(slow), _logs(fast)
    low, high = (math.exp(end) for end in stats.ttest_ind(a, b, equal_var=False).confidence_interval(level))
    return Estimate(math.exp(float(a.mean() - b.mean())), low, high, len(a) + len(b), "log-normal, Welch's t", level)


def least_ratio(slow: Times, fast: Times, level: float = LEVEL) -> float:
    """Return a lower bound of the ratio of the geometric mean of these ``slow`` runs to that of ``fast``.

    The times of ``slow`` may be censored and may have any distribution: each is above its ``left``. So the bound is
    about these runs only. Further runs may be faster, and the spread of censored times is not known. The upper end of
    Student's interval of ``fast`` makes the bound hold with confidence ``(1 + level) / 2``.

    Raises:
        NotEnoughData: ``slow`` has no run, or ``fast`` has fewer than two runs or a censored time.
    """
    if not len(slow):
        raise NotEnoughData("a run on each side")
    return math.exp(float(np.log(np.maximum(slow.left, 1.0)).mean())) / geometric_mean(fast, level).high


def growth(share: Floats, times: Times, level: float = LEVEL) -> Estimate:
    """Return the relative increase of time for each decrease of ``share`` by 0.01, from a line through log times.

    Censored times are refused: at large shares they raise the slope, and they shrink the spread, so neither the slope
    nor the lower end would be a bound.

    Raises:
        NotEnoughData: there are fewer than two values of ``share`` or fewer than four runs, or a time is censored.
    """
    if len(np.unique(share)) < 2 or len(times) < 4:
        raise NotEnoughData("four runs or more, at two training fractions or more")
    if not times.seen.all():
        raise NotEnoughData(f"more steps: {int((~times.seen).sum())} of {len(times)} runs had not generalised")
    line = stats.linregress(share, np.log(times.points))
    half = float(stats.t.ppf(0.5 + level / 2, len(times) - 2)) * float(line.stderr)
    value, low, high = (math.expm1(-0.01 * slope) for slope in (line.slope, line.slope + half, line.slope - half))
    return Estimate(value, low, high, len(times), "line through log times", level)


def _logs(times: Times) -> Floats:
    if len(times) < 2 or not times.seen.all():
        raise NotEnoughData("two runs or more, all of which generalised")
    return np.log(times.points)
