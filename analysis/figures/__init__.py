"""Pictures of what the studies found. Figures take a study's result and decide nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib as mpl

from analysis.figures import histograms
from analysis.figures.style import RC, Drawing
from analysis.studies.base import Study

DRAWINGS: dict[str, tuple[Callable[[Any], Drawing | None], ...]] = {
    "census": (histograms.accuracy_histogram, histograms.time_histogram),
}
"""Study name: its figures, each a function of the study that returns None where it has nothing to show."""


def drawings(study: Study) -> list[Drawing]:
    """Return the figures of a study, drawn in the common style."""
    with mpl.rc_context(RC):
        made = [draw(study) for draw in DRAWINGS.get(study.name, ())]
    return [drawing for drawing in made if drawing is not None]
