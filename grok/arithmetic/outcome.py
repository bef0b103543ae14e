"""When things happened in a run: every threshold of the event times, in one place.

An event is dated by the evaluation that shows it, so it is known up to the spacing of
the evaluations; a run in which it did not happen has none (it is censored).

*Generalised* (grokked) means: ``PERSISTENCE`` evaluations in a row with a validation accuracy
of at least ``GENERALISED_VAL_ACC``, dated by the first of them. A later fall under the threshold
does not undo it. Each such fall is counted, and a run has generalised *for good* from the
evaluation after which it is never seen under the threshold again; a run that ends under it never has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from grok.records import CurvePoint

MEMORISED_TRAIN_ACC: Final = 0.95
"""A run has memorised, by accuracy, when its mini-batches are answered this well."""
MEMORISED_TRAIN_LOSS: Final = 0.2
"""A run has memorised, by loss, when that of its mini-batches is at most this (nats; the right answers then get a
probability of 0.82): just above the 0.05 to 0.18 at which the default regime stays once it has memorised."""
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


def for_good(steps: Sequence[int], values: Sequence[float], threshold: float) -> int | None:
    """Return the first step from which every evaluation up to the last reaches ``threshold``; None if that does not."""
    since = None
    for step, value in zip(reversed(steps), reversed(values), strict=True):
        if not value >= threshold:
            break
        since = step
    return since


def dips(steps: Sequence[int], values: Sequence[float], threshold: float, since: int | None) -> int:
    """Return how often the values fall under ``threshold`` after the step ``since`` (None: 0 times)."""
    if since is None:
        return 0
    under = [not value >= threshold for step, value in zip(steps, values, strict=True) if step >= since]
    return sum(now and not before for before, now in pairwise(under))


def peak(steps: Sequence[int], values: Sequence[float], fall: float) -> int | None:
    """Return the step of the highest value, or None while nothing after it is ``fall`` (a share) lower."""
    return peak_and_fall(steps, values, fall)[0]


def peak_and_fall(steps: Sequence[int], values: Sequence[float], fall: float) -> tuple[int | None, int | None]:
    """Return the step of the highest value and the first step after it that is ``fall`` (a share) lower.

    Both are None while nothing after the highest value is.
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
    """Return the event times of a curve, by their names in the store (``val_acc_dips``: a number of times)."""
    return events(
        [p.step for p in curve],
        train_loss=[p.train_loss for p in curve],
        train_acc=[p.train_acc for p in curve],
        val_loss=[p.val_loss for p in curve],
        val_acc=[p.val_acc for p in curve],
        weight_norm=[p.weight_norm for p in curve],
    )


def events(
    steps: Sequence[int],
    *,
    train_loss: Sequence[float],
    train_acc: Sequence[float],
    val_loss: Sequence[float],
    val_acc: Sequence[float],
    weight_norm: Sequence[float],
) -> dict[str, int | None]:
    """Return :func:`event_times` of a curve that is given measure by measure; all sequences go by ``steps``."""
    grokked = first_lasting(steps, val_acc, GENERALISED_VAL_ACC)
    norm_peak, norm_fall = peak_and_fall(steps, weight_norm, NORM_FALL)
    return {
        "memorised_step": first_lasting(steps, train_acc, MEMORISED_TRAIN_ACC),
        "memorised_loss_step": first_lasting(steps, [-loss for loss in train_loss], -MEMORISED_TRAIN_LOSS),
        "grokked_step": grokked,
        "grokked_for_good_step": for_good(steps, val_acc, GENERALISED_VAL_ACC),
        "val_acc_dips": dips(steps, val_acc, GENERALISED_VAL_ACC, grokked),
        "val_loss_peak_step": peak(steps, val_loss, LOSS_FALL),
        "weight_norm_peak_step": norm_peak,
        "weight_norm_fall_step": norm_fall,
    }
