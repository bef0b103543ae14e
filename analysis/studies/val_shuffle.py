"""The val-shuffle bug, switched on on purpose: is its effect anything but order-seed noise?

In the diary's code, shuffling the validation set moved the generator that shuffled the
training set. Here a setting couples the two deliberately. Coupled runs walk another
batch order from the first epoch that begins after an evaluation; until then they share
it with the uncoupled run. So the effect must be held against an order redrawn from that
same step on, not from the start: coupled runs with another number of passes over the
validation set are such redraws. If there is no more to the bug, switching the coupling
on changes a run as much as one redraw differs from another, and in no direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy import stats

from analysis.observations import Observations, describe_task, has_own_task, varying_columns
from analysis.populations import settings_in_words
from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.resampling import generator
from analysis.statistics.survival import Times, logrank
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.by_condition import Condition, by_condition, conditions_of
from analysis.studies.outcomes import Outcome, outcome
from analysis.studies.side_by_side import Beside
from grok.config.arithmetic import TaskConfig

COUPLING: Final = "eval.couple_order"
"""The setting that couples the order stream to validation shuffling; false: streams apart, as everywhere else."""
COLUMN: Final = f"config.{COUPLING}"
SCHEDULE: Final = tuple(f"config.eval.{name}" for name in ("every", "schedule", "points", "passes"))
"""What decides how far a coupled order is moved: each is a redraw of its own."""
FEWEST: Final = 10
"""Pairs of runs below which no spread is estimated."""
DRAWS: Final = 2000
NEEDS: Final = f"at least {FEWEST} runs with and without the coupling, all seeds equal"


@dataclass(kw_only=True)
class ValShuffle(Study):
    """Coupled runs against runs with the streams apart."""

    apart: Times
    coupled: Times
    shared_steps: int
    """Updates for which coupled and uncoupled runs walk the same batch order."""


def pairs_of(observations: Observations) -> pd.DataFrame:
    """Return the runs whose split and weights were run both ways under one condition, ``_on`` added."""
    rows = observations.arithmetic
    # Perturbed repeats walk the same order: they would pass for order seeds that agree.
    plain = (rows["layers"] == "{}") & (rows["config.perturb.ulps"].fillna(0) == 0)
    rows = rows[plain]
    rows = rows.assign(_on=rows[COLUMN].fillna(False).astype(bool))
    settings = [c for c in varying_columns(rows) if c != COLUMN]
    rows = rows.assign(_settings=rows.groupby(settings, dropna=False).ngroup() if settings else 0)
    cell = ["_settings", "seed_split", "seed_init"]
    return rows[rows.groupby(cell)["_on"].transform("nunique") == 2].drop(columns="_settings")


def shared_updates(observations: Observations, coupled: pd.DataFrame) -> int:
    """Return for how many updates the coupled runs walk the uncoupled order: up to the epoch after the first look.

    Of a user's own table the epoch is not known here: then it is the updates up to that look, which are fewer.
    """
    curves = observations.curves_of(coupled.index)
    first = int(curves.loc[curves["step"] > 0, "step"].min())
    row = coupled.iloc[0]
    if has_own_task(row):
        return first
    task = TaskConfig(
        operation=str(row["config.task.operation"]),
        modulus=int(row["config.task.modulus"]),
        train_fraction=float(row["config.task.train_fraction"]),
    )
    per_epoch = -(-task.train_examples() // int(row["config.train.batch_size"]))
    return -(-first // per_epoch) * per_epoch


def analyse(observations: Observations, question: Question) -> Study:
    """Answer for every condition whose split and weights were run both ways.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` such pairs in each of them.
    """
    conditions = conditions_of(observations.once(pairs_of), but=[COUPLING])
    if not conditions:
        raise NotEnoughData(NEEDS)
    return by_condition(observations, question, conditions, one, Beside(beside))


def beside(study: ValShuffle) -> dict[str, object]:
    """Return how one condition stands beside another."""
    return {f.label: f.shown for f in study.findings}


def one(observations: Observations, condition: Condition, question: Question) -> ValShuffle:
    """Answer for one condition.

    Raises:
        NotEnoughData: fewer than ``FEWEST`` pairs.
    """
    rows = condition.rows
    # By evaluation schedule, -1 without coupling.
    way = rows.groupby([c for c in SCHEDULE if c in rows], dropna=False).ngroup()
    result = outcome(observations, rows)
    rows = rows.assign(_way=way.where(rows["_on"], -1), _y=result.values)
    table = rows.pivot_table(index=["seed_split", "seed_init", "seed_order"], columns="_way", values="_y")
    if -1 not in table or table.drop(columns=-1)[table[-1].notna()].notna().any(axis=1).sum() < FEWEST:
        raise NotEnoughData(NEEDS)
    on, off = rows[rows["_on"]], rows[~rows["_on"]]
    study = ValShuffle(
        name=question.name,
        title=question.title,
        question=question.question,
        apart=observations.times(off),
        coupled=observations.times(on),
        shared_steps=shared_updates(observations, on),
    )
    cells = len(on[["seed_split", "seed_init"]].drop_duplicates())
    study.notes.append(
        f"{len(rows)} runs of {describe_task(rows.iloc[0])}, {settings_in_words(rows.iloc[0], [COUPLING])}; "
        f"{cells} pair{'s' * (cells > 1)} of split and weights, "
        f"{on['seed_order'].nunique()} order seeds. Outcome: {result.name}."
    )
    study.notes.append(
        f"The coupling acts after the first evaluation, at the next epoch: for the first {study.shared_steps} updates "
        "a coupled run walks the same batch order as the uncoupled one."
    )
    _direction(study, table, result)
    _size(study, table)
    _from_the_start(study, table)
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


def _direction(study: ValShuffle, table: pd.DataFrame, result: Outcome) -> None:
    shift = (table.drop(columns=-1).mean(axis=1) - table[-1]).dropna().to_numpy(dtype=float)
    n, value = len(shift), float(shift.mean())
    half = float(stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * float(shift.std(ddof=1)) / float(np.sqrt(n))
    e = Estimate(value, value - half, value + half, n, "t over pairs")
    clear = not e.low <= 0 <= e.high
    ratio = np.exp([e.value, e.low, e.high])
    most = f"a factor of {max(ratio[2], 1 / ratio[1]):.2f} either way"
    if result.is_time:
        shown = f"{ratio[0]:.2f} times as long ({ratio[1]:.2f} to {ratio[2]:.2f})"
        what = f"makes generalising take {shown}"
    else:
        shown = f"{ratio[0]:.2f} times the odds ({ratio[1]:.2f} to {ratio[2]:.2f})"
        what = f"gives a wrong answer {shown}"
    verdict = "a direction of its own" if clear else f"no direction, and an average change beyond {most} is ruled out"
    study.findings.append(
        Finding(
            "effect of the coupling",
            shown,
            f"Switching the coupling on, all seeds equal, {what} on average over {n} pairs: {verdict}.",
            e,
            headline=True,
        )
    )


def variance_ratio(numerator: np.ndarray, denominator: np.ndarray, purpose: str) -> Estimate:
    """Return the ratio of two means with a bootstrap over rows (order seeds): (n, m) tables, NaN where not run.

    On the log scale, because a ratio of mean squares is skewed.
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
    """Compare what switching the coupling on changes with what another redraw from the same step on changes."""
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
    e = variance_ratio((ways - off) ** 2 / 2, (ways[:, i] - ways[:, j]) ** 2 / 2, "val shuffle size")
    shown = f"{e.value:.2f} times ({e.low:.2f} to {e.high:.2f})"
    verdict = "as large as" if e.low <= 1 <= e.high else "smaller than" if e.high < 1 else "larger than"
    study.findings.append(
        Finding(
            "size against order noise",
            shown,
            f"The variance that switching the coupling on makes is {shown} that between two redraws of the order "
            f"from the same step on: {verdict} order-seed noise.",
            e,
            headline=True,
        )
    )


def _from_the_start(study: ValShuffle, table: pd.DataFrame) -> None:
    """Compare the change with that of another order seed, which differs from the first step on."""
    off = table[-1].dropna()
    shift = ((table.drop(columns=-1).sub(table[-1], axis=0)) ** 2 / 2).reindex(off.index)
    group = off.groupby(level=["seed_split", "seed_init"])
    size = group.transform("size")
    noise = ((off - group.transform("mean")) ** 2 * size / (size - 1)).where(size > 1)
    if noise.notna().sum() < FEWEST:
        return
    e = variance_ratio(shift.to_numpy(dtype=float), noise.to_numpy(dtype=float)[:, None], "val shuffle from the start")
    shown = f"{e.value:.2f} ({e.low:.2f} to {e.high:.2f})"
    text = f"Against another order seed, which differs from the first step on, the variance is {shown} times as large"
    if e.high < 1:
        text += f": the first {study.shared_steps} updates, which coupled runs share, decide the rest."
    else:
        text += "."
    study.findings.append(Finding("size against a whole order seed", shown, text, e))


def has_coupled(observations: Observations) -> bool:
    """Return whether the store holds coupled runs."""
    rows = observations.arithmetic
    return COLUMN in rows and bool(rows[COLUMN].fillna(False).astype(bool).any())


QUESTION = Question(
    "val_shuffle",
    "The val-shuffle bug",
    "Did shuffling the validation set ever do more than draw another batch order?",
    "grok sweep sweep=bug",
    analyse,
    has_coupled,
)
