"""The answers to one question for several populations or conditions, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.multiplicity import holm
from analysis.studies.base import Finding, Question, Study, Table

MOST_CARDS: Final = 6
"""Largest number of answers with a card each; of more, one card shows the range."""
LEVEL: Final = 0.05


@dataclass(frozen=True)
class Beside:
    """How the answers are compared."""

    row: Callable[[Any], Mapping[str, object]]
    """Return an answer's row of the table."""
    compare: Callable[[Any, Any], float | None] | None = None
    """Return the p-value that the reference (first) and another do not differ; None if they are not comparable."""
    meaning: str = ""
    """The null hypothesis in words: the caption says "that {meaning} as in the first"."""
    lead: Callable[[Any], Finding | None] | None = None
    """Return the finding for an answer's card; None: the first headline that all answers have."""


def side_by_side(
    question: Question, parts: list[Study], sizes: Mapping[str, int], beside: Beside, scope: str, kind: str
) -> Study:
    """Return a study with the answers ``parts``, each for the population or condition in its ``about``.

    ``sizes``: number of runs by that name. ``kind``: ``population`` or ``condition``.
    """
    study = Study(name=question.name, title=question.title, question=question.question, scope=scope, parts=parts)
    study.findings = [*_differences(parts, beside, kind), *_leading(parts, beside, kind)]
    study.tables = [_table(parts, sizes, beside, kind), *_tables(parts)]
    study.notes = _notes(parts)
    return study


def needs_of_all(needs: Mapping[str, str], kind: str) -> NotEnoughData:
    """Return the error for the case that no part has an answer, with the ``needs`` by the parts' names."""
    words = set(needs.values())
    if len(words) == 1:
        return NotEnoughData(f"{f'in each {kind} ' if len(needs) > 1 else ''}{words.pop()}")
    return NotEnoughData("; ".join(f"{name}: {words}" for name, words in needs.items()))


def unanswered(needs: Mapping[str, str]) -> list[Finding]:
    """Say of each part without an answer what it needs, by the parts' names."""
    return [
        Finding(name, "not enough data", f"{name}: not enough data, needs {words}.") for name, words in needs.items()
    ]


def _p_values(parts: Sequence[Study], beside: Beside) -> dict[str, float]:
    """Return the Holm-adjusted p-value of each part against the first, by its name."""
    if beside.compare is None or len(parts) < 2:
        return {}
    raw = {part.about: beside.compare(parts[0], part) for part in parts[1:]}
    tested = {about: p for about, p in raw.items() if p is not None}
    return dict(zip(tested, map(float, holm(list(tested.values()))), strict=True)) if tested else {}


def _differences(parts: Sequence[Study], beside: Beside, kind: str) -> list[Finding]:
    """Return the finding which parts differ from the first beyond chance; empty without tests."""
    p = _p_values(parts, beside)
    if not p:
        return []
    clear = [about for about, value in p.items() if value < LEVEL]
    text = f"{len(clear)} of {len(p)} differ from {parts[0].about} beyond chance"
    text += f" ({'; '.join(clear)})" if clear else ""
    text += f". Tested: {beside.meaning} as in that one, Holm-adjusted p below {LEVEL} over all {len(p)}."
    return [Finding(f"{kind}s that differ", f"{len(clear)} of {len(p)}", text)]


def _leading(parts: Sequence[Study], beside: Beside, kind: str) -> list[Finding]:
    """Return one card for each part, or one with their range if there are many."""
    lead_of = beside.lead or _common_lead(parts)
    leading = [(part, lead) for part in parts if (lead := lead_of(part))]
    if len(leading) <= MOST_CARDS:
        return [
            replace(lead, label=f"{lead.label}; {part.about}", text=f"{part.about}: {lead.text}")
            for part, lead in leading
        ]
    known = [(part, lead) for part, lead in leading if lead.estimate is not None and lead.label == leading[0][1].label]
    if len(known) < 2:
        return []
    low, high = (ends(known, key=lambda pair: pair[1].estimate.value) for ends in (min, max))  # type: ignore[union-attr]
    shown = f"{low[1].shown.partition(' (')[0]} to {high[1].shown.partition(' (')[0]}"
    text = f"Lowest at {low[0].about}: {low[1].shown}. Highest at {high[0].about}: {high[1].shown}."
    return [Finding(f"{leading[0][1].label}, over {len(known)} {kind}s", shown, text, headline=True)]


def _common_lead(parts: Sequence[Study]) -> Callable[[Any], Finding | None]:
    """Return the function that gives a part's card: the first headline that all parts have, else the part's own."""
    labels = [{finding.label for finding in part.findings} for part in parts]
    headlines = [finding.label for part in parts for finding in part.findings if finding.headline]
    label = next((label for label in headlines if all(label in known for known in labels)), None)

    def lead(part: Study) -> Finding | None:
        if label is None:
            return next((finding for finding in part.findings if finding.headline), None)
        return replace(next(finding for finding in part.findings if finding.label == label), headline=True)

    return lead


def _table(parts: Sequence[Study], sizes: Mapping[str, int], beside: Beside, kind: str) -> Table:
    p = _p_values(parts, beside)
    records = []
    for part in parts:
        record: dict[str, object] = {kind: part.about, "runs": sizes[part.about], **beside.row(part)}
        if p:
            record["p (Holm)"] = "reference" if part is parts[0] else f"{p[part.about]:.2g}" if part.about in p else ""
        records.append(record)
    caption = f"Every {kind}, 95% intervals"
    if p:
        caption += f"; p (Holm): that {beside.meaning} as in the first"
    return Table(f"{kind}s", caption, pd.DataFrame(records).fillna(""))


def _tables(parts: Sequence[Study]) -> list[Table]:
    return [
        replace(table, name=f"{table.name}_{i}", caption=f"{part.about}: {table.caption}", open=False)
        for i, part in enumerate(parts, 1)
        for table in part.tables
    ]


def _notes(parts: Sequence[Study]) -> list[str]:
    """Return each note once; notes that not all parts have begin with the names of their parts."""
    who: dict[str, list[str]] = {}
    for part in parts:
        for note in part.notes:
            who.setdefault(note, []).append(part.about)
    return [note if len(names) == len(parts) else f"{'; '.join(names)}: {note}" for note, names in who.items()]
