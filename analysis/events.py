"""Event times of runs that were stored before the columns existed, computed from their curves."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from grok.arithmetic.outcome import events

ADDED: Final = ("memorised_loss_step", "grokked_for_good_step", "val_acc_dips", "weight_norm_fall_step")
"""Columns that are null in rows of older versions."""
COUNTED: Final = "val_acc_dips"
"""A column that is never null in a row whose events were computed."""
MEASURES: Final = ("train_loss", "train_acc", "val_loss", "val_acc", "weight_norm")


def with_event_times(runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs`` with the events of ``ADDED`` in every arithmetic row that has a curve.

    Stored events stay as they are. Only rows without computed events are filled.
    """
    known = {name: runs[name] if name in runs else pd.Series(pd.NA, runs.index, dtype="Int64") for name in ADDED}
    old = runs[(runs["mode"] == "arithmetic") & known[COUNTED].isna()]
    if old.empty:
        return runs.assign(**known)
    mine = curves[curves["run_id"].isin(old["run_id"])].sort_values(["run_id", "step"], kind="stable")
    ids, starts = np.unique(mine["run_id"].to_numpy(dtype=str), return_index=True)
    columns = {name: mine[name].to_numpy(dtype=float, na_value=np.nan) for name in MEASURES}
    steps = mine["step"].to_numpy(dtype=np.int64)
    events_by_run = {}
    for run, (i, j) in zip(ids, pairwise([*starts, len(mine)]), strict=True):
        events_by_run[run] = events(
            steps[i:j].tolist(), **{name: values[i:j].tolist() for name, values in columns.items()}
        )
    for name in ADDED:
        computed = old["run_id"].map({run: happened[name] for run, happened in events_by_run.items()}).astype("Int64")
        known[name] = known[name].astype("Int64").where(~known[name].index.isin(old.index), computed)
    return runs.assign(**known)
