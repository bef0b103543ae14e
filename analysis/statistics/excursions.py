"""Excursions of a loss: where it rises above its lowest level, how far, and when it is back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

RISE: Final = 0.5
"""Nats above the lowest loss before that make an excursion."""
SMOOTH: Final = 3
"""Steps of the running median: one hard batch is no excursion."""


@dataclass(frozen=True, slots=True)
class Excursion:
    """One excursion; all places are indices into the losses."""

    low: int
    """Where the loss was lowest before."""
    onset: int
    """The first place above that by the rise."""
    peak: int
    rise: float
    """From the lowest loss to the peak, in nats; infinite where the loss stopped being finite."""
    back: int | None
    """The first place within half of the rise again; None: it never is."""


def smoothed(losses: ArrayLike) -> NDArray[np.float64]:
    """Return the running median of ``SMOOTH`` losses, shorter at the ends; the first stays, what is no number is inf.

    The first is a fresh model's, close to the logarithm of the vocabulary, and needs no smoothing.
    """
    values = np.asarray(losses, dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.inf)
    half = SMOOTH // 2
    medians = [np.quantile(values[max(0, i - half) : i + half + 1], 0.5, method="lower") for i in range(len(values))]
    return np.array([*values[:1], *medians[1:]])


def excursions(losses: ArrayLike, rise: float = RISE) -> list[Excursion]:
    """Return the excursions of ``losses`` (n,), one a step, in their order."""
    level = smoothed(losses)
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
