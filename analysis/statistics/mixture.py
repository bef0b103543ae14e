"""One population of seeds or two? Dip test, and a two-component log-normal mixture for censored times.

Sources: Hartigan and Hartigan 1985 (dip); Wilks 1938 (profile likelihood interval);
Schwarz 1978 (BIC).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import diptest
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.survival import Times

FEWEST: Final = 30
"""Generalised runs below which neither question is asked."""
NARROWEST: Final = 0.02
"""Smallest standard deviation of log time that a component may have: keeps the likelihood bounded."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Dip:
    """Hartigan's dip statistic and the p-value of "one mode"."""

    statistic: float
    p: float
    n: int


def dip(times: Times, rng: np.random.Generator) -> Dip:
    """Test whether log time has one mode, over the runs that generalised.

    Cutting a one-mode density off at the budget leaves one mode, so censored runs may
    be left out when all have one budget. Times are spread evenly inside their
    evaluation interval, because the grid itself would look like many modes.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` runs generalised.
    """
    seen = times.take(times.seen)
    _enough(len(seen))
    spread = seen.left + (seen.right - seen.left) * rng.random(len(seen))
    statistic, p = diptest.diptest(np.log(np.maximum(spread, 1e-9)))
    return Dip(float(statistic), float(p), len(seen))


def _enough(n: int) -> None:
    if n < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} generalised runs to tell one group from two (seen: {n})")


@dataclass(frozen=True, slots=True)
class Component:
    """A log-normal group of seeds: its share, median in steps, and spread of log time."""

    share: float
    median: float
    log_sd: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """The fitted two groups, fast first, against one."""

    fast: Component
    slow: Component
    share: Estimate
    """Share of the fast group, with its profile likelihood interval."""
    bic_gain: float
    """BIC of one group minus BIC of two: above 10, two groups are strongly preferred."""


class _Grouped:
    """The censored log-likelihood over distinct intervals."""

    def __init__(self, times: Times) -> None:
        pairs, counts = np.unique(np.stack([times.left, times.right], 1), axis=0, return_counts=True)
        with np.errstate(divide="ignore"):
            self.low, self.high = np.log(pairs[:, 0]), np.log(pairs[:, 1])
        self.counts = counts.astype(float)
        self.n = len(times)

    def cells(self, mean: float, sd: float) -> Floats:
        return np.asarray(special.ndtr((self.high - mean) / sd) - special.ndtr((self.low - mean) / sd))

    def loss(self, probability: Floats) -> float:
        return -float(self.counts @ np.log(np.maximum(probability, 1e-300)))

    def one(self, p: Floats) -> float:
        return self.loss(self.cells(p[0], math.exp(p[1])))

    def two(self, p: Floats) -> float:
        w = float(special.expit(p[0]))
        return self.loss(w * self.cells(p[1], math.exp(p[2])) + (1 - w) * self.cells(p[3], math.exp(p[4])))


def log_mixture(times: Times, level: float = LEVEL) -> Mixture:
    """Fit two log-normal groups to interval- and right-censored times by maximum likelihood.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` runs generalised.
    """
    _enough(int(times.seen.sum()))
    data = _Grouped(times)
    logs = np.log(np.maximum(times.points[times.seen], 1.0))
    sd = max(float(logs.std()), NARROWEST)
    reach = (float(logs.min()) - 2, float(max(data.low.max(), logs.max())) + 2)
    width = (math.log(NARROWEST), math.log(max(3.0, 2 * sd)))
    one = optimize.minimize(data.one, [float(logs.mean()), math.log(sd)], method="L-BFGS-B", bounds=[reach, width])
    bounds = [(-9.0, 9.0), reach, width, reach, width]
    best = None
    for cut in (0.05, 0.2, 0.5, 0.8):
        middle = float(np.quantile(logs, cut))
        low, high = logs[logs <= middle], logs[logs > middle]
        if not len(high):
            low, high = logs, logs
        start = [
            float(special.logit(max(0.02, min(0.98, cut)))),
            float(low.mean()),
            math.log(max(float(low.std()), 0.05)),
            float(high.mean()),
            math.log(max(float(high.std()), 0.05)),
        ]
        fit = optimize.minimize(data.two, start, method="L-BFGS-B", bounds=bounds)
        if best is None or fit.fun < best.fun:
            best = fit
    assert best is not None
    p = np.asarray(best.x, dtype=np.float64)
    if p[1] > p[3]:
        p = np.array([-p[0], p[3], p[4], p[1], p[2]])
    w = float(special.expit(p[0]))
    bic_gain = (2 * one.fun + 2 * math.log(data.n)) - (2 * best.fun + 5 * math.log(data.n))
    low_end, high_end = _profile(data, p, float(best.fun), bounds, level)
    return Mixture(
        Component(w, math.exp(p[1]), math.exp(p[2])),
        Component(1 - w, math.exp(p[3]), math.exp(p[4])),
        Estimate(w, low_end, high_end, data.n, "profile likelihood", level),
        float(bic_gain),
    )


def _profile(
    data: _Grouped, p: Floats, best: float, bounds: list[tuple[float, float]], level: float
) -> tuple[float, float]:
    """Return where the likelihood, maximised over all but the share, falls below Wilks's limit."""
    limit = best + float(special.ndtri(0.5 + level / 2)) ** 2 / 2

    def walk(direction: float) -> float:
        inside, outside, rest = float(p[0]), float(p[0]), p[1:]
        step = 0.25
        while abs(outside) < bounds[0][1]:
            outside = inside + direction * step
            excess, rest = _rest(data, outside, rest, bounds)
            if excess > limit:
                break
            inside, step = outside, step * 1.6
        else:
            return float(direction > 0)
        for _ in range(12):
            middle = (inside + outside) / 2
            excess, rest = _rest(data, middle, rest, bounds)
            inside, outside = (inside, middle) if excess > limit else (middle, outside)
        return float(special.expit(inside))

    return walk(-1.0), walk(1.0)


def _rest(data: _Grouped, logit: float, start: Floats, bounds: list[tuple[float, float]]) -> tuple[float, Floats]:
    def loss(rest: Floats) -> float:
        return data.two(np.concatenate([[logit], rest]))

    fit = optimize.minimize(loss, start.tolist(), method="L-BFGS-B", bounds=bounds[1:])
    return float(fit.fun), np.asarray(fit.x)
