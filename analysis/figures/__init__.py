"""Figures of the studies' results. A figure draws the numbers of a study and computes no estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grok.analysis.figures import causes, language, search, seeds
from grok.analysis.figures.style import Drawing
from grok.analysis.studies.base import OwnStudy, Study

DRAWINGS: dict[str, tuple[Callable[[Any], Drawing | list[Drawing] | None], ...]] = {
    "census": (seeds.seed_curves, seeds.accuracy_histogram, seeds.time_histogram, seeds.census_iconic),
    "survival": (seeds.cumulative,),
    "regimes": (seeds.order_of_events,),
    "crossed": (causes.variance_bars, causes.heat_map),
    "language_crossed": (causes.variance_bars, causes.heat_map),
    "branching": (seeds.branch_strips,),
    "fate": (causes.fate_by_step,),
    "language_fate": (causes.fixed_by_step,),
    "repeatability": (causes.repeat_candidates, causes.repeat_kinds),
    "weight_decay": (seeds.family_curves,),
    "interventions": (seeds.family_curves,),
    "val_shuffle": (seeds.coupled_curves,),
    "search": (search.histories,),
    "gpt": (language.loss_curves, language.loss_by_use),
    "spikes": (language.spike_curves,),
    "prediction": (causes.prediction_curve,),
    "mechanism": (causes.aligned,),
    "papers": (seeds.beside_papers,),
}
"""Figures by the study's name, each a function of the study that returns None if there is nothing to draw."""
PAGES = {seeds.census_iconic}
"""Those that only the pages of ``results/`` have."""

MOST_PARTS = 4
"""Largest number of parts that get their own figures; the others are only in the table."""


def drawings(study: Study, for_page: bool = False) -> list[Drawing]:
    """Return the figures of a study in the common style. If it has parts, the names of their figures are numbered.

    ``for_page``: also return the figures that only the pages of ``results/`` have.
    """
    if isinstance(study, OwnStudy):
        return study.drawn
    if study.parts and study.name == "survival":
        return [seeds.cumulative_of_populations(study)]
    made: list[Drawing] = []
    for draw in () if study.parts else DRAWINGS.get(study.name, ()):
        drawn = None if draw in PAGES and not for_page else draw(study)
        made += drawn if isinstance(drawn, list) else [drawn] if drawn else []
    for i, part in enumerate(study.parts[:MOST_PARTS], 1):
        for d in drawings(part):
            title, caption = f"{d.title}: {part.about}", f"{part.about}. {d.caption}"
            made.append(replace(d, name=f"{d.name}_{i}", title=title, caption=caption))
    return made
