"""One question, asked of every condition of a store: a single answer, or the answers side by side.

For designs that are no population of seeds (crossed streams, branches, measured runs): their
runs are told apart by the settings that move a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from analysis.observations import (
    CONDITION_SETTINGS,
    Observations,
    as_text,
    default_settings,
    differing_settings,
    varying_columns,
)
from analysis.populations import listed
from analysis.statistics.estimate import NotEnoughData
from analysis.studies.base import Question, Study
from analysis.studies.side_by_side import Beside, needs_of_all, side_by_side, unanswered

MOST: Final = 12
"""Conditions that are answered for; a store with more says which ones were left out."""


@dataclass(frozen=True, eq=False)
class Condition:
    """Runs that agree in every setting that moves a result, seeds aside."""

    name: str
    """The settings that tell it from the others, ``optim.weight_decay=0``; empty where it is the only one."""
    rows: pd.DataFrame

    def __len__(self) -> int:
        return len(self.rows)


def conditions_of(rows: pd.DataFrame, but: Sequence[str] = ()) -> list[Condition]:
    """Return the conditions among ``rows``: the one with fewest changed settings first, then by size.

    ``but``: settings that a study compares, so that they make no condition.
    """
    if rows.empty:
        return []
    varying = [c for c in varying_columns(rows) if c.removeprefix("config.") not in but]
    if not varying:
        return [Condition("", rows)]
    defaults = default_settings()
    conditions = []
    for _, group in rows.groupby(varying, dropna=False, sort=True):
        settings = {c.removeprefix("config."): as_text(group.iloc[0][c]) for c in varying}
        name = ", ".join(f"{k}={v}{' (default)' if v == as_text(defaults[k]) else ''}" for k, v in settings.items())
        conditions.append(Condition(name, group))
    reference = min(conditions, key=lambda c: (len(differing_settings(c.rows.iloc[0])), -len(c)))
    return [reference, *sorted((c for c in conditions if c is not reference), key=lambda c: -len(c))]


def by_condition(
    observations: Observations,
    question: Question,
    conditions: Sequence[Condition],
    answer: Callable[[Observations, Condition, Question], Study],
    beside: Beside,
    settings: Sequence[str] = CONDITION_SETTINGS,
) -> Study:
    """Return the answer for the only condition, or a study whose ``parts`` answer for each.

    ``settings`` are those that make conditions different.

    Raises:
        NotEnoughData: no condition, or none of them has an answer yet.
    """
    if not conditions:
        raise NotEnoughData("runs of this study")
    parts: list[Study] = []
    gaps: dict[str, str] = {}
    for condition in conditions[:MOST]:
        try:
            part = answer(observations, condition, question)
        except NotEnoughData as gap:
            gaps[condition.name] = gap.needs
            continue
        part.about = condition.name
        parts.append(part)
    if not parts:
        raise needs_of_all(gaps, "condition")
    if len(conditions) == 1:
        return parts[0]
    varying = varying_columns(pd.concat([c.rows for c in conditions]), settings)
    differing = listed([c.removeprefix("config.") for c in varying] or ["their data"])
    scope = f"{len(conditions)} conditions, each with its own answer. They differ in {differing}."
    study = side_by_side(question, parts, {c.name: len(c) for c in conditions}, beside, scope, "condition")
    study.findings += unanswered(gaps)
    if len(conditions) > MOST:
        left = "; ".join(c.name for c in conditions[MOST:])
        study.notes.append(f"{len(conditions) - MOST} smaller conditions are left out: {left}.")
    return study
