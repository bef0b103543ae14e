"""Measurements of a network's mechanism, which an evaluation adds to the curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.lanes import LaneModel, OneLane, no_noise
from grok.arithmetic.program import EVALUATION_ROWS
from grok.arithmetic.rows import Batch, RowPlan
from grok.arithmetic.task import FIRST_NUMBER, Equations, all_equations
from grok.arithmetic.weights import Parameters
from grok.config.arithmetic import ArithmeticConfig, ModelConfig, TaskConfig, is_prime
from grok.records import CurvePoint
from grok.streams import Stream

# Measurements of a network's mechanism, which an evaluation adds to the curve (``eval.metrics``).
#
# ``fourier``   share of the number embedding's power in its five strongest frequencies, and
#               the Gini coefficient of the spectrum. For products and quotients the numbers are
#               in the order of their discrete logarithms, whose sums and differences they are.
# ``head``      the same two of the head's rows of the numbers (of the embedding's, if tied).
# ``rank``      effective rank of the numbers' embedding and of the head: the exponential of the entropy
#               of the singular values' shares (Roy and Vetterli 2007).
# ``neurons``   the frequency of each neuron of the MLPs, and its phases; see :class:`Neurons`.
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
    config: ArithmeticConfig, parameters: Parameters, train_set: Equations, logits: Logits
) -> dict[str, float]:
    """Return the measurements of weights that ``eval.metrics`` asks for by name, on the weights' device.

    ``gradient`` is none of them: each engine has the step's gradients at another place.
    """
    wanted, task, metrics = config.eval.metrics, config.task, dict[str, float]()
    if "fourier" in wanted:
        metrics |= fourier_metrics(parameters, task, "fourier", EMBEDDING)
    if "head" in wanted:
        metrics |= fourier_metrics(parameters, task, "head", head_of(parameters))
    if "rank" in wanted:
        metrics |= {
            "embedding_rank": effective_rank(parameters[EMBEDDING][FIRST_NUMBER:]),
            "head_rank": effective_rank(parameters[head_of(parameters)]),
        }
    if "neurons" in wanted:
        for block, neurons in enumerate(neurons_of(config, parameters)):
            metrics |= {f"neurons_{block}_{name}": value for name, value in neurons.metrics().items()}
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
    """Return the numbers [n] in the order in which the operation adds or subtracts their places.

    None without such an order, or with too few numbers for the measurements.
    """
    logarithmic = task.operation in _LOGARITHMIC
    n = task.modulus - logarithmic
    if task.operation not in _SIGN or n < 2 * KEY_FREQUENCIES or (logarithmic and not is_prime(task.modulus)):
        return None
    return discrete_logarithms(task.modulus) if logarithmic else torch.arange(n)


def head_of(parameters: Parameters) -> str:
    """Return the name of the head's weights [V, D]: the embedding's, if they are tied."""
    return "head.weight" if "head.weight" in parameters else EMBEDDING


def spectrum(parameters: Parameters, task: TaskConfig, name: str = EMBEDDING) -> Tensor | None:
    """Return the share of the power at each frequency 1 .. n/2 [n // 2] in the numbers' rows of the weights ``name``.

    The constant is left out.
    """
    order = group_order(task)
    if order is None:
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
    if order is None:
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


# The neurons' frequencies and phases.
#
# A neuron after the activation is fitted by least squares, for one frequency k at a time, with the waves cos and sin
# of w_k x, w_k = 2 pi k / n, for the four x = a, ±b, a ± b and the difference a - (±b). The operands are their places
# in the group's order, ± is the operation's sign. Over all equations the share of the variance that the fit explains
# is that of Nanda et al. 2023 (section 4.3, their published notebook); here it is over a sample.
#
# In Gromov 2023's solution ("Grokking modular arithmetic") each neuron's phases in a and b add up to the phase of its
# weights to the answers.

TUNED: Final = 0.85
"""A neuron is tuned to a frequency that explains more than this share of its variance: the share of Nanda et al."""
CONSTANT: Final = 1e-12
"""A neuron whose variance is at most this share of its squared mean is constant: the rest is rounding."""


class _WatchedModel(LaneModel):
    """Keeps the neurons of every block."""

    def hidden(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        h = super().hidden(p, name, x)
        self.kept.append(h)
        return h


@dataclass(frozen=True)
class Neurons:
    """The neurons [F] of one block's MLP at the answer's position."""

    frequency: Tensor
    """The frequency, 1 .. n/2, that explains most."""
    explained: Tensor
    """The share of the variance that it explains; 0 for a constant neuron."""
    a: Tensor
    b: Tensor
    """Phases of its waves cos(w_k a - phase) and cos(w_k (±b) - phase), in radians."""
    out: Tensor | None
    """Phase of the neuron's weights to the answers, in the last block; they reach the logits through it alone."""

    def metrics(self) -> dict[str, float]:
        """Return a block's shares and counts, and how the phases of its tuned neurons are related."""
        tuned = self.explained > TUNED
        frequencies, counts = self.frequency[tuned].unique(return_counts=True)
        metrics = {
            "explained": float(self.explained.median()),
            "tuned": float(tuned.double().mean()),
            "frequencies": float(len(frequencies)),
            **{f"at_{k}": float(n) for k, n in zip(frequencies.tolist(), counts.tolist(), strict=True)},
        }
        if len(frequencies):
            metrics["symmetry"] = float((self.a - self.b)[tuned].cos().mean())
            if self.out is not None:
                metrics["alignment"] = float((self.a + self.b - self.out)[tuned].cos().mean())
        return metrics


@torch.no_grad()
def neurons_of(config: ArithmeticConfig, parameters: Parameters) -> list[Neurons]:
    """Return the neurons of each block; empty if the operation is no group operation."""
    order = group_order(config.task)
    if order is None:
        return []
    pairs, x, inverse = wave_sample(len(order), _SIGN[config.task.operation])
    a, b = (FIRST_NUMBER + order)[pairs].to(parameters[EMBEDDING].device)
    model = _WatchedModel(config.model, RowPlan.of(config.task), OneLane())
    model.answers(parameters, Batch(a, b, a, a), no_noise)
    found: list[Neurons] = []
    for rows in model.take_kept():
        h = rows[-len(a) :].cpu().double()  # those of the answer's position are the last
        mean = h.mean(0)
        h -= mean
        sums = torch.stack([h.new_zeros(len(order), h.shape[1]).index_add_(0, place, h) for place in x])
        waves = torch.fft.rfft(sums, dim=1)[:, 1:]  # [4, n // 2, F]
        moments = torch.cat([waves.real, -waves.imag]).transpose(0, 1)  # [n // 2, 8, F]
        fit, variance = inverse @ moments, h.square().sum(0)
        constant = variance <= CONSTANT * len(h) * mean.square()
        explained, best = torch.where(constant, 0, (fit * moments).sum(1) / variance).max(0)
        cos, sin = fit[best, :, torch.arange(len(best))].T.split(4)
        phases = torch.atan2(sin, cos)
        out = answer_phases(config.model, parameters, order, best) if len(found) == config.model.layers - 1 else None
        found.append(Neurons(best + 1, explained, phases[0], phases[1], out))
    return found


@cache
def wave_sample(n: int, sign: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (places of a and b [2, N], x [4, N], inverse of the waves' moments [n // 2, 8, 8]) of a fixed sample.

    The sample is all equations, if one pass of the network can take them.
    """
    if n**2 > EVALUATION_ROWS:
        pairs = torch.from_numpy(Stream("eval", 0).at("neurons").integers(2 * EVALUATION_ROWS, n)).view(2, -1)
    else:
        pairs = torch.cartesian_prod(torch.arange(n), torch.arange(n)).T
    a, b = pairs[0], sign * pairs[1]
    x = torch.stack([a, b, a + b, a - b]) % n
    inverses = []
    for k in range(1, n // 2 + 1):
        angles = 2 * math.pi / n * (k * x % n).double()
        waves = torch.cat([angles.cos(), angles.sin()])
        waves -= waves.mean(1, keepdim=True)
        inverses.append(torch.linalg.pinv(waves @ waves.T, hermitian=True, rtol=1e-9))  # at k = n/2 sines are 0
    return pairs, x, torch.stack(inverses)


def answer_phases(model: ModelConfig, parameters: Parameters, order: Tensor, best: Tensor) -> Tensor:
    """Return the phases [F] of the last block's neurons in the answers' logits, each at frequency ``best`` + 1.

    Of a norm on the way, its centring and weights count: it also divides all by one positive number per equation.
    """
    block = f"blocks.{model.layers - 1}."
    weights = parameters[block + "mlp.down.weight"].double()
    for norm in [block + "norm2"] * (model.norm == "post") + ["final_norm"] * model.final_norm:
        weights = (weights - weights.mean(0)) * parameters[norm + ".weight"].double()[:, None]
    logits = parameters[head_of(parameters)].double()[FIRST_NUMBER + order] @ weights  # [n, F]
    waves: Tensor = torch.fft.rfft(logits.cpu(), dim=0)[best + 1, torch.arange(len(best))]
    return -waves.angle()


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
