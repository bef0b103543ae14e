"""Where a curve lies midway between two others, means over lines of descent; the interval resamples the lines.

Sources: Barlow et al. 1972 (isotonic regression as max-min of means); Efron and Tibshirani 1993 (bootstrap); Hesterberg
2015 (the percentile interval of few units is too short: its tails should be Student's).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from grok.analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData

Floats = NDArray[np.float64]

FEWEST: Final = 5
"""Smallest number of lines: the interval comes from the spread between them."""
DRAWS: Final = 4000
STEEP: Final = 2 / 3
"""Share of the whole rise between two neighbouring places from which a line between them is no guide."""
MOST: Final = 64
"""How many times as many lines `Halfway.lines_for` tries at most."""


@dataclass(frozen=True)
class Halfway:
    """The place on the axis where the curve crosses the middle."""

    place: Estimate
    """0: before the first place with data; infinite: after the last."""
    places: Floats
    """Places with data (k,), ascending."""
    apart: NDArray[np.bool_]
    """Whether start and end are told apart at each place (k,); elsewhere any value is midway between them."""
    _parts: tuple[Floats, Floats, Floats]
    _rng: np.random.Generator

    @property
    def between(self) -> tuple[float, float]:
        """The neighbouring places with data, 0 and infinity beyond them: within these the crossing is interpolated."""
        below = self.places[self.places <= self.place.value]
        above = self.places[self.places >= self.place.value]
        return float(max(below, default=0.0)), float(min(above, default=math.inf))

    def shown(self, what: str) -> str:
        """Return the place with its interval, such as ``412 (200 to 790)``; ``what`` it is where it has no number."""
        value, (low_end, high_end) = self.place.value, self.between
        number, _, ends = self.place.short().partition(" ")
        if not 0 < value < math.inf:  # an end is a step that was tried, which rounding would shut out
            ends = self.place.plain().partition(" ")[2]
        outside = f"before {what} {high_end:,.0f}" if not value else f"after {what} {low_end:,.0f}"
        return f"{number if 0 < value < math.inf else outside} {ends}"

    def lines_for(self, half: float) -> int | None:
        """Return how many lines like these give an interval twice ``half`` wide; None: over `MOST` times these."""
        n = len(self._parts[0])
        for times in 2 ** np.arange(0.25, math.log2(MOST) + 0.1, 0.25):
            lines = max(n + 1, round(n * times))
            low, high = _interval(self.places, self._parts, self.apart, lines, self._rng)
            if high - low <= 2 * half:
                return lines
        return None


def halfway(
    places: Floats,
    curve: Floats,
    start: Floats,
    end: Floats,
    rng: np.random.Generator,
    falls: bool = False,
) -> Halfway:
    """Return where ``curve`` crosses the middle between ``start`` and ``end``, as means over lines of descent.

    The distance from the middle is fitted by a monotone curve that is linear in the logarithm between the places.

    Args:
        places: where the outcome was measured (k,), positive and ascending.
        curve: each line's mean outcome at each place (n, k), NaN where it was not measured.
        start: each line's mean at the low end of the curve (n,), NaN if unknown.
        end: each line's mean at its other end (n, k); it may depend on the place.
        rng: for the bootstrap over lines.
        falls: whether the curve goes from ``end`` to ``start`` along the axis.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` lines, or ``start`` and ``end`` cannot be told apart.
    """
    rows = [np.isfinite(part).any(1) for part in (curve, start[:, None], end)]
    known = np.isfinite(curve).any(0) & np.isfinite(end).any(0)
    places, parts = places[known], (curve[:, known], start[:, None], end[:, known])
    both = rows[1] & np.isfinite(parts[2]).any(1)
    if min(*(of.sum() for of in rows), both.sum()) < FEWEST:
        counts = "{} on the curve, {} at its start, {} at its end".format(*(of.sum() for of in rows))
        raise NotEnoughData(f"at least {FEWEST} lines of descent with runs of each kind (seen: {counts})")
    gaps = parts[2][both] - start[both, None]
    (side,), here = _sides(np.nanmean(gaps, 1)[:, None]), _sides(gaps)
    if not side:
        raise NotEnoughData("two ends of the curve that differ: no middle between them is known")
    sign = side * (-1 if falls else 1)
    curve, start, end = (sign * part for part in parts)
    n, apart = len(curve), here == side
    value = float(_crossings(places, (curve, start, end), np.ones((1, n)))[0][0])
    low, high = _interval(places, (curve, start, end), apart, n, rng)
    method = "monotone fit, bootstrap over lines"
    estimate = Estimate(value, min(low, value), max(high, value), int(rows[0].sum()), method)
    return Halfway(estimate, places, apart, (curve, start, end), rng)


def _sides(gaps: Floats) -> Floats:
    """Return for each column of ``gaps`` (n, k) the sign of its mean, or 0 if its t interval has both."""
    n = np.isfinite(gaps).sum(0)
    mean = np.nansum(gaps, 0) / np.maximum(n, 1)
    error = np.sqrt(np.nansum((gaps - mean) ** 2, 0) / np.maximum(n * (n - 1), 1))
    return np.asarray(np.sign(mean) * ((np.abs(mean) > stats.t.ppf(0.5 + LEVEL / 2, n - 1) * error) & (n > 1)))


def _interval(
    places: Floats,
    parts: tuple[Floats, Floats, Floats],
    apart: NDArray[np.bool_],
    lines: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return the interval of the crossing for ``lines`` lines that are drawn from those of ``parts``.

    From a place where start and end are not ``apart`` it reaches on to the next one where they are.
    """
    n = len(parts[0])
    weights = rng.multinomial(lines, np.full(n, 1 / n), DRAWS).astype(np.float64)
    _, low, high = _crossings(places, parts, weights)
    tail = float(special.ndtr(math.sqrt(lines / (lines - 1)) * stats.t.ppf((1 - LEVEL) / 2, lines - 1)))
    first, last = math.floor(tail * (DRAWS - 1)), math.ceil((1 - tail) * (DRAWS - 1))
    least, most, told = np.sort(low)[first], np.sort(high)[last], places[apart]
    if max(places[places <= least], default=0) > max(told[told <= least], default=0):
        least = max(told[told <= least], default=0.0)
    if min(places[places >= most], default=math.inf) < min(told[told >= most], default=math.inf):
        most = min(told[told >= most], default=math.inf)
    return float(least), float(most)


def _crossings(places: Floats, parts: tuple[Floats, Floats, Floats], weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Return where the rising curve of each draw (b,) crosses the middle, and the ends between which that is known.

    These are the neighbouring places if most of the rise (``STEEP``) lies between them: then nothing tells where.
    ``weights``: of each line in a draw (b, n).
    """

    def means(part: Floats) -> tuple[Floats, Floats]:
        known = np.isfinite(part)
        total = weights @ known
        every = np.broadcast_to(np.nanmean(part, 0), total.shape)  # where a draw has no line
        return np.where(total > 0, weights @ np.where(known, part, 0.0) / np.maximum(total, 1), every), total

    (curve, here), (start, _), (end, _) = (means(part) for part in parts)
    rising = isotonic(curve - (start + end) / 2, np.maximum(here, 1e-9))
    # In places with one more at either end: the last below the middle and the first above it.
    below, above = (rising < 0).sum(1), (rising <= 0).sum(1) + 1
    x, each, k = np.pad(places, 1, constant_values=(0, np.inf)), np.arange(len(rising)), len(places)
    low, high = x[below], x[above]
    inside = (above == below + 1) & (below > 0) & (above <= k)
    first, second = (rising[each, np.clip(i - 1, 0, k - 1)] for i in (below, above))
    jump = np.where(inside, second - first, 1.0)
    at = np.where(inside, low, 1.0) * np.where(inside, high / np.where(inside, low, 1.0), 1.0) ** (-first / jump)
    level = above > below + 1  # a stretch in the middle itself
    low, high = np.where(level, x[np.minimum(below + 1, k)], low), np.where(level, x[np.maximum(above - 1, 1)], high)
    value = np.where(inside, at, np.where(level, np.sqrt(low * high), np.where(below == 0, low, high)))
    smooth = inside & (jump <= STEEP * (end - start).mean(1))
    return value, np.where(smooth, value, low), np.where(smooth, value, high)


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Return the rising sequences (b, k) that are nearest to ``values`` (b, k) by weighted least squares."""
    b, k = values.shape
    zero = np.zeros((b, 1))
    sums, total = (np.concatenate([zero, np.cumsum(part, 1)], 1) for part in (values * weights, weights))
    fitted = np.full((b, k), -np.inf)
    for i in range(k):  # the largest, over beginnings, of the smallest mean up to any end
        mean = (sums[:, i + 1 :] - sums[:, [i]]) / (total[:, i + 1 :] - total[:, [i]])
        least = np.minimum.accumulate(mean[:, ::-1], 1)[:, ::-1]
        fitted[:, i:] = np.maximum(fitted[:, i:], least)
    return fitted
