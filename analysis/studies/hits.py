"""The rare outcome by which seeds are candidates: super, fast, or among the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.criteria import DIARY, UNJUDGED, judge_by_time
from analysis.observations import Observations, differing_settings, floats
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.replication import Counts
from analysis.studies.census import judged

FEWEST_OTHERS: Final = 20
"""Smallest number of other seeds for their rate."""
RARE: Final = 0.1
"""Share of seeds that are hits if none is super: the fastest tenth."""
MOST_FREQUENT: Final = 0.5
"""Largest share of seeds for which an outcome is rare enough to be a hit."""


@dataclass(frozen=True)
class Hit:
    """The rare outcome that defines candidates, for the runs of one condition."""

    words: str
    """Its name in a sentence: ``super``, ``among the fastest tenth``."""
    definition: str
    flags: pd.Series
    """Per run: 1 if it is a hit, 0 if not, NaN if not known."""
    judged: pd.DataFrame | None = None
    """The runs with the columns of `census.judged`; None if times were judged."""

    def counts(self, runs: Sequence[str]) -> Counts:
        """Return the numbers of hits and of judged runs."""
        known = self.flags.reindex(list(runs)).dropna()
        return int(known.sum()), len(known)


def rare_outcome(observations: Observations, population: pd.DataFrame, runs: pd.DataFrame) -> Hit:
    """Return the outcome that is rare in ``population``, as flags of ``runs``.

    Super by accuracy in the diary's regime, by time elsewhere; a less rare outcome if no seed is super.
    """
    options: list[Callable[[], Hit | None]] = [
        lambda: _by_accuracy(observations, population, runs, "super"),
        lambda: _by_time(observations, population, runs, None),
    ]
    if differing_settings(runs.iloc[0]):
        options.reverse()
    options += [
        lambda: _by_accuracy(observations, population, runs, "super", "fast"),
        lambda: _by_time(observations, population, runs, RARE),
    ]
    usable = [hit for option in options if (hit := option()) is not None]
    for hit in usable:
        hits, n = hit.counts(list(population.index))
        if hits and (hits <= MOST_FREQUENT * n or n < FEWEST_OTHERS):  # named seeds may all be super
            return hit
    return usable[0]


def _by_accuracy(observations: Observations, population: pd.DataFrame, runs: pd.DataFrame, *classes: str) -> Hit:
    least = DIARY.normal_accuracy if "fast" in classes else DIARY.super_accuracy
    seen, horizon = judged(observations, runs, DIARY.horizon_of(population), least)
    flags = seen["label"].isin(classes).astype(float).where(seen["label"] != UNJUDGED)
    definition = f"validation accuracy above {least:.0%} at step {horizon:,}"
    return Hit(" or ".join(classes), definition, flags, seen)


def _by_time(
    observations: Observations, population: pd.DataFrame, runs: pd.DataFrame, rare: float | None
) -> Hit | None:
    """Return the hit "three times faster than the median seed", or "among the fastest share ``rare``"."""
    times = observations.times(population)
    if rare is not None and len(times) < FEWEST_OTHERS:
        return None
    if rare is not None:
        words, threshold = "among the fastest tenth", float(np.sort(times.right)[max(0, int(rare * len(times)) - 1)])
    else:
        try:
            speed = judge_by_time(times, floats(population["config.train.steps"]))
        except NotEnoughData:
            return None
        words, threshold = "super by time", speed.threshold
    if not np.isfinite(threshold):
        return None
    early = observations.times(runs).right <= threshold
    long = floats(runs["config.train.steps"]) >= threshold
    flags = pd.Series(np.where(long, early.astype(float), np.nan), index=runs.index)
    return Hit(words, f"generalised by step {threshold:,.0f}", flags)
