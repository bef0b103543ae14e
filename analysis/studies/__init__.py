"""One module per question: choose the runs it is about from their config columns, answer it or say what is missing."""

from analysis.studies import census
from analysis.studies.base import Finding, Missing, Question, Study, Table

QUESTIONS: tuple[Question, ...] = (census.QUESTION,)
"""Every question of the report, in its order."""

__all__ = ["QUESTIONS", "Finding", "Missing", "Question", "Study", "Table"]
