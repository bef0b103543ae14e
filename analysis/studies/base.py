"""What a study hands over: findings with intervals, tables, notes; no drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.observations import Observations
from analysis.populations import populations
from analysis.proposals import amount, proposal
from analysis.statistics.estimate import Estimate, NotEnoughData


@dataclass(frozen=True)
class Finding:
    """One answer: a label for a card, the number as people read it, and a sentence."""

    label: str
    shown: str
    text: str
    estimate: Estimate | None = None
    headline: bool = False
    listed: bool = True
    """Whether the sentence stands in the page (its number is in a table, too)."""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        estimate = self.estimate.as_json() if self.estimate else None
        return {"label": self.label, "shown": self.shown, "text": self.text, "estimate": estimate}


@dataclass(frozen=True)
class Table:
    """A table for the page and its CSV: column names are the headings."""

    name: str
    caption: str
    frame: pd.DataFrame
    open: bool = True
    """Shown at once; False: behind a click."""
    code: tuple[str, ...] = ()
    """Columns set as code (commands, hashes)."""


@dataclass(kw_only=True)
class Study:
    """The answer to one question."""

    name: str
    title: str
    question: str
    scope: str = ""
    """Which runs it is about: how many, which streams vary, which stay, under which settings. Empty: said elsewhere."""
    about: str = ""
    """What tells its population from the others of the store; empty where there is one only."""
    parts: list[Study] = field(default_factory=list)
    """The same question answered for each population by itself, where the store holds several."""
    findings: list[Finding] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, pd.DataFrame] = field(default_factory=dict)
    """Tables too large for the page, by their csv file's name in the report's folder."""

    @property
    def headlines(self) -> list[Finding]:
        """The answers that stand on the section's cards and at the top of the page."""
        return [finding for finding in self.findings if finding.headline]

    def as_json(self) -> dict[str, Any]:
        """Return the study as it stands in report.json."""
        return {
            "name": self.name,
            "title": self.title,
            "question": self.question,
            "scope": self.scope,
            "about": self.about,
            "parts": [part.as_json() for part in self.parts],
            "findings": [f.as_json() for f in self.findings],
            "tables": [t.name for t in self.tables],
            **({"files": list(self.files)} if self.files else {}),
            "notes": self.notes,
        }


@dataclass(kw_only=True)
class OwnStudy(Study):
    """A section of the user's own, which brings its figures along."""

    drawn: list[Any] = field(default_factory=list)
    """``analysis.figures.style.Drawing``s."""


@dataclass(frozen=True)
class Missing:
    """A question that the store cannot answer yet."""

    name: str
    title: str
    question: str
    needs: str
    command: str
    started: bool
    """Whether the store holds runs of this study at all."""
    amount: str = ""
    """What the command trains: how many runs, what their share's interval would be, what to do next."""

    def as_json(self) -> dict[str, Any]:
        """Return the gap as it stands in report.json."""
        return {
            "name": self.name,
            "title": self.title,
            "question": self.question,
            "needs": self.needs,
            "command": self.command,
            "amount": self.amount,
        }


@dataclass(frozen=True)
class Question:
    """A study that can be asked of a store, and the command that gets it the data."""

    name: str
    title: str
    question: str
    command: str
    """Empty: nothing that can be typed gets it the data yet, and the report is silent about it until data are there."""
    analyse: Callable[[Observations, Question], Study]
    """Raises NotEnoughData where there is no honest answer yet."""
    applies: Callable[[Observations], bool]
    """Whether the store holds runs of this study, judged from config columns."""
    any_task: bool = True
    """Whether it can be asked of any task: its command then takes the store's own set-up."""

    def ask(self, observations: Observations) -> Study | Missing:
        """Return the answer, or what is missing for one."""
        started = self.applies(observations)
        try:
            if not started:
                raise NotEnoughData("runs of this study; the store has none")
            return self.analyse(observations, self)
        except NotEnoughData as gap:
            command = self.command_for(observations, gap.needs)
            amount = self.amount_of(command, observations)
            return Missing(self.name, self.title, self.question, gap.needs, command, started, amount)

    def command_for(self, observations: Observations, needs: str = "") -> str:
        """Return the command, with the settings of the store's runs and the store's path, ready to be pasted.

        Where ``needs`` asks for longer runs (it names ``train.steps``), the command does as well.
        """
        return proposal(self.command, observations, self.any_task, longer="train.steps" in needs)

    def amount_of(self, command: str, observations: Observations) -> str:
        """Return what ``command`` trains, in words, and whether this question's own command comes after it."""
        text = amount(command) or self._condition(command, observations)
        own = self.command.split()[:2]
        if text and command.split()[:2] != own:
            text += f" {' '.join(own)} starts from these runs: the next report proposes that command."
        return text

    def _condition(self, command: str, observations: Observations) -> str:
        """Return the condition that a command is about, where the store has several and it takes one."""
        grouped = observations.once(populations)
        if not command or not grouped.settings or command.split()[1] == "search":
            return ""
        first = grouped.to_go_on[0].condition
        return f"With {', '.join(f'{name}={value}' for name, value in first.items())} alone."
