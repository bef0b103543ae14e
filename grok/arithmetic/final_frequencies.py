"""Restricted and excluded loss as Nanda et al. 2023 define them: with the key frequencies of the final weights.

The key frequencies are known only when a run has ended, so the run must keep weights of earlier steps
(``save=final`` and ``checkpoint.keep_every``). A frequency is a key frequency if its waves cos and sin of
w_k (a ± b) are strong in the final logits. The paper takes frequencies with nontrivial coefficients in the map
from neurons to logits and states no threshold; here the threshold is a quarter of the strongest wave's norm.

Source: Nanda, Chan, Lieberum, Smith and Steinhardt 2023, "Progress measures for grokking via
mechanistic interpretability", section 5.1 and appendix C.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import torch

from grok.arithmetic.initial import Parameters
from grok.arithmetic.mechanism import Waves, group_order, places, waves_of
from grok.arithmetic.own_model import drawing
from grok.arithmetic.own_program import own_program
from grok.arithmetic.program import OneLaneProgram, Program
from grok.arithmetic.table import split
from grok.arithmetic.vocabulary import FIRST_NUMBER
from grok.config.arithmetic import ArithmeticConfig
from grok.records import CurvePoint
from grok.streams import Stream

THRESHOLD: Final = 0.25
"""Least norm of a key frequency's waves in the final logits, as a share of the strongest frequency's."""


def key_frequencies(waves: Waves) -> list[int]:
    """Return the frequencies k whose waves in a ± b reach ``THRESHOLD`` in the logits, ascending."""
    n = len(waves.amplitudes)
    k = torch.arange(1, n // 2 + 1)
    norms = waves.amplitudes[k, (waves.sign * k) % n].abs().square().sum(-1).sqrt()
    return [int(frequency) for frequency in k[norms >= THRESHOLD * norms.max()]]


def add_final_losses(
    config: ArithmeticConfig, curve: Sequence[CurvePoint], final: Parameters, kept: Iterable[tuple[int, Parameters]]
) -> list[int]:
    """Add both losses to the points of ``curve`` whose weights were kept; return the key frequencies.

    ``final_restricted_loss`` is over all equations, ``final_excluded_loss`` over the training set with its own
    answers (label noise included). If the operation is no group operation, nothing is added and the result is empty.

    Args:
        config: the run's settings.
        curve: the run's evaluations, changed in place.
        final: weights at the last point.
        kept: (step, weights) of earlier points.
    """
    program: Program = own_program(config) if config.plugins() else OneLaneProgram(config)
    order = group_order(config.task)
    last = max(curve, key=lambda point: point.step)
    of_final = _waves(config, program, final)
    if order is None or of_final is None:
        return []
    keys = key_frequencies(of_final)
    train_set, _ = split(config.task, config.stream_seeds().split)
    a, b, inside = places(config.task, order, train_set)
    targets = torch.from_numpy(train_set.answer)[inside] + FIRST_NUMBER
    points = {point.step: point for point in curve}

    def measure(point: CurvePoint, waves: Waves | None) -> None:
        assert waves is not None
        training = replace(waves, a=a, b=b, targets=targets)
        point.metrics |= {
            "final_restricted_loss": waves.restricted(keys),
            "final_excluded_loss": training.excluded(keys),
        }

    measure(last, of_final)
    for step, weights in kept:
        if step in points and step != last.step:
            measure(points[step], _waves(config, program, weights))
    return keys


def _waves(config: ArithmeticConfig, program: Program, weights: Parameters) -> Waves | None:
    with drawing(Stream("eval", config.stream_seeds().eval).at("final losses").seed64()):  # of a model of one's own
        return waves_of(config.task, lambda equations: program.logits(weights, equations))
