"""AdamW as in the diary, warm-up, Grokfast, and the changes to the training rule that studies need.

Sources: Loshchilov & Hutter 2019 (AdamW); Lee et al. 2024, "Grokfast: accelerated
grokking by amplifying slow gradients".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from grok.arithmetic.weights import Parameters, norms
from grok.config import common
from grok.config.arithmetic import ArithmeticConfig, OptimConfig
from grok.numerics import move_by_ulps
from grok.streams import Stream


def learning_rate(config: common.AdamW, step: int) -> float:
    """Return the rate of update ``step`` (counted from 1): linear to ``lr`` over the warm-up, then constant."""
    if step >= config.warmup_steps:
        return config.lr
    return config.lr * step / config.warmup_steps


def decays(name: str, tensor: Tensor, config: OptimConfig) -> bool:
    """Return whether weight decay applies to a parameter."""
    return config.decay == "all" or tensor.ndim > 1


class Optimizer(Protocol):
    """Updates one lane's parameters; its state can be stored in a checkpoint."""

    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        """Apply update ``step`` (counted from 1) in place."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the state, by names that are unique in a checkpoint."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of :meth:`tensors` from all tensors of a checkpoint."""
        ...


class AdamW:
    """One lane's AdamW: torch's fused kernel, with its state in tensors by parameter name."""

    def __init__(self, parameters: Parameters, config: OptimConfig) -> None:
        self.config = config
        self.parameters = parameters
        self.first_moment = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second_moment = {name: torch.zeros_like(p) for name, p in parameters.items()}
        groups = [[n for n, p in parameters.items() if decays(n, p, config)]]
        groups.append([n for n in parameters if n not in set(groups[0])])
        self._groups = [(names, wd) for names, wd in zip(groups, (config.weight_decay, 0.0), strict=True) if names]
        self._counter = torch.zeros(())
        """The number of the update that the kernel makes next, the same for all parameters."""

    @torch.no_grad()
    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        """Apply update ``step`` (counted from 1) in place."""
        lr, (beta1, beta2) = learning_rate(self.config, step), self.config.betas
        self._counter.fill_(step)
        for names, weight_decay in self._groups:
            # the kernel of torch.optim.AdamW, which itself has a counter for each parameter
            torch._fused_adamw_(
                [self.parameters[n] for n in names],
                [gradients[n] for n in names],
                [self.first_moment[n] for n in names],
                [self.second_moment[n] for n in names],
                [],
                [self._counter] * len(names),
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=weight_decay,
                eps=self.config.eps,
                maximize=False,
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of both moments."""
        moments = {"first_moment": self.first_moment, "second_moment": self.second_moment}
        return {f"{moment}.{n}": t.clone() for moment, named in moments.items() for n, t in named.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore both moments from a checkpoint."""
        for name in self.parameters:
            self.first_moment[name].copy_(tensors[f"first_moment.{name}"])
            self.second_moment[name].copy_(tensors[f"second_moment.{name}"])


class SlowGradients:
    """Grokfast: adds ``lamb`` times a running mean of the gradient to the gradient.

    ``ema`` uses an exponential moving average, ``ma`` the mean of the last ``window``
    gradients; as in the paper's code, ``ma`` starts when the window is full.
    """

    def __init__(self, config: OptimConfig) -> None:
        self.config = config
        self.memory: dict[str, Tensor] = {}

    @torch.no_grad()
    def filtered(self, gradients: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """Return the gradients for update ``step``; also updates the running mean."""
        config = self.config
        if config.grokfast == "none":
            return gradients
        if config.grokfast == "ema":
            for name, g in gradients.items():
                mean = self.memory.get(name)
                self.memory[name] = (
                    g.clone()
                    if mean is None
                    else mean.mul_(config.grokfast_alpha).add_(g, alpha=1 - config.grokfast_alpha)
                )
            return {n: g.add(self.memory[n], alpha=config.grokfast_lamb) for n, g in gradients.items()}
        for name, g in gradients.items():
            if name not in self.memory:
                self.memory[name] = g.new_zeros(config.grokfast_window, *g.shape)
            self.memory[name][(step - 1) % config.grokfast_window] = g
        if step < config.grokfast_window:
            return gradients
        return {n: g.add(self.memory[n].mean(0), alpha=config.grokfast_lamb) for n, g in gradients.items()}


# Changes to the training rule that studies of grokking need; off by default.
#
# The Grokfast filter is in ``optimizer``. ``gpu.optimizer`` has the same changes for
# stacked lanes.


def stable_logits(logits: Tensor) -> Tensor:
    """Return the logits whose softmax is the stablemax of ``logits``: log s(x).

    s(x) = x + 1 for x >= 0 and 1 / (1 - x) below. Source: Prieto et al. 2025,
    "Grokking at the edge of numerical stability".
    """
    return torch.where(logits >= 0, torch.log1p(logits.clamp(min=0)), -torch.log1p((-logits).clamp(min=0)))


@torch.no_grad()
def orthogonal_gradients(parameters: Parameters, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor's gradient without its component along the weights, scaled to the gradient's norm.

    Source: Prieto et al. 2025.
    """
    projected = {}
    for name, g in gradients.items():
        w = parameters[name]
        along = (w * g).sum() / ((w * w).sum() + 1e-30)
        across = g - along * w
        projected[name] = across * (g.norm() / (across.norm() + 1e-30))
    return projected


@torch.no_grad()
def move_weights(parameters: Parameters, config: ArithmeticConfig) -> None:
    """Move every number of all tensors by up to ``switch.ulps`` units in the last place, in place.

    The draws have an address of their own with the step, so ``perturb.ulps`` draws others.
    """
    stream = Stream("perturb", config.stream_seeds().perturb).at("switch", config.switch.step or 0)
    for name, p in parameters.items():
        p.copy_(move_by_ulps(p.detach().contiguous(), config.switch.ulps, stream.at(name)))


@torch.no_grad()
def clamp_norm(parameters: Parameters, target: float) -> None:
    """Scale all parameters in place, so that their L2 norm is ``target``.

    Source: Liu et al. 2023, "Omnigrok".
    """
    norm = norms(parameters)[1]
    for p in parameters.values():
        p.mul_(target / max(norm, 1e-30))
