"""Excursions of a loss above its lowest level so far: their onset, height and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

RISE: Final = 0.5
"""Least rise in nats above the lowest loss so far that defines an excursion."""
NOISE: Final = 6.0
"""The same in standard deviations of the loss of single steps: the larger of the two counts (`threshold`)."""
SMOOTH: Final = 3
"""Number of steps of the running median, so that one hard batch is no excursion."""


@dataclass(frozen=True, slots=True)
class Excursion:
    """One excursion; places are indices into the losses."""

    low: int
    """Place of the lowest loss before it."""
    onset: int
    """First place that is above the lowest loss by the threshold."""
    peak: int
    rise: float
    """From the lowest loss to the peak, in nats; infinite if the loss was not finite."""
    back: int | None
    """First later place within half of the threshold; None if there is none."""


def smoothed(losses: ArrayLike, diverged: bool = False) -> NDArray[np.float64]:
    """Return the running median of ``SMOOTH`` losses (n,), with shorter windows at the ends; NaN counts as infinite.

    The first loss stays: it is that of an untrained model, near the logarithm of the vocabulary. The last one stays if
    it is not finite, or if the run ``diverged``: it ended the run, so it is no single hard batch.
    """
    values = np.asarray(losses, dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.inf)
    half = SMOOTH // 2
    medians = [np.quantile(values[max(0, i - half) : i + half + 1], 0.5, method="lower") for i in range(len(values))]
    level = np.array([*values[:1], *medians[1:]])
    if len(level) and (diverged or np.isinf(values[-1])):
        level[-1] = values[-1]
    return level


def threshold(losses: ArrayLike) -> float:
    """Return the rise in nats that is more than noise for losses (n,) of single steps: at least `RISE`.

    Their deviation is by the median absolute second difference, which neither a steady fall nor a few spikes move.
    """
    values = np.asarray(losses, dtype=np.float64)
    bends = np.abs(np.diff(values[np.isfinite(values)], n=2))
    # it is sqrt(6) * 0.6745 for independent normal losses of deviation 1
    return max(RISE, NOISE * float(np.median(bends)) / 1.652) if len(bends) else RISE


def heights(losses: ArrayLike) -> NDArray[np.float64]:
    """Return how far each loss (n,) is above the lowest smoothed one so far; what is no number is infinitely far."""
    values = np.asarray(losses, dtype=np.float64)
    lowest = np.minimum.accumulate(smoothed(values))
    return np.where(np.isfinite(values), values - np.where(np.isfinite(lowest), lowest, 0.0), np.inf)


def excursions(losses: ArrayLike, rise: float = RISE, *, diverged: bool = False) -> list[Excursion]:
    """Return the excursions of the losses (n,) of successive steps, in their order; ``diverged``: see `smoothed`."""
    level = smoothed(losses, diverged)
    made: list[Excursion] = []
    low = i = 0
    while i < len(level):
        if level[i] <= level[low]:
            low = i
        elif level[i] > level[low] + rise:
            near = np.flatnonzero(level[i:] <= level[low] + rise / 2)
            back = i + int(near[0]) if len(near) else None
            peak = i + int(np.argmax(level[i:back]))
            made.append(Excursion(low, i, peak, float(level[peak] - level[low]), back))
            if back is None:
                break
            i = back
            continue
        i += 1
    return made
