"""The answers to one question for every condition of a store, side by side if there are several.

For designs that are not populations of seeds: crossed streams, branches, measured runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pandas as pd

from analysis.observations import (
    CONDITION_SETTINGS,
    Condition,
    Observations,
    settings_words,
    varying_columns,
    without_repetition,
)
from analysis.populations import listed
from analysis.statistics.estimate import NotEnoughData
from analysis.studies.base import Question, Study
from analysis.studies.side_by_side import Beside, needs_of_all, side_by_side, unanswered

MOST: Final = 12
"""Largest number of conditions with an answer; a note names the others."""


def by_condition(
    observations: Observations,
    question: Question,
    conditions: Sequence[Condition],
    answer: Callable[[Observations, Condition, Question], Study],
    beside: Beside,
    settings: Sequence[str] = CONDITION_SETTINGS,
) -> Study:
    """Return the answer for the only condition, or a study with the answer for each in ``parts``.

    ``settings`` are those that make conditions different.

    Raises:
        NotEnoughData: there is no condition, or none has enough data.
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
        parts[0].about = _among_all(observations, conditions[0].rows)
        return parts[0]
    varying = varying_columns(pd.concat([c.rows for c in conditions]), settings)
    differing = listed(without_repetition(c.removeprefix("config.") for c in varying) or ["their data"])
    scope = f"{len(conditions)} conditions, each with its own answer. They differ in {differing}."
    study = side_by_side(question, parts, {c.name: len(c) for c in conditions}, beside, scope, "condition")
    study.findings += unanswered(gaps)
    if len(conditions) > MOST:
        left = "; ".join(c.name for c in conditions[MOST:])
        study.notes.append(f"{len(conditions) - MOST} smaller conditions are left out: {left}.")
    return study


def _among_all(observations: Observations, rows: pd.DataFrame) -> str:
    """Return the name of the condition of ``rows`` among all of the store; empty if the store has only this one."""
    if (rows["mode"] != "arithmetic").any():
        return ""
    return ", ".join(settings_words(rows.iloc[0], varying_columns(observations.arithmetic)))
