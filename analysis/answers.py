"""The report as data: the answered questions, what the others need, and the origin of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.heading import Fact, heading, run_labels
from analysis.observations import Observations
from analysis.own import Own
from analysis.proposals import proposal
from analysis.provenance import Provenance, provenance
from analysis.studies import QUESTIONS, Missing, Study


@dataclass(frozen=True)
class Report:
    """The content of the page."""

    store: str
    """Name of the store's folder."""
    place: str
    """The store's path as the user gave it, for commands."""
    heading: list[Fact]
    provenance: Provenance
    studies: list[Study]
    missing: list[Missing]
    first_command: str
    """The command to propose for an empty store."""
    labels: dict[str, str]
    """Name of each run for readers, such as ``seed 17``, by ``run_id``."""

    def as_json(self) -> dict[str, Any]:
        """Return report.json."""
        return {
            "store": self.store,
            "heading": {fact.name: fact.text for fact in self.heading},
            "provenance": self.provenance.as_json(),
            "studies": [study.as_json() for study in self.studies],
            "missing": [gap.as_json() for gap in self.missing],
        }


def compile_report(observations: Observations, own: Sequence[Own] = ()) -> Report:
    """Return the answers to all questions, then those of the user's own studies."""
    answers = [question.ask(observations) for question in QUESTIONS]
    answers += [ask(observations) for ask in own]
    path = observations.path
    only_language = bool(len(observations.gpt)) and observations.arithmetic.empty
    return Report(
        path.resolve().name if path else "",
        str(path) if path else "STORE",
        heading(observations),
        provenance(observations),
        [a for a in answers if isinstance(a, Study)],
        [a for a in answers if isinstance(a, Missing) and (a.started or (a.command and not only_language))],
        proposal("grok sweep 'seed=range(0,64)'", observations, any_task=False),
        run_labels(observations.all_runs),
    )
