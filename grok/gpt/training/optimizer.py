"""AdamW with decay groups (also with 8-bit moments), its learning rate and its statistics.

Sources: Loshchilov & Hutter 2019 (AdamW); Radford et al. 2019 and Brown et al. 2020 (decay on matrices only);
Dettmers et al. 2022 (8-bit moments).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from grok.config.gpt import GptConfig, OptimConfig
from grok.errors import ConfigError
from grok.gpt import schedules
from grok.gpt.schedules import Ramp

BLOCK_OF_8_BITS: Final = 256
"""Elements that share a scale in bitsandbytes' 8-bit moments."""


def decay_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Return two groups of parameters: those that decay (matrices and embeddings, or all) and the rest."""
    decays = [p for p in model.parameters() if config.decay == "all" or p.dim() >= 2]
    rest = [p for p in model.parameters() if config.decay == "matrices" and p.dim() < 2]
    groups = [{"params": decays, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [g for g in groups if g["params"]]


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Return the optimiser that ``optim.kind`` names; AdamW is fused into one kernel for all tensors.

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
    if start < end:  # else the warm-up fills the whole run
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


def nonzero(tensors: list[Tensor]) -> Tensor:
    """Return the number of elements of ``tensors`` that are not zero."""
    if tensors[0].is_cuda:
        # one kernel for each tensor: the norm of order 0, exact in float64 up to 2**53
        return torch.stack([torch.linalg.vector_norm(t, 0, dtype=torch.float64) for t in tensors]).sum()
    return torch.stack([torch.count_nonzero(t) for t in tensors]).sum()


def sum_and_largest(moments: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sum and the largest of all second moments."""
    held = [v for v in moments if v.numel()]
    if moments[0].is_cuda and moments[0].is_floating_point():
        # few kernels: second moments are never negative, so sums are L1 norms
        totals, tops = (torch._foreach_norm(held, order) for order in (1, torch.inf))
        return torch.stack(list(totals)).sum(), torch.stack(list(tops)).max()
    return torch.stack([v.sum() for v in moments]).sum(), torch.stack([v.max() for v in held]).max()


def second_moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return AdamW's second moments as numbers, empty before the first update."""
    # the order of the groups, which a resume does not change
    states = [optimizer.state[p] for g in optimizer.param_groups for p in g["params"] if p in optimizer.state]
    key = "state2" if any("state2" in state for state in states) else "exp_avg_sq"
    return [_numbers(state, key) for state in states if key in state]


def _numbers(state: dict[str, Any], key: str) -> Tensor:
    """Return a moment. Codes of 8 bits are decoded: the value in a table times the largest value of the block."""
    moment: Tensor = state[key]
    if moment.dtype != torch.uint8:
        return moment
    number = key.removeprefix("state")
    values = state[f"qmap{number}"][moment.flatten().int()]
    largest: Tensor = state[f"absmax{number}"]
    block = BLOCK_OF_8_BITS
    padded = nn.functional.pad(values, (0, len(largest) * block - len(values))).view(len(largest), block)
    return (padded * largest[:, None]).flatten()[: moment.numel()].view_as(moment)


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return the state of ``parameter`` in ``optimizer`` as tensors; bitsandbytes has its step count as a number."""
    state = optimizer.state.get(parameter, {})
    return {key: value if isinstance(value, Tensor) else torch.tensor(value) for key, value in state.items()}


def state_of(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the state of a parameter in the form of ``optimizer``, from its tensors."""
    counts = type(optimizer).__module__.startswith("bitsandbytes")
    return {key: int(value) if counts and key == "step" else value for key, value in tensors.items()}
