"""A store's studies as notebooks use them: ``grok.studies(STORE)["census"]``.

An answer shows itself, its figures and its tables. Where the store cannot answer yet, it
shows what is missing and the command that trains it, and its tables and figures are empty.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from analysis.command import missing_text, study_text
from analysis.observations import Observations
from analysis.studies import QUESTIONS, Missing, Question, Study
from grok.config.common import StoreConfig
from grok.errors import nearest
from grok.store import check_path

if TYPE_CHECKING:
    from analysis.figures.style import Drawing

FINDINGS = ["label", "shown", "value", "low", "high", "n", "text"]
"""Columns of :attr:`Answer.findings`: the number as people read it, and by itself with its interval."""


class Figures(tuple["Drawing", ...]):
    """The figures of one answer: a notebook shows all of them with their captions."""

    def _repr_html_(self) -> str:
        return "\n".join(
            f'<figure><img src="data:image/png;base64,{base64.b64encode(figure.png()).decode()}" '
            f'alt="{html.escape(figure.title)}"><figcaption>{html.escape(figure.caption)}</figcaption></figure>'
            for figure in self
        )

    def __repr__(self) -> str:
        return f"{len(self)} figures" + "".join(f"\n  {figure.name}: {figure.title}" for figure in self)


class Answer:
    """The answer to one question of a store, or what is missing for one."""

    def __init__(self, study: Study | Missing) -> None:
        self.study = study
        """What the report has: all numbers of the study are its attributes."""

    @property
    def missing(self) -> str:
        """What the store lacks for an answer, and how to get it; empty where there is one."""
        return missing_text(self.study) if isinstance(self.study, Missing) else ""

    @cached_property
    def findings(self) -> pd.DataFrame:
        """A row a finding, with its interval; columns :data:`FINDINGS`."""
        if isinstance(self.study, Missing):
            return pd.DataFrame(columns=FINDINGS)
        rows = []
        for finding in self.study.findings:
            e = finding.estimate
            numbers = (None,) * 4 if e is None else (e.value, e.low, e.high, e.n)
            rows.append((finding.label, finding.shown, *numbers, finding.text))
        return pd.DataFrame(rows, columns=FINDINGS)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the report by name; empty where there is no answer."""
        return {} if isinstance(self.study, Missing) else {table.name: table.frame for table in self.study.tables}

    def table(self, name: str) -> pd.DataFrame:
        """Return the table ``name``, empty where there is no answer or this store gives it no row.

        Where the answer has parts (populations, conditions) their tables stand below each other; ``about`` names them.
        Examples: ``shares`` of the census, ``conditional_rates`` of crossed streams.
        """
        if name in self.tables or isinstance(self.study, Missing):
            return self.tables.get(name, pd.DataFrame())
        frames = []
        for part in self.study.parts:
            for table in part.tables:
                if table.name == name:
                    frames.append(table.frame.copy())
                    frames[-1].insert(0, "about", part.about)
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @cached_property
    def figures(self) -> Figures:
        """The figures of the report; none where there is no answer."""
        from analysis.figures import drawings

        return Figures() if isinstance(self.study, Missing) else Figures(drawings(self.study))

    def __repr__(self) -> str:
        return self.missing if isinstance(self.study, Missing) else study_text(self.study)

    def _repr_html_(self) -> str:
        if isinstance(self.study, Missing):
            return f"<p>{html.escape(self.missing).replace(chr(10), '<br>')}</p>"
        items = [finding.text for finding in self.study.findings] + [f"Note: {note}" for note in self.study.notes]
        lines = [f"<p><b>{html.escape(self.study.title)}.</b> {html.escape(self.study.question)}</p><ul>"]
        lines += [*(f"<li>{html.escape(item)}</li>" for item in items), "</ul>"]
        for table in self.study.tables:
            state = " open" if table.open else ""
            frame = table.frame.to_html(index=False, max_rows=20)
            lines.append(f"<details{state}><summary>{html.escape(table.caption)}</summary>{frame}</details>")
        return "\n".join(lines)


class Studies(Mapping[str, Answer]):
    """All questions of the report, asked of one store when they are looked up."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.is_there = check_path(str(path))
        self._answers: dict[str, Answer] = {}

    @cached_property
    def observations(self) -> Observations:
        """The store's runs and curves, made ready.

        Raises:
            StoreError: there is no store.
        """
        return Observations.read(self.path)

    def __getitem__(self, name: str) -> Answer:
        question = next((q for q in QUESTIONS if q.name == name), None)
        if question is None:
            raise KeyError(f"no study {name!r}{nearest(name, list(self))}: expected one of {', '.join(self)}")
        if name not in self._answers:
            self._answers[name] = Answer(question.ask(self.observations) if self.is_there else self._no_store(question))
        return self._answers[name]

    def _no_store(self, q: Question) -> Missing:
        needs = f"a store, and there is none at {self.path}"
        return Missing(q.name, q.title, q.question, needs, f"{q.command} store.path={self.path}".strip(), False)

    def __iter__(self) -> Iterator[str]:
        return iter([question.name for question in QUESTIONS])

    def __len__(self) -> int:
        return len(QUESTIONS)

    @property
    def findings(self) -> pd.DataFrame:
        """All findings of all answers; columns ``study`` and :data:`FINDINGS`."""
        frames = [answer.findings.assign(study=name) for name, answer in self.items()]
        return pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)[["study", *FINDINGS]]

    @property
    def overview(self) -> pd.DataFrame:
        """A row a question: what it asks, whether this store answers it, and what it needs otherwise."""
        rows = [
            (name, answer.study.question, not answer.missing, getattr(answer.study, "needs", ""))
            for name, answer in self.items()
        ]
        return pd.DataFrame(rows, columns=["study", "question", "answered", "needs"])

    def __repr__(self) -> str:
        return f"studies of {self.path}\n{self.overview.to_string(index=False)}"

    def _repr_html_(self) -> str:
        return f"<p>studies of {html.escape(str(self.path))}</p>{self.overview.to_html(index=False)}"


def studies(store: Path | str | None = None) -> Studies:
    """Return what the report says of ``store`` (by default ``results/store``), question by question.

    A store that is not there yet is no error: each answer then says how to get one.

    Raises:
        StoreError: the folder is no store, or a newer one.
    """
    return Studies(store if store is not None else StoreConfig().path)
