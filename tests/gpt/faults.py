"""Failures of language-model runs, made on purpose: how each is injected, what catches it, and how the run ends.

``python -m tests.gpt.faults`` prints the table of ``results/faults/language_models.md``.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from grok.commands.compose import apply
from grok.config.gpt import GptConfig
from grok.gpt.training import engine
from grok.gpt.training.trainer import Trainer
from grok.records import StepPoint

AT: Final = 40
"""Step that each fault strikes at."""
PREFIX: Final = "gpt/fault "
SMALL: Final[dict[str, Any]] = {
    "model": {"layers": 1, "d_model": 16, "heads": 2, "context": 16, "tied": False},
    "optim": {"lr": 1e-2, "schedule": "constant", "warmup_steps": 4},
    "train": {"steps": 70, "batch_size": 4, "threads": 1},
    "eval": {"every": 35, "windows": 4, "sample_tokens": 0},
    "stability": {
        "policy": "new_data_seed", "signals": "all", "spike": 1.0, "sigma": 4.0, "window": 16, "snapshot_every": 8,
        "margin": 4, "skip_steps": 1,
    },
}  # fmt: skip
"""The tiny run that every fault is injected into; each changes what stands in its row."""


class Faulty(Trainer):
    """A trainer that something happens to; by itself it is sound."""

    at = AT
    branches = 1
    """Branches that the fault strikes: the first ones."""
    lasts = False
    """Whether the fault stays, or is there at one step alone."""

    def strikes(self, k: int) -> bool:
        """Return whether the fault is there at step ``k``."""
        return self.branch.number < self.branches and (k >= self.at if self.lasts else k == self.at)

    def gradients(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        loss = super().gradients(k, x, y)
        if self.strikes(k):
            self.spoil_gradients(k)
        return loss

    @torch.no_grad()
    def apply(self, norm: Tensor, rate: float) -> None:
        super().apply(norm, rate)
        if self.strikes(self.counters.step):
            self.spoil_weights()

    def spoil_gradients(self, k: int) -> None:
        """Change the gradients of step ``k``."""

    def spoil_weights(self) -> None:
        """Change weights or moments after an update."""

    def grads(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    @property
    def named(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())


class NanBatch(Faulty):
    def gradients(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        return super().gradients(k, x, y) * (torch.nan if self.strikes(k) else 1.0)


class NanGradient(Faulty):
    def spoil_gradients(self, k: int) -> None:
        self.grads()[-1].view(-1)[0] = torch.nan


class GradientExplodes(Faulty):
    def spoil_gradients(self, k: int) -> None:
        torch._foreach_mul_(self.grads(), 285.0)  # from 98k to 28M


class GradientGrows(Faulty):
    lasts = True

    def spoil_gradients(self, k: int) -> None:
        torch._foreach_mul_(self.grads(), 1.25 ** (k - self.at + 1))


class JumpThenStuck(Faulty):
    at, lasts = 100, True

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        x, y = super().batch(k)
        return (x, y.flip(0, 1)) if self.strikes(k) else (x, y)


class ScaleCollapses(Faulty):
    lasts = True

    def spoil_gradients(self, k: int) -> None:
        self.grads()[0].view(-1)[0] = torch.inf


class RareToken(Faulty):
    def spoil_gradients(self, k: int) -> None:
        norm = torch.stack([g.square().sum() for g in self.grads()]).sum().sqrt()
        self.named["token_embedding.weight"].grad[-1, 0] += 8 * norm  # type: ignore[index]


class CorruptedBatch(Faulty):
    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        x, y = super().batch(k)
        if not self.strikes(k):
            return x, y
        rare = torch.full_like(y, self.model.vocab_size - 1)
        return torch.zeros_like(x), rare


class CorruptedTwice(CorruptedBatch):
    branches = 2


class RateSpikes(Faulty):
    def apply(self, norm: Tensor, rate: float) -> None:
        super().apply(norm, rate * (100 if self.strikes(self.counters.step) else 1))


class RateTooHigh(Faulty):
    def strikes(self, k: int) -> bool:
        return False  # its learning rate is its fault


class BitFlip(Faulty):
    def spoil_weights(self) -> None:
        if self.ranks.index == 0:
            weight = self.named["token_embedding.weight"].data
            weight.view(torch.int32)[-1, 0] ^= 1 << 30  # 2**128 times as large


class MomentFlip(Faulty):
    def spoil_weights(self) -> None:
        second = self.optimizer.state[self.named["head.weight"]]["exp_avg_sq"].view(-1)
        largest = int(second.argmax())
        bits = second.view(torch.int32)
        highest = next(bit for bit in range(29, 22, -1) if not int(bits[largest]) >> bit & 1)
        bits[largest] ^= 1 << highest


class Stalls(Faulty):
    lasts = True

    def spoil_gradients(self, k: int) -> None:
        torch._foreach_zero_(self.grads())


class Repeats(Faulty):
    lasts = True

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        return super().batch(self.at + k % 3 if self.strikes(k) else k)


class EmbeddingGrows(Faulty):
    lasts = True

    def spoil_weights(self) -> None:
        self.named["token_embedding.weight"].mul_(1.3)


@dataclass(frozen=True)
class Fault:
    """One kind of failure, and all that is promised about it."""

    what: str
    """What is injected, in words."""
    trainer: type[Faulty]
    event: str
    """What catches it."""
    within: int
    """Steps after the injection at which it is caught, at most."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted name, besides ``SMALL``."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Constants of ``StabilityConfig`` that a tiny run needs otherwise."""
    rollbacks: int = 1
    damaged: int | None = None
    """Step of a kept checkpoint that is damaged on the disk before it is needed."""
    back_to: int | None = None
    """Step that the last rollback returns to; None: any step before the injection."""

    @property
    def policy(self) -> str:
        return str(self.changes.get("stability.policy", SMALL["stability"]["policy"]))


NO_SPIKE: Final = {"stability.spike": 1000.0}
NO_OUTLIER: Final = {"factor": 1e9}
FAULTS: Final[dict[str, Fault]] = {
    "nan_batch": Fault(
        "a loss that is not a number", NanBatch, "not_finite", 0, {"stability.policy": "skip_step"}, rollbacks=0
    ),
    "nan_gradient": Fault("one gradient that is not a number, the loss sound", NanGradient, "not_finite", 0),
    "gradient_explodes": Fault(
        "a gradient 285 times as long (98k to 28M), the loss sound",
        GradientExplodes, "grad_norm", 0, {"stability.policy": "skip_step"}, rollbacks=0,
    ),
    "gradient_grows": Fault(
        "a gradient a quarter longer at each step", GradientGrows, "grad_growth", 28, NO_SPIKE, NO_OUTLIER,
    ),
    "jump_then_stuck": Fault(
        "from one step on targets that do not belong to the text: the loss jumps and stays",
        JumpThenStuck, "stuck", 40,
        {**NO_SPIKE, "train.steps": 150}, {**NO_OUTLIER, "stuck": 0.2, "stuck_steps": 12},
    ),
    "scale_collapses": Fault(
        "fp16: every gradient overflows, and the loss scale falls to its least",
        ScaleCollapses, "not_finite", 8, {"precision": "fp16"}, {"least_scale": 1024.0},
    ),
    "skips_without_end": Fault(
        "fp16: every gradient overflows, and every update is skipped",
        ScaleCollapses, "skip_limit", 5, {"precision": "fp16"}, {"skip_limit": 6},
    ),
    "rare_token": Fault(
        "all of a gradient in one row of the embedding: AdamW's second moment is blown up", RareToken, "adam_v", 1,
        {"optim.clip": 0.0},
    ),
    "corrupted_batch": Fault(
        "a batch of garbage", CorruptedBatch, "spike", 0, {"stability.policy": "skip_data"}
    ),
    "corrupted_twice": Fault(
        "a batch of garbage, and again after the rollback",
        CorruptedTwice, "spike", 0, rollbacks=2, back_to=32,
    ),
    "rate_spikes": Fault(
        "one update at 100 times the learning rate", RateSpikes, "spike", 2, {"stability.policy": "cut_lr"}
    ),
    "rate_too_high": Fault(
        "a learning rate that is too high from the first step",
        RateTooHigh, "rising", 40 - AT,
        {"stability.policy": "cut_lr", "optim.lr": 10.0, **NO_SPIKE},
        {**NO_OUTLIER, "lr_cut": 0.001, "rise": 0.5, "rise_steps": 10},
    ),
    "bit_flip": Fault("one flipped bit in a weight, in the memory of one process", BitFlip, "not_finite", 1),
    "moment_flip": Fault("one flipped bit in a second moment of AdamW", MomentFlip, "adam_v", 1),
    "stalls": Fault("a gradient of zeros from one step on: the run goes on and learns nothing", Stalls, "stalled", 20),
    "repeats": Fault("a loader that repeats three batches", Repeats, "repeated", 16),
    "embedding_grows": Fault(
        "an embedding that grows by a third at each step",
        EmbeddingGrows, "weight_growth", 28,
        {**NO_SPIKE, "stability.margin": 8}, {**NO_OUTLIER, "growth": 8.0, "stuck": 100.0},
    ),
    "damaged_checkpoint": Fault(
        "a batch of garbage; the checkpoint to return to is damaged",
        CorruptedBatch, "spike", 0,
        {
            "stability.snapshot_every": 4, "stability.margin": 12,
            "checkpoint.keep_every": 10, "checkpoint.minutes": 0.0,
        },
        {"snapshots": 2},
        damaged=20, back_to=10,
    ),
}  # fmt: skip
"""Every kind of failure by name."""


def settings_of(name: str, data: str) -> dict[str, Any]:
    """Return the settings of the run that a fault is injected into, by what its ``experiment`` says."""
    settings: dict[str, Any] = {
        **SMALL, "mode": "gpt", "experiment": PREFIX + name, "numerics": {"compile": False},
        "log": {"quiet": True}, "data": {"path": data},
    }  # fmt: skip
    return apply(settings, FAULTS[name].changes)


@contextmanager
def injected() -> Iterator[None]:
    """Let each of the engine's runs meet the fault that its ``experiment`` names."""

    def trainer(config: GptConfig, *rest: Any) -> Trainer:
        experiment = str(config.experiment)
        if not experiment.startswith(PREFIX):
            return Trainer(config, *rest)
        fault = FAULTS[experiment.removeprefix(PREFIX)]
        vars(config.stability).update(fault.limits)
        return fault.trainer(config, *rest)

    with mock.patch.object(engine, "Trainer", trainer):
        yield


def caught(log: list[StepPoint]) -> tuple[int, str]:
    """Return the first step from the injection on that has an event, and the event; a rollback's first step is none."""
    return next((p.step, p.event) for p in log if p.event and p.event not in ("rolled_back", "skipped"))


def table() -> str:
    """Return the table of results/faults/language_models.md."""
    lines = ["| fault | what is injected | caught as | within steps | policy | the run |", "|---|---|---|---|---|---|"]
    for name, fault in FAULTS.items():
        if fault.rollbacks:
            back_to = f"step {fault.back_to}" if fault.back_to else "before the fault"
            ends = f"goes on as branch {fault.rollbacks}, from {back_to}"
            ends += f" (that of step {fault.damaged} is damaged)" if fault.damaged else ""
        else:
            ends = "goes on without that update"
        within = "of the start" if fault.event == "rising" else str(fault.within)
        lines.append(f"| `{name}` | {fault.what} | `{fault.event}` | {within} | `{fault.policy}` | {ends} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
