"""A store's studies for notebooks: ``grok.studies(STORE)["census"]``.

A notebook shows an answer with its tables, and ``answer.figures`` with their captions. If the store
cannot answer yet, the answer says what is missing and which command trains it, and its tables and
figures are empty.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from grok.analysis.observations import Observations
from grok.analysis.studies import BY_NAME, Finding, Missing, Study
from grok.analysis.writing import missing_text, study_text
from grok.config.common import StoreConfig
from grok.errors import nearest
from grok.store import check_path

if TYPE_CHECKING:
    from grok.analysis.figures.style import Drawing

FINDINGS = ["label", "shown", "value", "low", "high", "n", "text"]
"""Columns of :attr:`Answer.findings`: ``shown`` is the formatted number, ``value`` to ``n`` the number itself."""


class Figures(tuple["Drawing", ...]):
    """The figures of one answer. A notebook shows all of them with their captions."""

    def _repr_html_(self) -> str:
        return "\n".join(
            f'<figure><img src="data:image/png;base64,{base64.b64encode(figure.png()).decode()}" '
            f'alt="{html.escape(figure.title)}"><figcaption>{html.escape(figure.caption)}</figcaption></figure>'
            for figure in self
        )

    def __repr__(self) -> str:
        return f"{len(self)} figures" + "".join(f"\n  {figure.name}: {figure.title}" for figure in self)


class Answer:
    """A store's answer to one question, or what is missing for an answer."""

    def __init__(self, study: Study | Missing) -> None:
        self.study = study
        """The study of the report, with all its numbers as attributes."""

    @property
    def missing(self) -> str:
        """What the store lacks for an answer, and how to get it; empty if the store has an answer."""
        return missing_text(self.study) if isinstance(self.study, Missing) else ""

    @cached_property
    def findings(self) -> pd.DataFrame:
        """One row per finding, with its interval; columns :data:`FINDINGS`."""
        found: list[Finding] = getattr(self.study, "findings", [])
        numbers = [[getattr(f.estimate, name, None) for name in FINDINGS[2:6]] for f in found]
        rows = [(f.label, f.shown, *own, f.text) for f, own in zip(found, numbers, strict=True)]
        return pd.DataFrame(rows, columns=FINDINGS)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the report by name; empty without an answer."""
        return {table.name: table.frame for table in getattr(self.study, "tables", [])}

    def table(self, name: str) -> pd.DataFrame:
        """Return the table ``name``; empty without an answer, or if the answer has no such table.

        If the answer has parts (populations, conditions), their tables are concatenated, and the column ``about``
        names the part. Examples: ``shares`` of the census, ``conditional_rates`` of crossed streams.
        """
        if name in self.tables:
            return self.tables[name]
        frames = [
            pd.DataFrame({"about": part.about, **table.frame})
            for part in getattr(self.study, "parts", [])
            for table in part.tables
            if table.name == name
        ]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @cached_property
    def figures(self) -> Figures:
        """The figures of the report; none without an answer."""
        from grok.analysis.figures import drawings

        return Figures() if isinstance(self.study, Missing) else Figures(drawings(self.study))

    def __repr__(self) -> str:
        return self.missing if isinstance(self.study, Missing) else study_text(self.study)

    def _repr_html_(self) -> str:
        if isinstance(self.study, Missing):
            return f"<p>{html.escape(self.missing).replace(chr(10), '<br>')}</p>"
        items = [*self.study.lacks, *(finding.text for finding in self.study.findings)]
        items += [f"Note: {note}" for note in self.study.notes]
        lines = [f"<p><b>{html.escape(self.study.title)}.</b> {html.escape(self.study.question)}</p><ul>"]
        lines += [*(f"<li>{html.escape(item)}</li>" for item in items), "</ul>"]
        for table in self.study.tables:
            state = " open" if table.open else ""
            frame = table.frame.to_html(index=False, max_rows=20)
            lines.append(f"<details{state}><summary>{html.escape(table.caption)}</summary>{frame}</details>")
        return "\n".join(lines)


class Studies(Mapping[str, Answer]):
    """The answers to all questions of the report for one store, computed on first use."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.is_there = check_path(str(path), to_write=False)
        self._answers: dict[str, Answer] = {}

    @cached_property
    def observations(self) -> Observations:
        """The store's runs and curves, prepared for analysis.

        Raises:
            StoreError: there is no store.
        """
        return Observations.read(self.path)

    def __getitem__(self, name: str) -> Answer:
        if name not in BY_NAME:
            raise KeyError(f"no study {name!r}{nearest(name, BY_NAME)}: expected one of {', '.join(BY_NAME)}")
        if name not in self._answers:
            q, needs = BY_NAME[name], f"a store at {self.path}, which does not exist yet"
            command = f"{q.command} store.path={self.path}".strip()
            none = Missing(q.name, q.title, q.question, needs, command, False)
            self._answers[name] = Answer(q.ask(self.observations) if self.is_there else none)
        return self._answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(BY_NAME)

    def __len__(self) -> int:
        return len(BY_NAME)

    @property
    def findings(self) -> pd.DataFrame:
        """All findings of all answers; columns ``study`` and :data:`FINDINGS`."""
        frames = [answer.findings.assign(study=name) for name, answer in self.items()]
        return pd.concat([f for f in frames if len(f)] or frames[:1], ignore_index=True)[["study", *FINDINGS]]

    @property
    def overview(self) -> pd.DataFrame:
        """One row per question: its text, whether this store answers it, and what it needs otherwise."""
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
    """Return the answers of the report for ``store`` (default: ``results/store``), by the question's name.

    If the folder does not exist yet, each answer says which command makes the store.

    Raises:
        StoreError: the folder is no store, or a newer one.
    """
    return Studies(store if store is not None else StoreConfig().path)
