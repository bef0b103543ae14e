"""The val-shuffle bug, switched on by a setting: does it do more than change the order of batches?

In the diary's code, shuffling the validation set advanced the generator that shuffled the training set.
Here a setting couples the two. Until the first epoch after an evaluation a coupled run has the batch
order of the uncoupled run, then another one. So the effect must be compared with an order that is
redrawn from that step on, not from the start. Coupled runs with another number of passes over the
validation set are such redraws. If the bug only redraws the order, the coupling changes a run as much as
one redraw differs from another, and without a systematic direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy import stats

from grok.analysis.criteria import Outcome, outcome
from grok.analysis.observations import (
    Condition,
    Observations,
    conditions_of,
    describe_task,
    has_own_task,
    how_many,
    varying_columns,
)
from grok.analysis.populations import COUPLING, settings_in_words
from grok.analysis.purposes import asked
from grok.analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData, generator, mean
from grok.analysis.statistics.survival import Times
from grok.analysis.studies.base import Beside, Question, Study, by_condition, otherwise
from grok.config.arithmetic import TaskConfig

COLUMN: Final = f"config.{COUPLING}"
SCHEDULE: Final = ("eval.every", "eval.schedule", "eval.points", "eval.passes")
"""Settings that decide which order a coupled run gets: each combination is another redraw."""
FEWEST: Final = 10
"""Smallest number of pairs of runs for a spread."""
DRAWS: Final = 2000
NEEDS: Final = f"at least {FEWEST} runs with and without the coupling, all seeds equal"


@dataclass(kw_only=True)
class ValShuffle(Study):
    """Runs with coupled streams against runs with separate streams."""

    apart: Times
    """Times with separate streams."""
    coupled: Times
    """Times with coupled streams."""
    shared_steps: int
    """Number of first updates with the same batch order in coupled and uncoupled runs."""


def pairs_of(observations: Observations) -> pd.DataFrame:
    """Return the runs whose split and weights were run with and without the coupling, with the column ``_on``."""
    rows = observations.once(asked)
    rows = rows[rows["layers"] == "{}"]
    rows = rows.assign(_on=rows[COLUMN].fillna(False).astype(bool))
    settings = [c for c in varying_columns(rows) if c != COLUMN]
    rows = rows.assign(_settings=rows.groupby(settings, dropna=False).ngroup() if settings else 0)
    cell = ["_settings", "seed_split", "seed_init"]
    return rows[rows.groupby(cell)["_on"].transform("nunique") == 2].drop(columns="_settings")


def shared_updates(observations: Observations, coupled: pd.DataFrame) -> int:
    """Return the number of first updates with the uncoupled order: up to the first epoch after an evaluation.

    For a user's own task the length of an epoch is not known; then it is the number of updates up to the evaluation.
    """
    curves = observations.curves_of(coupled.index)
    first = int(curves.loc[curves["step"] > 0, "step"].min())
    row = coupled.iloc[0]
    if has_own_task(row):
        return first
    operation, modulus, fraction = row[[f"config.task.{name}" for name in ("operation", "modulus", "train_fraction")]]
    task = TaskConfig(operation=str(operation), modulus=int(modulus), train_fraction=float(fraction))
    per_epoch = -(-task.train_examples() // int(row["config.train.batch_size"]))
    return -(-first // per_epoch) * per_epoch


def one(observations: Observations, condition: Condition) -> ValShuffle:
    """Return the answer for one condition.

    Raises:
        NotEnoughData: it has fewer than ``FEWEST`` pairs.
    """
    rows = condition.rows
    # The number of the evaluation schedule; -1 without coupling.
    way = rows.groupby([c for name in SCHEDULE if (c := f"config.{name}") in rows], dropna=False).ngroup()
    result = outcome(observations, rows)
    rows = rows.assign(_way=way.where(rows["_on"], -1), _y=result.values)
    table = rows.pivot_table(index=["seed_split", "seed_init", "seed_order"], columns="_way", values="_y")
    if -1 not in table or table.drop(columns=-1)[table[-1].notna()].notna().any(axis=1).sum() < FEWEST:
        raise NotEnoughData(NEEDS)
    on, off = rows[rows["_on"]], rows[~rows["_on"]]
    study = ValShuffle(
        apart=observations.times(off),
        coupled=observations.times(on),
        shared_steps=shared_updates(observations, on),
    )
    cells = len(on[["seed_split", "seed_init"]].drop_duplicates())
    study.notes.append(
        f"{len(rows)} runs of {describe_task(rows.iloc[0])}, {settings_in_words(rows.iloc[0], [COUPLING])}; "
        f"{how_many(cells, 'pair')} of split and weights, "
        f"{how_many(on['seed_order'].nunique(), 'order seed')}. Outcome: {result.name}."
    )
    study.notes.append(
        f"The coupling acts from the first epoch after the first evaluation: for the first {study.shared_steps} "
        "updates a coupled run has the same batch order as the uncoupled one."
    )
    _direction(study, table, result, otherwise(on, off, "without it"))
    _size(study, table)
    return study


def _direction(study: ValShuffle, table: pd.DataFrame, result: Outcome, computed: str) -> None:
    shift = (table.drop(columns=-1).mean(axis=1) - table[-1]).dropna().to_numpy(dtype=float)
    e = mean(shift, method="t over pairs")
    over = f" and {table.shape[1] - 1} ways of coupling" * (table.shape[1] > 2)
    clear = not e.low <= 0 <= e.high
    cut = f", later runs counting with step {result.horizon:,.0f}" * bool(result.is_time and result.censored)
    ratio = np.exp([e.value, e.low, e.high])
    most = f"an average factor above {max(ratio[2], 1 / ratio[1]):.2f} either way"
    if result.is_time:
        shown = f"{ratio[0]:.2f} times as long ({ratio[1]:.2f} to {ratio[2]:.2f})"
        what = f"makes generalising take {shown}"
    else:
        shown = f"{ratio[0]:.2f} times the odds ({ratio[1]:.2f} to {ratio[2]:.2f})"
        what = f"gives a wrong answer {shown}"
    verdict = "a systematic effect" if clear else f"no systematic effect seen; {most} is excluded"
    study.tell(
        "effect of the coupling",
        shown,
        f"With all seeds equal, the coupling {what} on average over {e.n} pairs{over}{cut}: {verdict}"
        f"{'; ' * bool(computed)}{computed}.",
        e,
        headline=True,
    )


def variance_ratio(numerator: np.ndarray, denominator: np.ndarray, purpose: str) -> Estimate:
    """Return the ratio of the means of two tables (order seeds, columns), NaN where not run.

    The interval is a bootstrap over order seeds, on the log scale, because a ratio of mean squares is skewed.
    """
    n = len(numerator)
    sums = [(np.nansum(x, 1), np.isfinite(x).sum(1)) for x in (numerator, denominator)]

    def log_ratio(index: np.ndarray) -> np.ndarray:
        over, under = (total[index].sum(-1) / np.maximum(count[index].sum(-1), 1) for total, count in sums)
        return np.asarray(np.log(np.maximum(over, 1e-12)) - np.log(np.maximum(under, 1e-12)))

    value = float(log_ratio(np.arange(n)))
    spread = float(np.std(log_ratio(generator(purpose).integers(0, n, (DRAWS, n))), ddof=1))
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * spread
    ends = np.exp([value, value - half, value + half])
    return Estimate(float(ends[0]), float(ends[1]), float(ends[2]), n, "bootstrap over order seeds, log scale")


def _size(study: ValShuffle, table: pd.DataFrame) -> None:
    """Compare the change by the coupling with that by another redraw of the order from the same step on."""
    ways = table.drop(columns=-1).to_numpy(dtype=float)
    complete = np.isfinite(table[-1].to_numpy(dtype=float)) & np.isfinite(ways).all(1)
    if ways.shape[1] < 2 or complete.sum() < FEWEST:
        study.notes.append(
            f"Size against an order redrawn from the same step on: not enough data, needs {FEWEST} order seeds coupled "
            "in two ways (eval.passes=1,2)."
        )
        return
    off, ways = table[-1].to_numpy(dtype=float)[complete, None], ways[complete]
    i, j = np.triu_indices(ways.shape[1], 1)
    # a way that is slower than another one is no noise of the order
    noise = (ways - ways.mean(0)) * np.sqrt(len(ways) / (len(ways) - 1))
    e = variance_ratio((ways - off) ** 2 / 2, (noise[:, i] - noise[:, j]) ** 2 / 2, "val shuffle size")
    shown = f"{e.value:.2f} times ({e.low:.2f} to {e.high:.2f})"
    verdict = "not told apart from" if e.low <= 1 <= e.high else "smaller than" if e.high < 1 else "larger than"
    study.tell(
        "size against order noise",
        shown,
        f"The variance due to the coupling is {shown} that between two redraws of the order from the same step "
        f"on: {verdict} order-seed noise.",
        e,
        headline=True,
    )


QUESTION = Question(
    "val_shuffle",
    "The val-shuffle bug",
    "Does shuffling the validation set do more than change the batch order?",
    "grok sweep sweep=bug",
    by_condition(lambda observations: conditions_of(observations.once(pairs_of), but=[COUPLING]), one, Beside()),
    lambda observations: bool(observations.arithmetic.get(COLUMN, pd.Series(dtype=bool)).eq(True).any()),
)
