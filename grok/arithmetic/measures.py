"""Norms of the parameters, and measurements of a network's mechanism, which an evaluation adds to the curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.task import FIRST_NUMBER, Equations, all_equations
from grok.arithmetic.weights import Parameters
from grok.config.arithmetic import TaskConfig, is_prime
from grok.records import CurvePoint
from grok.runs import norms_of


def norms(parameters: Parameters) -> tuple[float, float, dict[str, float]]:
    """Return (weight_norm, weight_norm_all, norm per component), computed in float64."""
    return norms_of({name: float(p.detach().double().square().sum()) for name, p in parameters.items()})


# Measurements of a network's mechanism, which an evaluation adds to the curve (``eval.metrics``).
#
# ``fourier``   share of the number embedding's power in its five strongest frequencies, and
#               the Gini coefficient of the spectrum. For products and quotients the numbers are
#               in the order of their discrete logarithms, whose sums and differences they are.
# ``head``      the same two of the head's rows of the numbers (of the embedding's, if tied).
# ``rank``      effective rank of the numbers' embedding and of the head: the exponential of the entropy
#               of the singular values' shares (Roy and Vetterli 2007).
# ``circuit``   restricted and excluded loss: with only, or without, the logits' components at
#               five key frequencies along the operation (after Nanda et al. 2023, section 5),
#               over all equations. The frequencies are the strongest at the step of the
#               evaluation. The paper's own measures need the final weights:
#               :func:`add_final_losses`.
# ``logits``    standard deviation of the logits, and the share of training examples at which
#               the softmax collapses: rounding removes all other classes (Prieto et al. 2025).
# ``gradient``  norm of the mini-batch's gradient.
#
# The norm of the last layer is in ``block_norms`` of every curve as ``head``; its cycles are
# slingshots (Thilak et al. 2022).

EMBEDDING: Final = "token_embedding.weight"
KEY_FREQUENCIES: Final = 5
_SIGN: Final = {"x+y": 1, "x*y": 1, "x-y": -1, "x/y": -1}
"""Operations that are a sum (1) or a difference (-1) in a cyclic group."""
_LOGARITHMIC: Final = ("x*y", "x/y")

Logits = Callable[[Equations], Tensor]


def measured(
    wanted: Sequence[str], task: TaskConfig, parameters: Parameters, train_set: Equations, logits: Logits
) -> dict[str, float]:
    """Return the measurements of weights that are ``wanted`` (``eval.metrics``) by name, on the weights' device.

    ``gradient`` is none of them: each engine has the step's gradients at another place.
    """
    metrics: dict[str, float] = {}
    if "fourier" in wanted:
        metrics |= fourier_metrics(parameters, task, "fourier", EMBEDDING)
    if "head" in wanted:
        metrics |= fourier_metrics(parameters, task, "head", head_of(parameters))
    if "rank" in wanted:
        metrics |= {
            "embedding_rank": effective_rank(parameters[EMBEDDING][FIRST_NUMBER:]),
            "head_rank": effective_rank(parameters[head_of(parameters)]),
        }
    if "circuit" in wanted:
        metrics |= circuit_metrics(parameters, task, logits)
    if "logits" in wanted:
        metrics |= logit_metrics(train_set, logits)
    return metrics


def discrete_logarithms(p: int) -> Tensor:
    """Return the nonzero numbers modulo the prime ``p`` ordered by discrete logarithm: g^0, g^1, ... [p - 1]."""
    for g in range(1, p):
        powers = [1]
        while (following := powers[-1] * g % p) != 1:
            powers.append(following)
        if len(powers) == p - 1:
            return torch.tensor(powers)
    raise AssertionError(f"{p} is prime, so a generator exists")


def group_order(task: TaskConfig) -> Tensor | None:
    """Return the numbers [n] in the order in which the operation adds or subtracts their places, or None."""
    if task.operation not in _SIGN:
        return None
    if task.operation in _LOGARITHMIC:
        return discrete_logarithms(task.modulus) if is_prime(task.modulus) and task.modulus > 2 else None
    return torch.arange(task.modulus)


def head_of(parameters: Parameters) -> str:
    """Return the name of the head's weights [V, D]: the embedding's, if they are tied."""
    return "head.weight" if "head.weight" in parameters else EMBEDDING


def spectrum(parameters: Parameters, task: TaskConfig, name: str = EMBEDDING) -> Tensor | None:
    """Return the share of the power at each frequency 1 .. n/2 [n // 2] in the numbers' rows of the weights ``name``.

    The constant is left out.
    """
    order = group_order(task)
    if order is None or len(order) < 2 * KEY_FREQUENCIES:
        return None
    numbers = parameters[name].detach().double()[FIRST_NUMBER + order]  # [n, D]
    power: Tensor = torch.fft.rfft(numbers, dim=0).abs().square().sum(-1)[1:].cpu()
    return power / power.sum()


def gini(shares: Tensor) -> float:
    """Return the Gini coefficient of non-negative shares: 0 if all are equal, near 1 if all but one are 0."""
    ordered = shares.sort().values
    n = len(ordered)
    rank = torch.arange(1, n + 1, dtype=ordered.dtype)
    return float((2 * rank - n - 1) @ ordered / (n * ordered.sum()))


def fourier_metrics(parameters: Parameters, task: TaskConfig, word: str, name: str) -> dict[str, float]:
    """Return the spectrum's share in its five strongest frequencies and its Gini coefficient; empty without a group."""
    shares = spectrum(parameters, task, name)
    if shares is None:
        return {}
    return {f"{word}_top5": float(shares.topk(KEY_FREQUENCIES).values.sum()), f"{word}_gini": gini(shares)}


def effective_rank(weights: Tensor) -> float:
    """Return the exponential of the entropy of the singular values' shares: 1 to the rank; NaN for weights that are."""
    if not weights.isfinite().all():
        return math.nan
    values = torch.linalg.svdvals(weights.detach().double().cpu())
    return float(torch.special.entr(values / values.sum()).sum().exp())


@dataclass(frozen=True)
class Waves:
    """The Fourier transform of the logits over both operands, for equations on which the operation is a group's."""

    amplitudes: Tensor
    """[n, n, V]: the 2D Fourier transform over the operands in group order."""
    a: Tensor
    b: Tensor
    """[N]: the operands' places in that order, for each equation in a loss."""
    targets: Tensor
    """[N]: the tokens of their answers."""
    sign: int
    """The waves of the operation are those in a + b (1) or a - b (-1)."""

    def along(self, frequencies: Sequence[int]) -> Tensor:
        """Return the mask [n, n, 1] of the waves cos and sin of w_k (a ± b), k in ``frequencies``."""
        n = len(self.amplitudes)
        mask = torch.zeros(n, n, 1, dtype=torch.bool, device=self.amplitudes.device)
        for k in [*frequencies, *(-k for k in frequencies)]:
            mask[k % n, (self.sign * k) % n] = True
        return mask

    def restricted(self, frequencies: Sequence[int]) -> float:
        """Return the loss with only the mean over all equations and the waves of ``frequencies``."""
        kept = self.along(frequencies)
        kept[0, 0] = True  # the mean over all equations belongs to no frequency
        return self.loss(kept)

    def excluded(self, frequencies: Sequence[int]) -> float:
        """Return the loss without the waves of ``frequencies``."""
        return self.loss(~self.along(frequencies))

    def loss(self, mask: Tensor) -> float:
        """Return the mean cross-entropy of the equations with only the waves in ``mask``, in nats."""
        part = torch.fft.ifft2(self.amplitudes * mask, dim=(0, 1)).real[self.a, self.b]
        return float(F.cross_entropy(part, self.targets))


def waves_of(task: TaskConfig, logits: Logits) -> Waves | None:
    """Return the Fourier transform of the logits of all equations, or None if the operation is no group operation."""
    order = group_order(task)
    if order is None or len(order) < 2 * KEY_FREQUENCIES:
        return None
    table, n = all_equations(task), len(order)
    a, b, inside = places(task, order, table)
    outputs = logits(table.take(inside.numpy())).double()
    grid = outputs.new_empty(n, n, outputs.shape[-1])
    grid[a, b] = outputs
    targets = torch.from_numpy(table.answer)[inside].to(outputs.device) + FIRST_NUMBER
    return Waves(torch.fft.fft2(grid, dim=(0, 1)), a, b, targets, _SIGN[task.operation])


def places(task: TaskConfig, order: Tensor, equations: Equations) -> tuple[Tensor, Tensor, Tensor]:
    """Return both operands' places in ``order``, and the index of the equations whose operands are both in it; [N]."""
    place = torch.full((task.modulus,), -1)
    place[order] = torch.arange(len(order))
    a, b = place[torch.from_numpy(equations.a)], place[torch.from_numpy(equations.b)]
    inside = ((a >= 0) & (b >= 0)).nonzero()[:, 0]
    return a[inside], b[inside], inside


def circuit_metrics(parameters: Parameters, task: TaskConfig, logits: Logits) -> dict[str, float]:
    """Return restricted and excluded loss over all equations on which the operation is a group operation."""
    shares, waves = spectrum(parameters, task), waves_of(task, logits)
    if shares is None or waves is None:
        return {}
    keys = (shares.topk(KEY_FREQUENCIES).indices + 1).tolist()
    return {"restricted_loss": waves.restricted(keys), "excluded_loss": waves.excluded(keys)}


def logit_metrics(train_set: Equations, logits: Logits) -> dict[str, float]:
    """Return the logits' standard deviation and the share of training examples whose softmax collapses."""
    outputs = logits(train_set)
    top = outputs.max(-1, keepdim=True).values
    others = (outputs - top).exp().sum(-1)  # exactly 1 if rounding removes all classes but the largest
    return {"logit_scale": float(outputs.std(-1).mean()), "softmax_collapse": float((others == 1).double().mean())}


# Restricted and excluded loss as Nanda et al. 2023 define them: with the key frequencies of the final weights.
#
# The key frequencies are known only when a run has ended, so the run must keep weights of earlier steps
# (``save=final`` and ``checkpoint.keep_every``). A frequency is a key frequency if its waves cos and sin of
# w_k (a ± b) are strong in the final logits. The paper takes frequencies with nontrivial coefficients in the map
# from neurons to logits and states no threshold; here the threshold is a quarter of the strongest wave's norm.
#
# Source: Nanda, Chan, Lieberum, Smith and Steinhardt 2023, "Progress measures for grokking via
# mechanistic interpretability", section 5.1 and appendix C.2.

THRESHOLD: Final = 0.25
"""Least norm of a key frequency's waves in the final logits, as a share of the strongest frequency's."""


def key_frequencies(waves: Waves) -> list[int]:
    """Return the frequencies k whose waves in a ± b reach ``THRESHOLD`` in the logits, ascending."""
    n = len(waves.amplitudes)
    k = torch.arange(1, n // 2 + 1)
    norms = waves.amplitudes[k, (waves.sign * k) % n].abs().square().sum(-1).sqrt()
    return [int(frequency) for frequency in k[norms >= THRESHOLD * norms.max()]]


def add_final_losses(
    task: TaskConfig,
    train_set: Equations,
    curve: Sequence[CurvePoint],
    final: Parameters,
    kept: Iterable[tuple[int, Parameters]],
    logits: Callable[[Parameters, Equations], Tensor],
) -> list[int]:
    """Add both losses to the points of ``curve`` whose weights were kept; return the key frequencies.

    ``final_restricted_loss`` is over all equations, ``final_excluded_loss`` over the training set with its own
    answers (label noise included). If the operation is no group operation, nothing is added and the result is empty.

    Args:
        task: the run's task.
        train_set: its training set.
        curve: the run's evaluations, changed in place.
        final: weights at the last point.
        kept: (step, weights) of earlier points.
        logits: returns the logits [n, V] of weights on equations.
    """
    order, of_final = group_order(task), waves_of(task, partial(logits, final))
    if order is None or of_final is None:
        return []
    keys = key_frequencies(of_final)
    a, b, inside = places(task, order, train_set)
    targets = torch.from_numpy(train_set.answer)[inside] + FIRST_NUMBER
    points = {point.step: point for point in curve}
    for step, weights in chain([(max(points), final)], kept):
        if step in points and (waves := waves_of(task, partial(logits, weights))) is not None:
            training = replace(waves, a=a, b=b, targets=targets)
            points[step].metrics |= {
                "final_restricted_loss": waves.restricted(keys),
                "final_excluded_loss": training.excluded(keys),
            }
    return keys
