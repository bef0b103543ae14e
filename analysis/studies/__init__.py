"""One module per question. Each selects its runs by their config columns and answers, or says what is missing."""

from __future__ import annotations

from typing import Any

from grok.analysis.observations import Observations
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.studies import (
    branching,
    census,
    conditions,
    crossed,
    fate,
    gpt,
    layers,
    mechanism,
    papers,
    prediction,
    regimes,
    repeatability,
    search,
    seeds,
    spikes,
    survival,
    val_shuffle,
)
from grok.analysis.studies.base import Finding, Missing, Question, Study, Table
from grok.errors import nearest

QUESTIONS: tuple[Question, ...] = (
    census.QUESTION,
    census.PARITY_QUESTION,
    survival.QUESTION,
    regimes.QUESTION,
    crossed.QUESTION,
    crossed.LANGUAGE_QUESTION,
    branching.QUESTION,
    fate.QUESTION,
    layers.QUESTION,
    repeatability.QUESTION,
    conditions.WEIGHT_DECAY_QUESTION,
    conditions.INTERVENTIONS_QUESTION,
    prediction.QUESTION,
    search.QUESTION,
    val_shuffle.QUESTION,
    mechanism.QUESTION,
    papers.QUESTION,
    gpt.QUESTION,
    spikes.QUESTION,
    gpt.IN_FLIGHT_QUESTION,
    seeds.QUESTION,
)
"""All questions, in the order of the report."""


def ask(name: str, observations: Observations) -> Any:
    """Return the study ``name`` of a store, for notebooks.

    Raises:
        NotEnoughData: the store cannot answer it yet.
        KeyError: there is no study with this name.
    """
    question = next((q for q in QUESTIONS if q.name == name), None)
    if question is None:
        raise KeyError(f"no study {name!r}{nearest(name, [q.name for q in QUESTIONS])}")
    answer = question.ask(observations)
    if isinstance(answer, Missing):
        raise NotEnoughData(f"{answer.needs}; get it with: {answer.command}")
    return answer


__all__ = ["QUESTIONS", "Finding", "Missing", "Question", "Study", "Table", "ask"]
