from __future__ import annotations

import math

import pytest

from grok.arithmetic.outcome import event_times, first_lasting, peak
from grok.records import CurvePoint

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 3, 2], 2),
        ([1, 3, 2.9], None),  # not fallen far enough
        ([3, 2, 1], 1),
        ([1, 2, 3], None),  # still climbing
        ([], None),
        ([NAN], None),
        ([3, INF], None),
        ([1, 3, NAN, 2], 2),
        ([2, 2, 2], None),
    ],
)
def test_peak(values: list[float], expected: int | None) -> None:
    assert peak(range(1, len(values) + 1), values, 0.1) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.96, 0.97], 2),
        ([0.96, 0.1, 0.97], 3),  # a single good evaluation does not last; at the end it is all there is
        ([0.96, 0.96, 0.1], 1),
        ([0.1, 0.2], None),
        ([NAN, 0.99], 2),
    ],
)
def test_first_lasting(values: list[float], expected: int | None) -> None:
    assert first_lasting(range(1, len(values) + 1), values, 0.95) == expected


def test_event_times_of_a_slow_run() -> None:
    curve = [
        CurvePoint(step=100 * i, train_acc=ta, val_acc=va, val_loss=vl, weight_norm=wn)
        for i, (ta, va, vl, wn) in enumerate(
            [(0.1, 0.0, 5.0, 40.0), (0.99, 0.0, 9.0, 60.0), (1.0, 0.1, 12.0, 66.0), (1.0, 0.97, 2.0, 60.0),
             (1.0, 1.0, 0.1, 50.0)], 1,
        )
    ]  # fmt: skip
    assert event_times(curve) == {
        "memorised_step": 200,
        "grokked_step": 400,
        "val_loss_peak_step": 300,
        "weight_norm_peak_step": 300,
    }
