"""Event times of older rows: read off the curves, as the engine would have stored them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.observations import ADDED, Observations, with_event_times
from tests.analysis.simulate import Truth, census, simulate


def test_rows_of_an_older_version_get_the_events_that_the_engine_stores_today() -> None:
    truths = census(8, np.random.default_rng(0), steps=6000, every=200)
    found = simulate([*truths, Truth({"seed": 90}, 900)])
    runs = found.all_runs.sort_values("run_id").reset_index(drop=True)
    assert runs["val_acc_dips"].notna().all()
    assert runs["weight_norm_fall_step"].notna().any()
    for old in (runs.drop(columns=list(ADDED)), runs.assign(**dict.fromkeys(ADDED, pd.NA))):
        again = with_event_times(old, found.curves)[list(ADDED)].astype("Int64")
        pd.testing.assert_frame_equal(again, runs[list(ADDED)].astype("Int64"))


def test_stored_events_are_kept_and_runs_without_a_curve_have_none() -> None:
    found = simulate(census(3, np.random.default_rng(0)))
    runs = found.all_runs.copy()
    runs["val_acc_dips"] = pd.array([7, None, None], dtype="Int64")
    curves = found.curves[found.curves["run_id"] != runs["run_id"].iloc[2]]
    again = Observations(runs, curves).all_runs["val_acc_dips"]
    assert again.iloc[0] == 7
    assert again.iloc[1] == 0
    assert pd.isna(again.iloc[2])
