"""The crossed designs of a store: cells that cross the seeds of streams, in the arithmetic mode and language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from analysis.observations import CONDITION_SETTINGS, Condition, Observations, conditions_of, describe_task
from analysis.populations import settings_in_words
from analysis.purposes import roles
from analysis.statistics.crossing import densest
from analysis.studies import gpt
from analysis.studies.outcomes import Outcome, final_loss, outcome

FEWEST = 8
"""Smallest number of runs of a design."""


@dataclass(frozen=True)
class Subject:
    """What is crossed: the runs of one mode, their streams, and their outcome."""

    streams: tuple[str, str, str]
    rows: Callable[[Observations], pd.DataFrame]
    """One row per trajectory."""
    conditions: Callable[[pd.DataFrame], list[Condition]]
    settings: Sequence[str]
    """Settings that define a condition."""
    outcome: Callable[[Observations, pd.DataFrame], Outcome]
    describe: Callable[[pd.Series], str]
    """Task or model of a run in words, with its settings."""

    def factorings(self) -> list[tuple[tuple[str, ...], ...]]:
        """Return the streams as crossed factors: all three separately, or two that vary together against the third."""
        a, b, c = self.streams
        return [((a,), (b,), (c,)), ((a, b), (c,)), ((a, c), (b,)), ((b, c), (a,))]


@dataclass(frozen=True)
class Design:
    """The runs of one crossed design, and its factors."""

    rows: pd.DataFrame
    factors: dict[str, tuple[str, ...]]
    """Streams of each factor by its name: ``"init"``, or ``"split + init"`` if they vary together."""

    def levels(self, factor: str) -> np.ndarray:
        """Return each run's level of a factor, an integer."""
        return self.rows.groupby([f"seed_{s}" for s in self.factors[factor]], sort=True).ngroup().to_numpy()

    @property
    def codes(self) -> np.ndarray:
        """The levels of all factors (runs, factors)."""
        return np.stack([self.levels(f) for f in self.factors], 1)


def crossed_design(rows: pd.DataFrame, factoring: tuple[tuple[str, ...], ...]) -> Design:
    """Return the densest crossed design of these factors among ``rows`` of one condition; it may have no run."""
    levels = [rows.groupby([f"seed_{s}" for s in streams], sort=True).ngroup().to_numpy() for streams in factoring]
    dense = rows[densest(np.stack(levels, 1))]
    # If one stream of a factor does not vary, the factor is the other stream.
    factors = {}
    for streams in factoring:
        moving = tuple(s for s in streams if dense[f"seed_{s}"].nunique() > 1)
        factors[" + ".join(moving)] = moving
    return Design(dense, factors)


def _designs(observations: Observations, subject: Subject) -> list[Design]:
    """Return the crossed design of each condition: of all three streams, or without one the largest of two factors.

    Its runs are the cells of the store's ``crossed`` designs.
    """
    rows = subject.rows(observations)
    best = (_best(condition.rows, subject) for condition in subject.conditions(rows))
    return [crossing for crossing in best if len(crossing.rows) >= FEWEST]


def _best(rows: pd.DataFrame, subject: Subject) -> Design:
    """Return the largest crossed design among the runs of one condition; it may have no run."""
    crossing = Design(rows.iloc[:0], {})
    three, *two = subject.factorings()
    for factorings in ([three], two):
        crossing = max(
            crossing, *(crossed_design(rows, factoring) for factoring in factorings), key=lambda d: len(d.rows)
        )
        if len(crossing.rows):
            break
    return crossing


def _equations(row: pd.Series) -> str:
    return f"{describe_task(row)}; {settings_in_words(row)}"


def _cells(observations: Observations, mode: str) -> pd.DataFrame:
    cells = observations.once(roles).of("cell", kinds=("crossed",))
    return observations.measured(cells["run_id"].tolist(), mode)


def _language_rows(observations: Observations) -> pd.DataFrame:
    """Return the cells that are language models; a stream that cannot change a run has the seed 0."""
    rows = _cells(observations, "gpt")
    if rows.empty:
        return rows
    rates = [f"config.model.dropout_{place}" for place in ("embedding", "residual", "attention")]
    return rows.assign(
        seed_dropout=rows["seed_dropout"].where((rows[rates].fillna(0.0) > 0).any(axis=1), 0),
        seed_init=rows["seed_init"].where(rows["config.init_from"].isna(), 0),
    )


def _language_conditions(rows: pd.DataFrame) -> list[Condition]:
    if rows.empty:
        return []
    names = gpt.condition_names(rows)
    grouped = sorted(rows.groupby(names, sort=True), key=lambda pair: -len(pair[1]))
    return [Condition(str(name) if len(grouped) > 1 else "", group) for name, group in grouped]


def _model(row: pd.Series) -> str:
    layers, width, context, dropout = (
        row[f"config.model.{name}"] for name in ("layers", "d_model", "context", "dropout")
    )
    steps, batch = row["config.train.steps"], row["config.train.batch_size"]
    return (
        f"{row['config.experiment']} with {layers:.0f} layers of width {width:.0f}, {steps:,.0f} steps of {batch:.0f} "
        f"× {context:.0f} tokens, dropout {dropout:g}"
    )


EQUATIONS: Final = Subject(
    ("split", "init", "order"),
    lambda observations: _cells(observations, "arithmetic"),
    conditions_of,
    CONDITION_SETTINGS,
    outcome,
    _equations,
)
LANGUAGE: Final = Subject(
    ("init", "order", "dropout"), _language_rows, _language_conditions, gpt.CONDITION_SETTINGS, final_loss, _model
)


def designs(observations: Observations) -> list[Design]:
    """Return the crossed design of each condition of the arithmetic mode."""
    return _designs(observations, EQUATIONS)


def language_designs(observations: Observations) -> list[Design]:
    """Return the crossed design of each condition of the language models."""
    return _designs(observations, LANGUAGE)
