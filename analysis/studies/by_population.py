"""The answers to one question for every population of a store, side by side if there are several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from analysis.observations import Observations
from analysis.populations import Population, Populations, listed, populations
from analysis.purposes import roles
from analysis.statistics.estimate import NotEnoughData
from analysis.studies.base import Question, Study
from analysis.studies.side_by_side import Beside, needs_of_all, side_by_side, unanswered

MOST: Final = 12
"""Largest number of populations with an answer; a note counts the others."""


def has_populations(observations: Observations) -> bool:
    """Return whether the store has a population."""
    return bool(observations.once(populations).every)


def by_population(
    observations: Observations,
    question: Question,
    answer: Callable[[Observations, Population, Question], Study],
    beside: Beside,
    most: int = MOST,
) -> Study:
    """Return the answer for the store's only population, or a study with the answer for each in ``parts``.

    Raises:
        NotEnoughData: there is no population, or none has enough data.
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
        part.notes += _unfinished(observations, population)
        parts.append(part)
    if not parts:
        raise needs_of_all({p.name: needs for p, needs in gaps}, "population")
    if len(grouped) == 1:
        parts[0].notes += _beside_note(grouped) + observations.once(roles).said
        return parts[0]
    study = side_by_side(question, parts, {p.name: len(p) for p in chosen}, beside, _scope(grouped), "population")
    study.findings += unanswered({p.name: needs for p, needs in gaps})
    left = len(grouped) - len(chosen)
    if left:
        study.notes.append(f"{left} smaller populations of the store are left out (the {most} largest are shown).")
    study.notes += _beside_note(grouped) + observations.once(roles).said
    return study


def _unfinished(observations: Observations, population: Population) -> list[str]:
    """Return how many runs that were planned with these are not stored: those that end first may differ."""
    designs = [of for of in observations.once(roles).missing if not of.stored.isdisjoint(population.rows.index)]
    if not designs:
        return []
    missing = frozenset().union(*(of.missing for of in designs))
    planned = missing.union(*(of.stored for of in designs))
    return [f"Not finished: {len(missing):,} of {len(planned):,} runs that were planned with these are not stored."]


def _largest(grouped: Populations, most: int) -> list[Population]:
    """Return the reference and the largest of the others, in their order."""
    kept = sorted(grouped.every[1:], key=lambda p: -len(p))[: most - 1]
    return [p for i, p in enumerate(grouped.every) if i == 0 or p in kept]


def _beside_note(grouped: Populations) -> list[str]:
    notes = []
    if grouped.beside:
        notes.append(f"{grouped.beside:,} more runs are left out, because their groups have fewer than five seeds.")
    if grouped.tried:
        notes.append(f"{grouped.tried:,} more runs are trials of a search: its section judges them.")
    return notes


def _scope(grouped: Populations) -> str:
    """Return a sentence about the populations: first what differs between them, then what they share."""
    names = [f"{p.name} (n = {len(p):,})" for p in grouped.every[:MOST]]
    more = f" and {len(grouped) - MOST} more" if len(grouped) > MOST else ""
    text = f"{len(grouped)} populations, each with its own answer: {'; '.join(names)}{more}."
    if len({(p.varies, tuple(p.fixed.items())) for p in grouped.every}) == 1:
        first = grouped.every[0]
        drawn = f"{listed(first.varies)} drawn anew in each run" if first.from_masters else f"{first.unit}, one per run"
        text += f" In all of them: {drawn}{f', {first.held} fixed' if first.fixed else ''}."
    shared = grouped.every[0].shared(grouped.settings)
    return f"{text} Shared: {shared}."
