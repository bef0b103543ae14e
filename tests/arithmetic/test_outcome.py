from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        CurvePoint(step=100 * i, train_acc=ta, train_loss=tl, val_acc=va, val_loss=vl, weight_norm=wn)
        for i, (ta, tl, va, vl, wn) in enumerate(
            [(0.1, 4.0, 0.0, 5.0, 40.0), (0.99, 0.3, 0.0, 9.0, 60.0), (1.0, 0.2, 0.1, 12.0, 66.0),
             (1.0, 0.1, 0.97, 2.0, 65.8), (1.0, 0.1, 1.0, 0.1, 65.0)], 1,
        )
    ]  # fmt: skip
    assert event_times(curve) == {
        "memorised_step": 200,
        "memorised_loss_step": 300,
        "grokked_step": 400,
        "grokked_for_good_step": 400,
        "val_acc_dips": 0,
        "val_loss_peak_step": 300,
        "weight_norm_peak_step": 300,
        "weight_norm_fall_step": 500,
    }


@pytest.mark.parametrize(
    ("accuracy", "reached", "good", "fell"),
    [
        ([0.1, 0.2], None, None, 0),
        ([0.1, 0.96, 0.97], 2, 2, 0),
        ([0.96, 0.97, 0.5, 0.96], 1, 4, 1),  # reached once, and for good only after the fall
        ([0.96, 0.97, 0.5, 0.4, 0.99, 0.3], 1, None, 2),  # ends under the threshold
        ([0.96, 0.5, 0.97, 0.97], 3, 3, 0),  # one good evaluation is not yet generalised
        ([0.99, 0.99, NAN], 1, None, 1),
        ([], None, None, 0),
    ],
)
def test_reached_once_is_told_from_for_good(
    accuracy: list[float], reached: int | None, good: int | None, fell: int
) -> None:
    found = event_times([CurvePoint(step=i, val_acc=a) for i, a in enumerate(accuracy, 1)])
    assert (found["grokked_step"], found["grokked_for_good_step"], found["val_acc_dips"]) == (reached, good, fell)


@given(st.lists(st.sampled_from([0.2, 0.9, 0.95, 1.0, NAN]), max_size=12))
def test_for_good_is_never_earlier_than_reached_and_each_dip_leads_there_later(accuracy: list[float]) -> None:
    found = event_times([CurvePoint(step=i, val_acc=a) for i, a in enumerate(accuracy, 1)])
    reached, good, fell = found["grokked_step"], found["grokked_for_good_step"], found["val_acc_dips"]
    assert fell is not None
    if good is not None:
        assert reached is not None
        assert good >= reached
        assert (good > reached) == (fell > 0)
    assert fell == 0 or reached is not None
