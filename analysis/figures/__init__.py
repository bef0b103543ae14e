"""Pictures of what the studies found. Figures take a study's result and decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import matplotlib as mpl

from analysis.figures import (
    beside,
    causes,
    curves,
    evidence,
    histograms,
    inside,
    interventions,
    language,
    papers,
    search,
    spikes,
    survival,
)
from analysis.figures.style import RC, Drawing
from analysis.studies.base import OwnStudy, Study

DRAWINGS: dict[str, tuple[Callable[[Any], Drawing | list[Drawing] | None], ...]] = {
    "census": (histograms.accuracy_histogram, histograms.time_histogram, curves.seed_curves),
    "survival": (survival.cumulative, survival.quantile_plot),
    "regimes": (curves.phase_portrait, curves.order_of_events),
    "crossed": (causes.variance_bars, causes.heat_map),
    "language_crossed": (causes.variance_bars, causes.heat_map),
    "branching": (evidence.branch_strips,),
    "layers": (causes.layer_shares,),
    "repeatability": (causes.repeat_candidates, causes.repeat_kinds),
    "weight_decay": (interventions.slowdowns, interventions.family_curves),
    "interventions": (interventions.slowdowns, interventions.family_curves),
    "val_shuffle": (survival.coupled_curves,),
    "search": (
        search.histories,
        search.comparisons,
        search.importances,
        search.slices,
        search.contours,
        search.fronts,
    ),
    "gpt": (language.loss_curves,),
    "spikes": (spikes.spike_curves,),
    "in_flight": (language.curves_in_flight,),
    "prediction": (causes.prediction_curve,),
    "mechanism": (inside.aligned,),
    "papers": (papers.beside_papers,),
}
"""Study name: its figures, each a function of the study; None where it has nothing to show."""


PAGES: dict[str, tuple[Callable[[Any], Drawing | None], ...]] = {
    "census": (evidence.census_iconic, evidence.census_logit),
}
"""Study name: figures that the pages of ``results/`` have beside those of the report."""


BESIDE: dict[str, tuple[Callable[[Any], Drawing | None], ...]] = {
    "census": (beside.super_shares,),
    "survival": (beside.cumulative,),
}
"""Study name: its figures where it has parts, each a function of the study."""
MOST_PARTS = 4
"""Parts whose own figures are drawn; the others stand in the table."""


def drawings(study: Study, for_page: bool = False) -> list[Drawing]:
    """Return the figures of a study, drawn in the common style; of its parts, where it has some, each by its name.

    ``for_page``: with those that only a page of ``results/`` has.
    """
    if isinstance(study, OwnStudy):
        return study.drawn
    made: list[Drawing] = []
    own = (*DRAWINGS.get(study.name, ()), *(PAGES.get(study.name, ()) if for_page else ()))
    with mpl.rc_context(RC):
        for draw in BESIDE.get(study.name, ()) if study.parts else own:
            drawn = draw(study)
            made += drawn if isinstance(drawn, list) else [drawn] if drawn else []
    for i, part in enumerate(study.parts[:MOST_PARTS], 1):
        if study.name != "survival":  # all of them are in one figure
            made += [
                replace(
                    d,
                    name=f"{d.name}_{i}",
                    title=f"{d.title}: {part.about}",
                    caption=f"{part.about}. {d.caption}",
                    about=part.about,
                )
                for d in drawings(part)
            ]
    return made
