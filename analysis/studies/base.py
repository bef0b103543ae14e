"""The result of a study: findings with intervals, tables and notes. Figures are drawn elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analysis.observations import Observations, settings_words
from analysis.populations import populations
from analysis.proposals import amount, proposal
from analysis.purposes import roles
from analysis.rerun import code_needed
from analysis.statistics.estimate import Estimate, NotEnoughData


@dataclass(frozen=True)
class Finding:
    """One answer: a label, the formatted number, and a sentence."""

    label: str
    shown: str
    text: str
    estimate: Estimate | None = None
    headline: bool = False
    listed: bool = True
    """Whether the page shows the sentence; if not, a table has the number."""

    @property
    def brief(self) -> str:
        """The number with its interval and n, for a line that stands alone."""
        if self.estimate is None:
            return self.shown
        interval = "" if "(" in self.shown else f", {self.estimate.percent()}" if " of " in self.shown else ""
        return f"{self.shown}{interval}" if interval else f"{self.shown}, n = {self.estimate.n:,}"

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        estimate = self.estimate.as_json() if self.estimate else None
        return {"label": self.label, "shown": self.shown, "text": self.text, "estimate": estimate}


@dataclass(frozen=True)
class Table:
    """A table of the page and its CSV file; the column names are the headings."""

    name: str
    caption: str
    frame: pd.DataFrame
    open: bool = True
    """Whether the table is shown without a click."""
    code: tuple[str, ...] = ()
    """Columns in code font (commands, hashes)."""


@dataclass(kw_only=True)
class Study:
    """The answer to one question."""

    name: str
    title: str
    question: str
    scope: str = ""
    """Its runs: their number, varying and fixed streams, settings. Empty if the notes say it."""
    about: str = ""
    """The name of its population or condition; empty if the store has only one."""
    parts: list[Study] = field(default_factory=list)
    """The answers for each population or condition, if the store has several."""
    findings: list[Finding] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, pd.DataFrame] = field(default_factory=dict)
    """Tables too large for the page, by their csv file's name in the report's folder."""

    @property
    def headlines(self) -> list[Finding]:
        """The findings on the section's cards and at the top of the page."""
        return [finding for finding in self.findings if finding.headline]

    def as_json(self) -> dict[str, Any]:
        """Return the study as a dict for report.json."""
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
    """The user's own section, with its figures."""

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
    """Whether the store has runs of this study."""
    amount: str = ""
    """The size of the command: the number of runs, and an example of a share's interval."""

    def as_json(self) -> dict[str, Any]:
        """Return the question and what it needs as a dict for report.json."""
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
    """A question that a store may answer, and the command that trains the runs for it."""

    name: str
    title: str
    question: str
    command: str
    """Empty if no single command trains the runs; the report then omits the question while the store has no runs."""
    analyse: Callable[[Observations, Question], Study]
    """Return the answer; raise NotEnoughData if the store has too few data."""
    applies: Callable[[Observations], bool]
    """Whether the store has runs of this study, by their config columns."""
    any_task: bool = True
    """Whether the command can train any task; it then gets the settings of the store's runs."""
    reads_designs: bool = False
    """Whether runs count by their role in a design: what is unknown is then said where there is no answer, too."""

    def ask(self, observations: Observations) -> Study | Missing:
        """Return the answer, or what is missing for it."""
        started = self.applies(observations)
        try:
            if not started:
                raise NotEnoughData("runs of this study; the store has none")
            return self.analyse(observations, self)
        except NotEnoughData as gap:
            needs = gap.needs
            if self.reads_designs:
                needs = ". ".join([needs, *(note.removesuffix(".") for note in observations.once(roles).said)])
            command = self.command_for(observations, gap.needs)
            amount = self.amount_of(command, observations)
            return Missing(self.name, self.title, self.question, needs, command, started, amount)

    def command_for(self, observations: Observations, needs: str = "") -> str:
        """Return the command with the store's path and the settings of its runs.

        If ``needs`` asks for longer runs (it names ``train.steps``), the command trains longer runs.
        """
        return proposal(self.command, observations, self.any_task, longer="train.steps" in needs)

    def amount_of(self, command: str, observations: Observations) -> str:
        """Return the size of ``command`` in words, and whether this question's command comes after it."""
        text = amount(command) or self._condition(command, observations)
        own = self.command.split()[:2]
        if text and command.split()[:2] != own:
            text += f" {' '.join(own)} starts from these runs: the next report proposes that command."
        return f"{text} {self.code_for(command, observations)}".strip()

    def code_for(self, command: str, observations: Observations) -> str:
        """Return the version of own code that a command needs, where it names own code."""
        grouped = observations.once(populations)
        if "_target_" not in command or not grouped.every:
            return ""
        code = code_needed(observations, grouped.to_go_on[0].rows)
        text = f"It needs your code as the store's runs had it: {code}. With other code it trains other runs."
        return text if code else ""

    def _condition(self, command: str, observations: Observations) -> str:
        """Return the condition that a command is about, where the store has several and it takes one."""
        grouped = observations.once(populations)
        if not command or not grouped.settings or command.split()[1] == "search":
            return ""
        first = grouped.to_go_on[0]
        return f"With {', '.join(settings_words(first.rows.iloc[0], list(first.condition)))} alone."
