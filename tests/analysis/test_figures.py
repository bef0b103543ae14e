"""Colours that stay apart for every eye; pictures that say what they are; charts that hold the same numbers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from analysis.figures.causes import rows_chart
from analysis.figures.curves import seed_curves, time_histogram
from analysis.figures.evidence import census_iconic
from analysis.figures.render import draw
from analysis.figures.style import BLUE, LIGHT, PALETTE, ChartAxis, Drawing, canvas, log_axis, log_ticks
from tests.analysis.questions import ask
from tests.analysis.simulate import Truth, simulate

# Machado, Oliveira and Fernandes (2009), full deficiency, on linear sRGB.
EYES = {
    "all cones": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no medium": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
SERIES = ("grey", "blue", "amber", "teal", "rose", "violet")
Floats = NDArray[np.float64]


def linear(colour: str) -> Floats:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.asarray(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4))


def oklab(rgb: Floats) -> Floats:
    """Ottosson (2020): distances near what eyes tell apart, 0.02 being just visible."""
    cones = np.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
                      [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
    lab = np.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
                    [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
    return np.asarray(lab @ np.cbrt(cones @ np.clip(rgb, 0, 1)))


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("dark", [False, True])
def test_colours_of_series_stay_apart(eye: str, dark: bool) -> None:
    seen = {name: oklab(np.asarray(EYES[eye]) @ linear(PALETTE[name][dark])) for name in SERIES}
    for a, b in itertools.combinations(SERIES, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= 0.065, (a, b)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_the_paper(dark: bool) -> None:
    paper = PALETTE["paper"][dark]
    assert all(contrast(PALETTE[name][dark], paper) >= 3 for name in SERIES)
    assert contrast(PALETTE["soft"][dark], paper) >= 4.5
    assert contrast(PALETTE["ink"][dark], paper) >= 12
    assert LIGHT["paper"] == PALETTE["paper"][0]


def test_wide_ratios_are_labelled_in_decades() -> None:
    assert log_ticks(0.0009, 5e6, most=4) == [1e-3, 1, 1e3, 1e6]


@pytest.mark.parametrize(
    ("ends", "least"),
    [((1_750, 3_750), [2_000, 3_000]), ((100, 50_000), [100, 1_000, 10_000]), ((2_100, 2_900), [2_400])],
)
def test_a_logarithmic_axis_has_two_labels_or_more(ends: tuple[int, int], least: list[int]) -> None:
    """From 1,750 to 3,750 steps it had one: 2,000."""
    _, axes = canvas()
    axes.plot(ends, ends)
    log_axis(axes.xaxis)
    axes.set_xlim(*ends)
    inside = [t for t in axes.get_xticks() if ends[0] <= t <= ends[1]]
    assert 2 <= len(inside) <= 9
    assert set(least) <= {round(t) for t in inside}


def test_names_of_several_lines_do_not_overlap() -> None:
    name = "precision=float32 (default); optim.weight_decay=0.1 (default)"
    frame = pd.DataFrame([{"name": name, "value": 0.5, "low": 0.1, "high": 0.9}] * 5)
    chart = rows_chart(frame, [BLUE] * 5, ChartAxis("share", 0, 1), {})
    figure = draw("any", "Any", "", [chart], frame).figure
    figure.draw_without_rendering()
    extents = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(above.y0 >= below.y1 for above, below in itertools.pairwise(extents))
    assert "\n" in figure.axes[0].get_yticklabels()[0].get_text()


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


def test_a_few_longer_runs_do_not_squeeze_the_curves_of_all_others() -> None:
    truths = [Truth({"seed": seed, "eval.every": 500}, 2_000 + 20 * seed) for seed in range(99)]
    study = ask("census", simulate([*truths, Truth({"seed": 99, "train.steps": 50_000, "eval.every": 500}, 40_000)]))
    drawing = seed_curves(study)
    assert drawing is not None
    assert drawing.figure.axes[0].get_xlim() == (0, 3_000)
    assert drawing.caption.endswith("1 run goes on beyond the axis, up to step 50,000.")
