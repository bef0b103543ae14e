"""One module per question. Each selects its runs by their config columns and answers, or says what is missing."""

from __future__ import annotations

from grok.analysis.studies import (
    branching,
    census,
    conditions,
    crossed,
    fate,
    gpt,
    language_fate,
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

QUESTIONS: tuple[Question, ...] = (
    census.QUESTION,
    survival.QUESTION,
    regimes.QUESTION,
    crossed.QUESTION,
    crossed.LANGUAGE_QUESTION,
    language_fate.QUESTION,
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
    seeds.QUESTION,
)
"""All questions, in the order of the report."""
BY_NAME = {question.name: question for question in QUESTIONS}

__all__ = ["BY_NAME", "QUESTIONS", "Finding", "Missing", "Question", "Study", "Table"]
