"""One group or two: the dip test that values have one mode.

Uniform values are the hardest to tell from two modes. So p is at most too large for every other shape with one mode,
heavy tails included, where tests that count the modes of a smoothed density report two groups.

Source: Hartigan and Hartigan 1985.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from grok.analysis.statistics.estimate import generator

Floats = NDArray[np.float64]

LARGEST: Final = 200
"""Largest sample that is drawn for p: the dip of a larger one times the root of its size is distributed alike."""
DRAWS: Final = 499
LEAST: Final = 1e-12
"""Smallest gap between neighbours: equal values have it, too."""


def dip(values: Floats) -> float:
    """Return the distance of the distribution of ``values`` (n,) from the nearest one with a single mode."""
    x = np.sort(values)
    low, high = 0, len(x) - 1
    while high - low > 1:
        mode = (low + high) // 2
        low, high = (low, mode) if _bend(x[: mode + 1], len(x)) >= _bend(-x[mode:][::-1], len(x)) else (mode, high)
    return min(max(_bend(x[: m + 1], len(x)), _bend(-x[m:][::-1], len(x))) for m in (low, high))


def _bend(x: Floats, n: int) -> float:
    """Return the largest height of the distribution above its greatest convex minorant; each value has 1/n of it."""
    if len(x) < 3:
        return 0.0
    gaps = np.maximum(np.diff(x), LEAST)
    slopes = optimize.isotonic_regression(1 / (n * gaps), weights=gaps).x
    return float((np.arange(1, len(x)) / n - np.cumsum(slopes * gaps)).max())


def p_of_one_mode(values: Floats) -> float:
    """Return the p-value that ``values`` (n,) come from a distribution with one mode."""
    n = min(len(values), LARGEST)
    chance = _dips_of_uniforms(n) * np.sqrt(n / len(values))
    return float((1 + (chance >= dip(values)).sum()) / (1 + DRAWS))


@cache
def _dips_of_uniforms(n: int) -> Floats:
    """Return the dips of ``DRAWS`` samples of ``n`` uniform values."""
    rng = generator("dips of uniform values")
    return np.array([dip(rng.random(n)) for _ in range(DRAWS)])
