"""The event times of a run, and every threshold that defines them.

The time of an event is the step of the evaluation that shows it, so it is known up to the
spacing of the evaluations. A run without the event has no time: it is censored.

A run has *generalised* (grokked) when ``PERSISTENCE`` evaluations in a row have a validation
accuracy of at least ``GENERALISED_VAL_ACC``; the time is that of the first one. A later fall below
the threshold does not undo this; such falls are counted. A run has generalised *for good* from the
first evaluation from which all later ones reach the threshold; a run that ends below it has not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from grok.records import CurvePoint

MEMORISED_TRAIN_ACC: Final = 0.95
"""Least mini-batch accuracy at which a run has memorised, by accuracy."""
MEMORISED_TRAIN_LOSS: Final = 0.2
"""Largest mini-batch loss at which a run has memorised, by loss, in nats (a probability of 0.82 for the right answer).
Runs of the default regime that have memorised have 0.05 to 0.18."""
GENERALISED_VAL_ACC: Final = 0.95
"""Least validation accuracy at which a run has generalised (grokked)."""
PERSISTENCE: Final = 2
"""Number of evaluations in a row that must show an event; at the end of a curve fewer are enough."""
LOSS_FALL: Final = 0.10
"""The validation loss has a peak once a later value is lower by this share of the highest."""
NORM_FALL: Final = 0.01
"""The same share for the weight norm."""


def first_lasting(steps: Sequence[int], values: Sequence[float], threshold: float) -> int | None:
    """Return the first step from which ``PERSISTENCE`` evaluations in a row reach ``threshold``."""
    for i, step in enumerate(steps):
        if all(value >= threshold for value in values[i : i + PERSISTENCE]):
            return step
    return None


def for_good(steps: Sequence[int], values: Sequence[float], threshold: float) -> int | None:
    """Return the first step from which every evaluation reaches ``threshold``, or None if the last one does not."""
    since = None
    for step, value in zip(reversed(steps), reversed(values), strict=True):
        if not value >= threshold:
            break
        since = step
    return since


def dips(steps: Sequence[int], values: Sequence[float], threshold: float, since: int | None) -> int:
    """Return how often the values fall below ``threshold`` after the step ``since`` (None: 0 times)."""
    if since is None:
        return 0
    under = [not value >= threshold for step, value in zip(steps, values, strict=True) if step >= since]
    return sum(now and not before for before, now in pairwise(under))


def peak(steps: Sequence[int], values: Sequence[float], fall: float) -> tuple[int | None, int | None]:
    """Return the step of the highest value, and the first later step whose value is lower by the share ``fall``.

    Both are None if there is no such later step.
    """
    finite = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if not finite:
        return None, None
    top = max(range(len(finite)), key=lambda i: finite[i][1])
    step, highest = finite[top]
    for later, value in finite[top:]:
        if value <= (1 - fall) * highest and value < highest:
            return step, later
    return None, None


def event_times(curve: Sequence[CurvePoint]) -> dict[str, int | None]:
    """Return the event times of a curve in steps, by column name; ``val_acc_dips`` is a count."""
    steps, val_acc = [p.step for p in curve], [p.val_acc for p in curve]
    grokked = first_lasting(steps, val_acc, GENERALISED_VAL_ACC)
    norm_peak, norm_fall = peak(steps, [p.weight_norm for p in curve], NORM_FALL)
    return {
        "memorised_step": first_lasting(steps, [p.train_acc for p in curve], MEMORISED_TRAIN_ACC),
        "memorised_loss_step": first_lasting(steps, [-p.train_loss for p in curve], -MEMORISED_TRAIN_LOSS),
        "grokked_step": grokked,
        "grokked_for_good_step": for_good(steps, val_acc, GENERALISED_VAL_ACC),
        "val_acc_dips": dips(steps, val_acc, GENERALISED_VAL_ACC, grokked),
        "val_loss_peak_step": peak(steps, [p.val_loss for p in curve], LOSS_FALL)[0],
        "weight_norm_peak_step": norm_peak,
        "weight_norm_fall_step": norm_fall,
    }
