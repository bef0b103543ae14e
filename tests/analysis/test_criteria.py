"""The definitions of super, fast and normal, and what is not judged."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from analysis.criteria import DIARY, accuracy_at, judge_by_time
from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.survival import Times


def test_the_diarys_thresholds() -> None:
    assert (DIARY.horizon, DIARY.super_accuracy, DIARY.normal_accuracy, DIARY.speedup) == (3000, 0.98, 0.25, 3)
    accuracy = pd.Series([0.981, 0.98, 0.25, 0.249, np.nan, 0.5])
    diverged = pd.Series([False] * 5 + [True])
    assert DIARY.classify(accuracy, diverged).tolist() == ["super", "fast", "fast", "normal", "not judged", "diverged"]


def test_the_horizon_moves_down_with_short_runs_and_never_up() -> None:
    assert DIARY.horizon_for(np.array([3000, 3000, 20_000])) == 3000
    assert DIARY.horizon_for(np.array([10, 20_000, 3000])) == 3000
    assert DIARY.horizon_for(np.array([1000] * 60 + [3000] * 4)) == 1000
    assert DIARY.horizon_for(np.array([500])) == 500
    with pytest.raises(NotEnoughData):
        DIARY.horizon_for(np.array([], dtype=np.int64))


def curves(**runs: list[tuple[int, float]]) -> pd.DataFrame:
    return pd.DataFrame([{"run_id": r, "step": s, "val_acc": a} for r, points in runs.items() for s, a in points])


def test_accuracy_at_the_horizon_is_seen_or_implied_or_unknown() -> None:
    frame = curves(
        exact=[(2900, 0.1), (3000, 0.3), (3100, 0.99)],
        implied=[(2500, 0.05), (3500, 0.2)],
        unclear=[(2500, 0.05), (3500, 0.99)],
        early=[(2500, 0.99)],
        late=[(4000, 0.01)],
    )
    found = accuracy_at(frame, pd.Index(["exact", "implied", "unclear", "early", "late", "absent"]), 3000)
    assert found.iloc[:2].tolist() == [0.3, 0.05]
    assert found.iloc[2:].isna().all()


def test_super_by_time_counts_only_runs_that_were_long_enough() -> None:
    # 12 long runs with a median near 9,000, and 100 short ones of which two were super: those two may not be
    # counted without the 98 that could not show it.
    long = np.array([2000.0] + [9000.0] * 11)
    left = np.concatenate([long - 100, np.full(98, 2500.0), [1900.0, 1900.0]])
    right = np.concatenate([long, np.full(98, np.inf), [2000.0, 2000.0]])
    budgets = np.concatenate([np.full(12, 20_000.0), np.full(100, 2500.0)])
    verdict = judge_by_time(Times(left, right), budgets)
    assert verdict.median.value == pytest.approx(8950, abs=60)
    assert verdict.judged.sum() == 12
    assert verdict.is_early.sum() == 1
    with pytest.raises(NotEnoughData):
        judge_by_time(Times(np.full(10, 2500.0), np.full(10, np.inf)), np.full(10, 2500.0))


def test_early_stopped_runs_are_judged_where_stopping_began() -> None:
    """Three of ten generalise and stop at 1,000: the share must be three in ten, not none of seven."""
    rows = pd.DataFrame(
        {
            "steps": [1000] * 3 + [5000] * 7,
            "status": "completed",
            "stop_reason": ["generalised"] * 3 + ["steps"] * 7,
            "config.train.stop_horizon": 1000,
        },
        index=pd.Index([f"r{i}" for i in range(10)], name="run_id"),
    )
    assert DIARY.horizon_of(rows) == 1000
    diverged = rows.assign(status=["completed"] * 9 + ["diverged"])
    assert DIARY.horizon_of(diverged) == 1000
    assert DIARY.horizon_of(rows.assign(stop_reason="steps", steps=5000)) == 3000
