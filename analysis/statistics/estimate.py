"""A number with its interval: too little data, many tests at once, resampling, and its digits in a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests

from grok.streams import Stream

LEVEL: Final = 0.95
"""Confidence level of intervals."""


class NotEnoughData(Exception):
    """The data are too few for an estimate; ``needs`` says what is needed, ``command`` what trains it, if known."""

    def __init__(self, needs: str, command: str = "") -> None:
        super().__init__(f"not enough data: needs {needs}")
        self.needs, self.command = needs, command


COUNTED: Final = ("Wilson", "Clopper-Pearson")
"""Methods of the interval of a share: one thing of fewer than 100 is a whole per cent or more."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` with its confidence interval [low, high] from ``n`` observations.

    ``high`` is infinite if censoring leaves the upper end open.
    """

    value: float
    low: float
    high: float
    n: int
    method: str
    level: float = LEVEL

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON; an infinite end is null."""
        return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in asdict(self).items()}

    def percent(self, digits: int | None = None) -> str:
        """Return ``"0.87% (0.55 to 1.37)"``, with no more digits than the interval and ``n`` deserve."""
        low, high = 100 * self.low, 100 * self.high
        if digits is None:
            digits = 2 if high - low < 1 else 1 if high - low < 10 else 0
            digits *= self.n >= 100 or self.method not in COUNTED
        return f"{100 * self.value:z.{digits}f}% ({low:z.{digits}f} to {high:z.{digits}f})"

    def plain(self, digits: int = 0) -> str:
        """Return ``"4,120 (3,900 to 4,400)"``."""
        if self.low == self.high or (self.low <= 0 and math.isinf(self.high)):
            return f"{self.value:z,.{digits}f} ({'no spread' if self.low == self.high else 'no interval'})"
        high = f"to {self.high:z,.{digits}f}" if math.isfinite(self.high) else "and above"
        return f"{self.value:z,.{digits}f} ({self.low:z,.{digits}f} {high})"

    def short(self) -> str:
        """Return ``"310,000 (200,000 to 490,000)"``: two significant digits, below 1,000 whole numbers.

        For costs and sizes, whose intervals are wide.
        """

        def cut(x: float, to: Callable[[float], float]) -> float:
            unit = 10.0 ** (math.floor(math.log10(x)) - 1) if 1000 <= x < math.inf else 1.0
            return to(x / unit) * unit if math.isfinite(x) else x

        ends = (math.floor, math.ceil) if self.low < self.high else (round, round)  # outwards: it holds as often
        low, high = cut(self.low, ends[0]), cut(self.high, ends[1])
        return Estimate(cut(self.value, round), low, high, self.n, self.method).plain()


# Means of one group, and differences of two: Student's t, and Welch's for independent groups.
#
# Runs that share a seed depend on each other. Then the error comes from the spread between seeds of each shared stream:
# the jackknife over these clusters, which holds for clusters of unequal sizes, too, with as many degrees of freedom as
# equal clusters would have. Sources: Cameron, Gelbach and Miller 2011 (several kinds of clusters); MacKinnon, Nielsen
# and Webb 2023 (jackknife); Kish 1965 (effective number).

Labels = Sequence[NDArray[Any]]
"""The seed (n,) of each value, of each stream of which several values share a seed; of two groups in a row."""


def student(
    values: NDArray[np.float64], less: NDArray[np.float64] | None = None, shared: Labels = ()
) -> tuple[float, float, float]:
    """Return the mean of ``values`` (n,), less that of another group, its standard error, and the degrees of freedom.

    Groups of which nothing is ``shared`` are independent.
    """
    value = float(values.mean() - (0.0 if less is None else less.mean()))
    groups = [x - x[0] for x in (values, less) if x is not None]  # exactly 0 where all are equal
    if len(shared):
        return value, *_between_clusters(groups, shared)
    n = np.array([len(x) for x in groups])
    squared = np.array([x.var(ddof=1) for x in groups]) / n
    freedom = squared.sum() ** 2 / (squared**2 / (n - 1)).sum() if squared.any() else float(n.sum())
    return value, float(np.sqrt(squared.sum())), float(freedom)


def _between_clusters(groups: Sequence[NDArray[np.float64]], shared: Labels) -> tuple[float, float]:
    """Return the standard error of a mean, or of a difference of two, and the fewest degrees of freedom."""
    kinds = [np.unique(labels, return_inverse=True)[1] for labels in shared]
    freedom = math.inf

    def variance(kind: NDArray[np.int64]) -> float:
        nonlocal freedom
        k = int(kind.max()) + 1
        without = np.zeros(k)
        for sign, x, its in zip((1, -1), groups, np.split(kind, [len(groups[0])]), strict=False):
            part = np.bincount(its, minlength=k) / len(x)
            away = np.bincount(its, x - x.mean(), k) / len(x)
            if part.max() < 1:
                without += sign * away / (1 - part)
                freedom = min(freedom, max(1.0, 1 / float((part**2).sum()) - 1))
        return (1 - 1 / k) * float((without**2).sum())

    cells = np.unique(np.stack(kinds, 1), axis=0, return_inverse=True)[1].reshape(-1)
    single = [variance(kind) for kind in kinds]
    return math.sqrt(max(*single, sum(single) - (len(single) - 1) * variance(cells), 0.0)), freedom


def mean(
    values: NDArray[np.float64],
    less: NDArray[np.float64] | None = None,
    method: str = "",
    shared: Labels = (),
) -> Estimate:
    """Return the mean of ``values`` (n,), less that of another group, with Student's or Welch's interval."""
    value, error, freedom = student(values, less, shared)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * error
    n = len(values) + (0 if less is None else len(less))
    return Estimate(value, value - half, value + half, n, method or "Student's t")


FEWEST_OF_A_MEDIAN: Final = 6
"""Smallest number of values whose median has an interval at 95%: from the smallest to the largest."""


def median_interval(values: NDArray[np.float64]) -> Estimate:
    """Return the median of ``values`` (n,) with its order-statistic interval (Conover 1999).

    With fewer than six values no such interval exists at 95%. The interval is then from the
    smallest to the largest, and ``level`` of the estimate is the level that this has.
    """
    ordered = np.sort(values)
    n = len(ordered)
    k = 0  # the largest number of values that can be left out on each side
    while k + 1 < n / 2 and stats.binom.cdf(k + 1, n, 0.5) <= (1 - LEVEL) / 2:
        k += 1
    reached = float(1 - 2 * stats.binom.cdf(k, n, 0.5))
    value = float(np.median(ordered))
    return Estimate(value, float(ordered[k]), float(ordered[n - 1 - k]), n, "order statistics", min(LEVEL, reached))


# Many tests at once: false-discovery and family-wise control.
#
# Sources: Benjamini and Hochberg 1995; Holm 1979.


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """Return q-values: rejecting all hypotheses with q below a rate keeps the false-discovery rate below it."""
    return np.asarray(stats.false_discovery_control(np.asarray(p, dtype=np.float64)), dtype=np.float64)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Return adjusted p-values: rejecting those below 0.05 keeps the chance of any false rejection at most 5%."""
    values = np.asarray(p, dtype=np.float64)
    return np.asarray(multipletests(values, method="holm")[1], dtype=np.float64) if len(values) else values


# Random numbers for resampling, from the project's named streams, so that they are reproducible.


def generator(purpose: str, seed: int = 0) -> np.random.Generator:
    """Return a new generator for ``purpose``; equal arguments give equal numbers."""
    return np.random.Generator(np.random.Philox(key=Stream("analysis", seed).at(purpose).key()))


# Numbers in files: twelve significant digits, so that another processor's last bits change no file.

FORMAT: Final = "%.12g"


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write ``frame`` with its column names as a header."""
    frame = frame.copy(deep=False)
    for name, kind in frame.dtypes.items():
        if str(kind) in ("object", "Float64"):  # pandas formats plain float columns alone
            frame[name] = frame[name].astype(object).map(rounded)
    frame.to_csv(path, index=False, float_format=FORMAT)


def rounded(value: Any) -> Any:
    """Return a JSON-able value with every float in it rounded.

    >>> rounded({"mean": [0.1 + 0.2, 7, None]})
    {'mean': [0.3, 7, None]}
    """
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(FORMAT % value) if isinstance(value, float) else value
