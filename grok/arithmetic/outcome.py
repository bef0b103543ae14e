"""When things happened in a run: every threshold of the event times, in one place (REQUIREMENTS N6).

An event is dated by the evaluation that shows it, so it is known up to the spacing of
the evaluations; a run in which it did not happen has none (it is censored).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from grok.records import CurvePoint

MEMORISED_TRAIN_ACC: Final = 0.95
"""A run has memorised when its mini-batches are answered this well."""
GENERALISED_VAL_ACC: Final = 0.95
"""A run has generalised (grokked) when the validation set is answered this well."""
PERSISTENCE: Final = 2
"""Evaluations in a row that must show it; at the end of a curve, as many as there are."""
LOSS_FALL: Final = 0.10
"""The validation loss has peaked once it is this share below its highest value, for good or not."""
NORM_FALL: Final = 0.01
"""The same for the weight norm."""


def first_lasting(steps: Sequence[int], values: Sequence[float], threshold: float) -> int | None:
    """Return the first step from which ``PERSISTENCE`` evaluations in a row reach ``threshold``."""
    for i, step in enumerate(steps):
        if all(value >= threshold for value in values[i : i + PERSISTENCE]):
            return step
    return None


def peak(steps: Sequence[int], values: Sequence[float], fall: float) -> int | None:
    """Return the step of the highest value, or None while nothing after it is ``fall`` (a share) lower."""
    finite = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if not finite:
        return None
    top = max(range(len(finite)), key=lambda i: finite[i][1])
    step, highest = finite[top]
    lowest_after = min(value for _, value in finite[top:])
    return step if lowest_after <= (1 - fall) * highest and lowest_after < highest else None


def event_times(curve: Sequence[CurvePoint]) -> dict[str, int | None]:
    """Return the event times of a curve, by their names in the store."""
    steps = [point.step for point in curve]
    return {
        "memorised_step": first_lasting(steps, [p.train_acc for p in curve], MEMORISED_TRAIN_ACC),
        "grokked_step": first_lasting(steps, [p.val_acc for p in curve], GENERALISED_VAL_ACC),
        "val_loss_peak_step": peak(steps, [p.val_loss for p in curve], LOSS_FALL),
        "weight_norm_peak_step": peak(steps, [p.weight_norm for p in curve], NORM_FALL),
    }
