"""What a network does inside, as numbers an evaluation can add to the curve (``eval.metrics``).

``fourier``   how much of the number embedding's power lies in its five strongest
              frequencies, and the Gini coefficient of the spectrum. Products and quotients
              are sums and differences of discrete logarithms, so their basis is over these.
``circuit``   restricted and excluded loss: with only, or without, the logits' components at
              the five key frequencies along the operation (after Nanda et al. 2023, section 5):
              over all equations, with the frequencies that are strongest at that moment. The
              paper's own measures need the final weights: :mod:`grok.arithmetic.final_frequencies`.
``logits``    spread of the logits, and the share of training examples at which softmax has
              collapsed: all other classes are lost in the rounding (Prieto et al. 2025).
``gradient``  norm of the mini-batch's gradient.

The last layer's norm, whose cycles are slingshots (Thilak et al. 2022), is in
``block_norms`` of every curve as ``head``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.initial import Parameters
from grok.arithmetic.table import Equations, all_equations
from grok.arithmetic.vocabulary import FIRST_NUMBER
from grok.config.arithmetic import TaskConfig, is_prime

KEY_FREQUENCIES: Final = 5
_SIGN: Final = {"x+y": 1, "x*y": 1, "x-y": -1, "x/y": -1}
"""Operations that are a sum (1) or difference (-1) in a cyclic group."""
_LOGARITHMIC: Final = ("x*y", "x/y")

Logits = Callable[[Equations], Tensor]


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
    """Return the numbers in the order in which the operation is addition, or None where it is not one."""
    if task.operation not in _SIGN:
        return None
    if task.operation in _LOGARITHMIC:
        return discrete_logarithms(task.modulus) if is_prime(task.modulus) and task.modulus > 2 else None
    return torch.arange(task.modulus)


def spectrum(parameters: Parameters, task: TaskConfig) -> Tensor | None:
    """Return the share of the number embedding's power at each frequency 1 .. n/2, constant left out."""
    order = group_order(task)
    if order is None or len(order) < 2 * KEY_FREQUENCIES:
        return None
    numbers = parameters["token_embedding.weight"].detach().double()[FIRST_NUMBER + order]  # [n, D]
    power: Tensor = torch.fft.rfft(numbers, dim=0).abs().square().sum(-1)[1:]
    return power / power.sum()


def gini(shares: Tensor) -> float:
    """Return the Gini coefficient of non-negative shares: 0 when all are equal, near 1 when one has all."""
    ordered = shares.sort().values
    n = len(ordered)
    rank = torch.arange(1, n + 1, dtype=ordered.dtype)
    return float((2 * rank - n - 1) @ ordered / (n * ordered.sum()))


def fourier_metrics(parameters: Parameters, task: TaskConfig) -> dict[str, float]:
    shares = spectrum(parameters, task)
    if shares is None:
        return {}
    return {"fourier_top5": float(shares.topk(KEY_FREQUENCIES).values.sum()), "fourier_gini": gini(shares)}


@dataclass(frozen=True)
class Waves:
    """The logits of the equations on which the operation is a group's, as waves in both operands."""

    amplitudes: Tensor
    """[n, n, V]: the 2D Fourier transform over the operands in group order."""
    a: Tensor
    b: Tensor
    """[N]: the operands' places in that order, for each equation that counts in a loss."""
    targets: Tensor
    """[N]: the tokens of their answers."""
    sign: int
    """Along the operation lie the waves in a + b (1) or a - b (-1)."""

    def along(self, frequencies: Sequence[int]) -> Tensor:
        """Return the mask [n, n, 1] of the waves cos and sin of w_k (a ± b), k in ``frequencies``."""
        n = len(self.amplitudes)
        mask = torch.zeros(n, n, 1, dtype=torch.bool)
        for k in [*frequencies, *(-k for k in frequencies)]:
            mask[k % n, (self.sign * k) % n] = True
        return mask

    def restricted(self, frequencies: Sequence[int]) -> float:
        """Return the loss with the mean over all equations and those waves alone."""
        kept = self.along(frequencies)
        kept[0, 0] = True  # the mean over all equations is no evidence either way
        return self.loss(kept)

    def excluded(self, frequencies: Sequence[int]) -> float:
        """Return the loss without those waves."""
        return self.loss(~self.along(frequencies))

    def loss(self, mask: Tensor) -> float:
        """Return the mean cross-entropy of the equations with the waves in ``mask`` alone."""
        part = torch.fft.ifft2(self.amplitudes * mask, dim=(0, 1)).real[self.a, self.b]
        return float(F.cross_entropy(part, self.targets))


def waves_of(task: TaskConfig, logits: Logits) -> Waves | None:
    """Return the logits of all equations as waves, or None where the operation is no group's."""
    order = group_order(task)
    if order is None or len(order) < 2 * KEY_FREQUENCIES:
        return None
    table, n = all_equations(task), len(order)
    a, b, inside = places(task, order, table)
    outputs = logits(table.take(inside.numpy())).double()
    grid = torch.empty(n, n, outputs.shape[-1], dtype=torch.float64)
    grid[a, b] = outputs
    targets = torch.from_numpy(table.answer)[inside] + FIRST_NUMBER
    return Waves(torch.fft.fft2(grid, dim=(0, 1)), a, b, targets, _SIGN[task.operation])


def places(task: TaskConfig, order: Tensor, equations: Equations) -> tuple[Tensor, Tensor, Tensor]:
    """Return both operands' places in ``order`` and the index [N] of the equations that have both in it."""
    place = torch.full((task.modulus,), -1)
    place[order] = torch.arange(len(order))
    a, b = place[torch.from_numpy(equations.a)], place[torch.from_numpy(equations.b)]
    inside = ((a >= 0) & (b >= 0)).nonzero()[:, 0]
    return a[inside], b[inside], inside


def circuit_metrics(parameters: Parameters, task: TaskConfig, logits: Logits) -> dict[str, float]:
    """Return restricted and excluded loss over all equations on which the operation is a group's."""
    shares, waves = spectrum(parameters, task), waves_of(task, logits)
    if shares is None or waves is None:
        return {}
    keys = (shares.topk(KEY_FREQUENCIES).indices + 1).tolist()
    return {"restricted_loss": waves.restricted(keys), "excluded_loss": waves.excluded(keys)}


def logit_metrics(train_set: Equations, logits: Logits) -> dict[str, float]:
    """Return the logits' spread and the share of training examples whose softmax has collapsed."""
    outputs = logits(train_set)
    top = outputs.max(-1, keepdim=True).values
    others = (outputs - top).exp().sum(-1)  # 1 exactly when nothing but the largest is left after rounding
    return {"logit_scale": float(outputs.std(-1).mean()), "softmax_collapse": float((others == 1).double().mean())}


def gradient_metrics(gradients: dict[str, Tensor]) -> dict[str, float]:
    square = sum(float(g.double().square().sum()) for g in gradients.values())
    return {"gradient_norm": math.sqrt(square)}
