"""One question, asked of every population of a store: a single answer, or the answers side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from analysis.observations import Observations
from analysis.populations import Population, Populations, listed, populations
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.multiplicity import holm
from analysis.studies.base import Finding, Question, Study, Table

MOST: Final = 12
"""Populations that are answered for; a store with more says which ones were left out."""
MOST_CARDS: Final = 6
"""Populations that get a card each; more are told by their range."""
LEVEL: Final = 0.05


@dataclass(frozen=True)
class Beside:
    """How the answers of several populations stand beside each other."""

    row: Callable[[Any], Mapping[str, object]]
    """From an answer to its row of the table."""
    compare: Callable[[Any, Any], float | None] | None = None
    """The p-value that the reference (first) and another do not differ; None where they cannot be compared."""
    meaning: str = ""
    """What p says, in words: ``the share of super seeds is the same (Fisher's exact test)``."""


def has_populations(observations: Observations) -> bool:
    """Return whether the store holds a population at all."""
    return bool(observations.once(populations).every)


def by_population(
    observations: Observations,
    question: Question,
    answer: Callable[[Observations, Population, Question], Study],
    beside: Beside,
    most: int = MOST,
) -> Study:
    """Return the answer for the store's only population, or a study whose ``parts`` answer for each.

    Raises:
        NotEnoughData: no population, or none of them has an answer yet.
    """
    grouped = observations.once(populations)
    if not grouped.every:
        raise NotEnoughData("at least one finished run of a random seed, or five seeds of one stream, the others fixed")
    chosen = _largest(grouped, most)
    parts: list[Study] = []
    gaps: list[tuple[Population, str]] = []
    for population in chosen:
        try:
            part = answer(observations, population, question)
        except NotEnoughData as gap:
            gaps.append((population, gap.needs))
            continue
        part.about, part.scope = population.name, population.scope
        parts.append(part)
    if not parts:
        words = {needs for _, needs in gaps}
        if len(words) == 1:
            raise NotEnoughData(f"{'in each population ' if len(gaps) > 1 else ''}{words.pop()}")
        raise NotEnoughData("; ".join(f"{p.name}: {needs}" for p, needs in gaps))
    if len(grouped) == 1:
        parts[0].notes += _beside_note(grouped)
        return parts[0]
    study = Study(
        name=question.name, title=question.title, question=question.question, scope=_scope(grouped), parts=parts
    )
    study.findings = [*_differences(parts, beside), *_leading(parts)]
    study.tables = [_side_by_side(parts, beside, chosen), *_tables(parts)]
    study.notes = [*_notes(parts), *(f"{p.name}: not enough data, needs {needs}." for p, needs in gaps)]
    left = len(grouped) - len(chosen)
    if left:
        study.notes.append(
            f"{left} smaller populations of the store are not answered for here (the {most} largest are)."
        )
    study.notes += _beside_note(grouped)
    return study


def _largest(grouped: Populations, most: int) -> list[Population]:
    """Return the reference and the largest of the others, in the order of the store."""
    kept = sorted(grouped.every[1:], key=lambda p: -len(p))[: most - 1]
    return [p for i, p in enumerate(grouped.every) if i == 0 or p in kept]


def _beside_note(grouped: Populations) -> list[str]:
    if not grouped.beside:
        return []
    return [
        f"{grouped.beside:,} more runs stand in groups too small to count (fewer than five seeds) and are left out."
    ]


def _scope(grouped: Populations) -> str:
    """Say what the populations of a store are: what differs between them, then what they share."""
    names = [f"{p.name} (n = {len(p):,})" for p in grouped.every[:MOST]]
    more = f" and {len(grouped) - MOST} more" if len(grouped) > MOST else ""
    text = f"{len(grouped)} populations, each answered for by itself: {'; '.join(names)}{more}."
    if len({(p.varies, tuple(p.fixed.items())) for p in grouped.every}) == 1:
        first = grouped.every[0]
        drawn = f"{listed(first.varies)} drawn anew in each run" if first.from_masters else f"{first.unit}, one per run"
        text += f" In all of them: {drawn}{f', {first.held} fixed' if first.fixed else ''}."
    shared = grouped.every[0].shared(grouped.settings)
    return f"{text} Shared: {shared}."


def _p_values(parts: Sequence[Study], beside: Beside) -> dict[str, float]:
    """Return each population's p-value against the first, Holm-adjusted over all of them."""
    if beside.compare is None or len(parts) < 2:
        return {}
    raw = {part.about: beside.compare(parts[0], part) for part in parts[1:]}
    told = {about: p for about, p in raw.items() if p is not None}
    return dict(zip(told, map(float, holm(list(told.values()))), strict=True)) if told else {}


def _differences(parts: Sequence[Study], beside: Beside) -> list[Finding]:
    """Say which populations differ from the first beyond chance."""
    p = _p_values(parts, beside)
    if not p:
        return []
    clear = [about for about, value in p.items() if value < LEVEL]
    text = f"{len(clear)} of {len(p)} differ from {parts[0].about} beyond chance"
    text += f" ({'; '.join(clear)})" if clear else ""
    text += f". Tested: {beside.meaning}, Holm-adjusted p below {LEVEL} over all {len(p)}."
    return [Finding("populations that differ", f"{len(clear)} of {len(p)}", text)]


def _leading(parts: Sequence[Study]) -> list[Finding]:
    """Return one card for each population, or their range where there are many; no population leads in silence."""
    leads = [(part, next((f for f in part.findings if f.headline), None)) for part in parts]
    told = [(part, lead) for part, lead in leads if lead is not None]
    if len(told) <= MOST_CARDS:
        return [
            replace(lead, label=f"{lead.label}; {part.about}", text=f"{part.about}: {lead.text}") for part, lead in told
        ]
    known = [(part, lead) for part, lead in told if lead.estimate is not None and lead.label == told[0][1].label]
    if len(known) < 2:
        return []
    low, high = (ends(known, key=lambda pair: pair[1].estimate.value) for ends in (min, max))  # type: ignore[union-attr]
    shown = f"{low[1].shown.partition(' (')[0]} to {high[1].shown.partition(' (')[0]}"
    text = f"Lowest at {low[0].about}: {low[1].shown}. Highest at {high[0].about}: {high[1].shown}."
    return [Finding(f"{told[0][1].label}, over {len(known)} populations", shown, text, headline=True)]


def _side_by_side(parts: Sequence[Study], beside: Beside, chosen: Sequence[Population]) -> Table:
    sizes = {p.name: len(p) for p in chosen}
    p = _p_values(parts, beside)
    records = []
    for part in parts:
        record: dict[str, object] = {"population": part.about, "runs": sizes[part.about], **beside.row(part)}
        if p:
            record["p (Holm)"] = "reference" if part is parts[0] else f"{p[part.about]:.2g}" if part.about in p else ""
        records.append(record)
    caption = "Every population, 95% intervals"
    if p:
        caption += f"; p (Holm): that {beside.meaning} as in the first"
    return Table("populations", caption, pd.DataFrame(records).fillna(""))


def _tables(parts: Sequence[Study]) -> list[Table]:
    return [
        replace(table, name=f"{table.name}_{i}", caption=f"{part.about}: {table.caption}", open=False)
        for i, part in enumerate(parts, 1)
        for table in part.tables
    ]


def _notes(parts: Sequence[Study]) -> list[str]:
    """Return each note once: as it is where every population has it, otherwise under their names."""
    who: dict[str, list[str]] = {}
    for part in parts:
        for note in part.notes:
            who.setdefault(note, []).append(part.about)
    return [note if len(names) == len(parts) else f"{'; '.join(names)}: {note}" for note, names in who.items()]
