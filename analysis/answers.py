"""The report as data: every question's answer, what is missing for the others, and where the numbers come from."""

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
    """Everything that the page says."""

    store: str
    """Name of its folder."""
    place: str
    """The store in a command: its path as it was given."""
    heading: list[Fact]
    provenance: Provenance
    studies: list[Study]
    missing: list[Missing]
    first_command: str
    """What fills an empty store."""
    labels: dict[str, str]
    """What a run is called, by ``run_id``: the seeds that it was told, ``seed 17``."""

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
    """Ask every question of the store, and behind them those of the user's own."""
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
