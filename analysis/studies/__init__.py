"""One module per question: choose the runs it is about from their config columns, answer it or say what is missing."""

from analysis.studies import census, conditions, crossed, gpt, layers, prediction, regimes, repeatability, survival
from analysis.studies.base import Finding, Missing, Question, Study, Table

QUESTIONS: tuple[Question, ...] = (
    census.QUESTION,
    survival.QUESTION,
    regimes.QUESTION,
    crossed.QUESTION,
    layers.QUESTION,
    repeatability.QUESTION,
    conditions.WEIGHT_DECAY_QUESTION,
    conditions.INTERVENTIONS_QUESTION,
    prediction.QUESTION,
    gpt.QUESTION,
)
"""Every question of the report, in its order."""

__all__ = ["QUESTIONS", "Finding", "Missing", "Question", "Study", "Table"]
