"""Figures of the evidence pages on simulated seeds: the numbers behind them are the truth's."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from grok.analysis.figures import evidence
from grok.analysis.figures.style import RC
from tests.analysis.simulate import census, simulate


@pytest.fixture(autouse=True)
def common_style() -> Iterator[None]:
    with mpl.rc_context(RC):
        yield


def test_the_iconic_figure_picks_out_the_chosen_and_keeps_all_others() -> None:
    store = simulate(census(24, np.random.default_rng(1), steps=20_000, every=500))
    curves = store.curves_of(store.arithmetic.index)
    times = store.arithmetic["grokked_step"].astype(float).sort_values()
    chosen = {str(times.index[0]): "super", str(times.index[3]): "fast"}
    drawing = evidence.iconic(curves, chosen)
    assert drawing.png().startswith(b"\x89PNG")
    assert drawing.data["run_id"].nunique() == 24
    assert set(drawing.data["name"]) == {"super", "fast", "other"}
    assert (drawing.data["step"] > 0).all()
    assert drawing.figure.axes[0].get_xscale() == "log"
    assert "n = 24 seeds" in drawing.figure.get_suptitle().replace("\N{NO-BREAK SPACE}", " ")
    with pytest.raises(ValueError, match="without a curve"):
        evidence.iconic(curves, {"nobody": "nobody"})


def test_the_histogram_counts_every_seed_in_its_class() -> None:
    rng = np.random.default_rng(4)
    accuracy = pd.Series(1 / (1 + np.exp(-rng.normal(-3, 3, 500))))
    accuracy.iloc[:2] = [0.0, 1.0]
    label = np.select([accuracy > 0.98, accuracy < 0.25], ["super", "normal"], "fast")
    task = {"config.task.modulus": 223, "config.task.train_fraction": 0.5}
    rows = pd.DataFrame({"accuracy": accuracy, "label": label}).assign(**task)
    census: Any = SimpleNamespace(rows=rows, has_diary_task=True, horizon=3000)
    drawing = evidence.accuracy_histogram(census)
    assert drawing is not None
    data = drawing.data
    assert data["super"].sum() == (accuracy > 0.98).sum()
    assert data["normal"].sum() == (accuracy < 0.25).sum()
    assert data[["normal", "fast", "super"]].to_numpy().sum() == 500
    assert ((data[["normal", "fast", "super"]] > 0).sum(axis=1) <= 1).all(), "a bar has one class"
