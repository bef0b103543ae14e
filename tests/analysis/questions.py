"""A question of the report, asked of observations: its study, or what it says is missing."""

from __future__ import annotations

from typing import Any

from analysis.figures import drawings
from analysis.observations import Observations
from analysis.studies import QUESTIONS, Missing, Study
from analysis.studies.base import Question

BY_NAME: dict[str, Question] = {q.name: q for q in QUESTIONS}
RENDERED: set[str] = set()
"""Figures of which this process has made a picture: one of each kind is enough, and takes longer than its study."""


def ask(name: str, observations: Observations) -> Any:
    answer = BY_NAME[name].ask(observations)
    assert isinstance(answer, Study), answer
    for drawing in drawings(answer):
        assert len(drawing.data)
        if drawing.name not in RENDERED:
            assert drawing.png().startswith(b"\x89PNG")
            RENDERED.add(drawing.name)
    return answer


def needs(name: str, observations: Observations) -> str:
    answer = BY_NAME[name].ask(observations)
    assert isinstance(answer, Missing), answer
    return answer.needs
