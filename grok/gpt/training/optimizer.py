"""AdamW with decay groups, its learning rate as a function of the step, and what is logged about it.

Sources: Loshchilov & Hutter 2019 (AdamW); Radford et al. 2019 and Brown et al. 2020 (decay on matrices only).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from grok.config.gpt import GptConfig, OptimConfig
from grok.errors import ConfigError
from grok.gpt.training import schedules
from grok.gpt.training.schedules import Ramp


def decay_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Return two groups of parameters: those that decay (matrices and embeddings, or all) and the rest."""
    decays = [p for p in model.parameters() if config.decay == "all" or p.dim() >= 2]
    rest = [p for p in model.parameters() if config.decay == "matrices" and p.dim() < 2]
    groups = [{"params": decays, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Return AdamW over the decay groups, fused into one kernel for all tensors.

    Raises:
        ConfigError: 8-bit moments without the `bitsandbytes` package.
    """
    groups, betas = decay_groups(model, config), (config.betas[0], config.betas[1])
    if config.kind == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise ConfigError(
                "optim.kind=adamw8bit needs the bitsandbytes package: pip install bitsandbytes, or use optim.kind=adamw"
            ) from error
        eight_bit: torch.optim.Optimizer = AdamW8bit(groups, lr=config.lr, betas=betas, eps=config.eps)
        return eight_bit
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def batch_ramp(config: GptConfig) -> Ramp:
    """Return the batch size as a function of the sequences consumed."""
    return Ramp.of(config.train.batch_ramp, config.train.batch_size)


def learning_rate(config: GptConfig, k: int) -> float:
    """Return the learning rate of update ``k``, counted from 1."""
    o = config.optim
    end = o.decay_steps or config.train.steps
    if o.schedule == "one_cycle":
        return o.lr * schedules.one_cycle(k, end, o.cycle_rise, o.cycle_start, o.cycle_end)
    if o.warmup_samples is None:
        start, share = o.warmup_steps, schedules.warmup(k, o.warmup_steps)
    else:
        ramp = batch_ramp(config)
        start = _step_of_sample(ramp, o.warmup_samples)
        share = schedules.warmup(ramp.consumed(k), o.warmup_samples)
    if start < end:  # otherwise all of the run is warm-up
        share *= _after_warmup(o, k, start, end)
    return o.lr * share


def _after_warmup(o: OptimConfig, k: int, start: int, end: int) -> float:
    if o.schedule == "linear":
        return schedules.linear(k, start, end, o.min_lr)
    if o.schedule == "cosine":
        return schedules.cosine(k, start, end, o.min_lr)
    if o.schedule == "wsd":
        return schedules.wsd(k, start, end, o.wsd_decay, o.min_lr)
    return 1.0


@lru_cache(maxsize=64)
def _step_of_sample(ramp: Ramp, samples: int) -> int:
    return ramp.steps(samples)


def total_norm(tensors: list[Tensor]) -> Tensor:
    """Return the L2 norm of all ``tensors`` together."""
    return get_total_norm(tensors)


def nonzero(tensors: list[Tensor]) -> Tensor:
    """Return the number of elements of ``tensors`` that are not zero."""
    return torch.stack([torch.count_nonzero(t) for t in tensors]).sum()


def second_moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return AdamW's second moments, empty before the first update."""
    key = "exp_avg_sq" if isinstance(optimizer, torch.optim.AdamW) else "state2"
    # in the groups' order, which a resume does not change
    states = [optimizer.state[p] for g in optimizer.param_groups for p in g["params"] if p in optimizer.state]
    return [state[key] for state in states if key in state]
