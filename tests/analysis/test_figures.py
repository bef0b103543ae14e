"""Colours that stay apart for every eye; pictures that say what they are; charts that hold the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.figures.curves import seed_curves, time_histogram
from analysis.figures.evidence import census_iconic
from analysis.figures.style import LIGHT, PALETTE, Drawing
from tests.analysis.questions import ask
from tests.analysis.simulate import Truth, simulate

SERIES = ("grey", "blue", "amber", "teal", "rose", "violet")
Floats = NDArray[np.float64]


def linear(colour: str) -> Floats:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.asarray(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4))


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_the_paper(dark: bool) -> None:
    paper = PALETTE["paper"][dark]
    assert all(contrast(PALETTE[name][dark], paper) >= 3 for name in SERIES)
    assert contrast(PALETTE["soft"][dark], paper) >= 4.5
    assert contrast(PALETTE["ink"][dark], paper) >= 12
    assert LIGHT["paper"] == PALETTE["paper"][0]


def titled(drawing: Drawing | None) -> int:
    """Return the number of seeds that the title of a picture gives."""
    assert drawing is not None
    title = drawing.figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")
    return int(re.findall(r"n = ([\d,]+)", title)[0].replace(",", ""))


def test_a_figure_says_how_many_seeds_it_draws() -> None:
    """Figures drew 200 of 1,984 curves under "n = 1,984 seeds"."""
    store = simulate([Truth({"seed": seed, "eval.every": 500}, 900 + 20 * seed) for seed in range(240)])
    census = ask("census", store)
    for drawing in (census_iconic(census), seed_curves(census)):
        assert drawing is not None
        assert titled(drawing) == drawing.data["run_id"].nunique() < 240, drawing.name


def test_seeds_that_did_not_generalise_stand_where_their_runs_ended() -> None:
    """Seeds that ended at step 3,000 had a bar beyond the last step of the longest run."""
    rest = [Truth({"seed": seed, "eval.every": 500}, 1e9) for seed in range(20, 60)]
    longer = [Truth({"seed": seed, "eval.every": 500, "train.steps": 12_500}, 9_000 + seed) for seed in range(20)]
    drawing = time_histogram(ask("census", simulate([*longer, *rest])))
    (bar,) = drawing.data[drawing.data["not by their last step"] > 0].to_dict("records")
    assert bar["not by their last step"] == 40
    assert bar["step from"] < 3_000 <= bar["step to"] < 4_000
    assert titled(drawing) == 60 == drawing.charts[0].drawn
