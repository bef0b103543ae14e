"""The val-shuffle bug, switched on on purpose: is its effect anything but order-seed noise? (REQUIREMENTS N9b)

In the diary's code, shuffling the validation set moved the generator that shuffled the
training set. Here a setting couples the two deliberately. Coupled runs walk another
batch order; if that is all there is to it, switching the coupling on changes a run as
much as drawing another order seed does, and in no direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.observations import Observations, describe_task
from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.resampling import generator
from analysis.statistics.survival import Times, logrank
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.outcomes import outcome

COUPLING: Final = "eval.couple_order"
"""The setting that couples the order stream to validation shuffling; false: streams apart, as everywhere else."""
COLUMN: Final = f"config.{COUPLING}"
FEWEST: Final = 10
"""Pairs of runs below which no spread is estimated."""


@dataclass(kw_only=True)
class ValShuffle(Study):
    """Coupled runs against runs with the streams apart."""

    apart: Times
    coupled: Times


def analyse(observations: Observations, question: Question) -> ValShuffle:
    """Answer over the runs whose split and weights were run both ways.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` such pairs.
    """
    rows = observations.arithmetic
    rows = rows[(rows["layers"] == "{}")].copy()
    rows["_on"] = rows[COLUMN].fillna(False).astype(bool)
    cell = ["seed_split", "seed_init"]
    both = rows.groupby(cell)["_on"].transform("nunique") == 2
    rows = rows[both]
    pairs = rows.loc[rows["_on"], [*cell, "seed_order"]].drop_duplicates()
    if len(pairs) < FEWEST:
        raise NotEnoughData(f"at least {FEWEST} runs with and without the coupling, weights and split equal")
    result = outcome(observations, rows)
    rows = rows.assign(_y=result.values)
    on, off = rows[rows["_on"]], rows[~rows["_on"]]
    study = ValShuffle(
        name=question.name,
        title=question.title,
        question=question.question,
        apart=observations.times(off),
        coupled=observations.times(on),
    )
    study.notes.append(f"{len(rows)} runs of {describe_task(rows.iloc[0])}. Outcome: {result.name}.")
    same = on.merge(off, on=[*cell, "seed_order"], suffixes=("_on", "_off"))
    shift = (same["_y_on"] - same["_y_off"]).to_numpy(dtype=float)
    _direction(study, shift)
    _size(study, shift, off, cell)
    try:
        test = logrank([study.apart, study.coupled])
        text = f"Log-rank between coupled and not coupled runs: p = {test.p:.2g}."
        study.findings.append(Finding("pace", f"p = {test.p:.2g}", text))
    except NotEnoughData as gap:
        study.notes.append(f"Pace: not enough data, needs {gap.needs}.")
    frame = pd.DataFrame(
        {"coupled": ["no", "yes"], "runs": [len(off), len(on)], "mean": [off["_y"].mean(), on["_y"].mean()]}
    )
    study.tables.append(Table("means", f"Mean of the outcome ({result.name})", frame.round(4)))
    return study


def _direction(study: ValShuffle, shift: np.ndarray) -> None:
    if len(shift) < FEWEST:
        return
    rng = generator("val shuffle direction")
    draws = rng.choice(shift, (2000, len(shift))).mean(1)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(shift.mean())
    e = Estimate(value, min(value, float(low)), max(value, float(high)), len(shift), "bootstrap over pairs")
    verdict = "no direction" if e.low <= 0 <= e.high else "a direction of its own"
    study.findings.append(
        Finding(
            "effect of the coupling",
            f"{e.value:+.3f} ({e.low:+.3f} to {e.high:+.3f})",
            f"Switching the coupling on, all seeds equal, changes the outcome by {e.value:+.3f} ({e.low:+.3f} to "
            f"{e.high:+.3f}) on average over {e.n} pairs: {verdict}.",
            e,
            headline=True,
        )
    )


def _size(study: ValShuffle, shift: np.ndarray, off: pd.DataFrame, cell: list[str]) -> None:
    """Compare the spread that the coupling makes with the spread that another order seed makes."""
    groups = [g["_y"].to_numpy(dtype=float) for _, g in off.groupby(cell) if g["seed_order"].nunique() >= 2]
    # Squared distances from the mean of runs with equal weights and split, made unbiased: their mean is the noise.
    noise = np.concatenate([(g - g.mean()) ** 2 * len(g) / (len(g) - 1) for g in groups]) if groups else np.array([])
    if len(shift) < FEWEST or len(noise) - len(groups) < FEWEST:
        study.notes.append(
            f"Size against order-seed noise: not enough data, needs {FEWEST} pairs, and as many more order seeds than "
            "weights without the coupling."
        )
        return
    rng = generator("val shuffle size")
    squares = shift**2 / 2

    def ratio(pairs: np.ndarray, apart: np.ndarray) -> float:
        mean = float(apart.mean())
        return float(pairs.mean()) / mean if mean > 0 else math.nan

    value = ratio(squares, noise)
    draws = [ratio(rng.choice(squares, len(squares)), rng.choice(noise, len(noise))) for _ in range(2000)]
    low, high = np.nanquantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    e = Estimate(value, min(value, float(low)), max(value, float(high)), len(shift), "bootstrap")
    verdict = "as large as" if e.low <= 1 <= e.high else "smaller than" if e.high < 1 else "larger than"
    study.findings.append(
        Finding(
            "size against order-seed noise",
            f"{e.value:.2f} ({e.low:.2f} to {e.high:.2f})",
            f"The variance that the coupling makes is {e.value:.2f} ({e.low:.2f} to {e.high:.2f}) times that of "
            f"drawing another order seed: {verdict} order-seed noise.",
            e,
            headline=True,
        )
    )


def has_coupled(observations: Observations) -> bool:
    """Return whether the store holds coupled runs."""
    rows = observations.arithmetic
    return COLUMN in rows and bool(rows[COLUMN].fillna(False).astype(bool).any())


QUESTION = Question(
    "val_shuffle",
    "The val-shuffle bug",
    "Did shuffling the validation set ever do more than draw another batch order?",
    "python -m grok.run -m sweep=bug",
    analyse,
    has_coupled,
)
