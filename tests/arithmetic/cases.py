"""Settings and runs that several tests of the arithmetic mode share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.settings import TINY
from grok.arithmetic.engine import train
from grok.arithmetic.gpu import train_stacked
from grok.arithmetic.rows import Batch, shares
from grok.arithmetic.task import FIRST_NUMBER
from grok.config import ArithmeticConfig, load_config
from grok.records import Checkpoint, Event, Job, RunResult
from grok.runs import never

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "pre-norm, tied, sines, relu": {
        "model": {"norm": "pre", "tied": True, "positions": "sinusoidal", "activation": "relu"}
    },
    "no norm, no bias": {"model": {"norm": "none", "final_norm": False, "bias": False}},
    "bf16": {"precision": "bf16"},
    "division": {"task": {"operation": "x/y"}},
    "dropout": {"model": {"dropout": 0.2}},
    "one layer, three tokens": {"model": {"layers": 1}, "task": {"sequence": "a b ="}},
    "stablemax": {"train": {"loss": "stablemax"}},
    "interventions": {"optim": {"grokfast": "ema", "orthogonal_gradient": True, "norm_clamp": 0.8}},
}
"""Kinds of models and steps that stacked lanes carry."""

FAST = ("default", "dropout", "division", "interventions")
FEW = [pytest.param(variant, marks=[pytest.mark.slow] * (variant not in FAST)) for variant in VARIANTS]
"""All variants, all but a few of them slow."""


STOPS_AT_40: dict[str, Any] = {
    "seed": 1,
    "precision": "float64",
    "task": {"operation": "x*y", "modulus": 3, "train_fraction": 0.9, "sequence": "a b ="},
    "optim": {"lr": 5e-3},
    "train": {"steps": 90, "batch_size": 3, "stop_when_generalised": True, "stop_horizon": 40, "stop_every": 20},
    "eval": {"every": 90},
}
"""The early stop ends it at step 40, with one layer or two: the validation accuracy is high at steps 20 and 40."""


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``over`` laid over it, group by group."""
    merged = dict(base)
    for name, value in over.items():
        inner = merged.get(name)
        merged[name] = merge(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return merged


def tiny(**over: Any) -> ArithmeticConfig:
    """Return the tiny config with groups overridden."""
    config = load_config(merge({"mode": "arithmetic", **TINY}, over))
    assert isinstance(config, ArithmeticConfig)
    return config


def one_layer(**over: Any) -> ArithmeticConfig:
    """Return the tiny config with one layer: the second is the same code again."""
    return tiny(**merge({"model": {"layers": 1}}, over))


def looped(asked: list[Job], **how: Any) -> Iterator[Event]:
    return train(asked, **how)


def stacked(asked: list[Job], **how: Any) -> Iterator[Event]:
    return train_stacked(asked, **{"lanes": 3, "stop": never, "device": "cpu"} | how)


Engine = Callable[..., Iterator[Event]]
ENGINES = pytest.mark.parametrize("engine", [looped, stacked])


def jobs(*configs: ArithmeticConfig) -> list[Job]:
    return [Job(run_id=f"run{i}", config=config) for i, config in enumerate(configs)]


def events(*configs: ArithmeticConfig, engine: Engine = looped, **how: Any) -> list[Event]:
    return list(engine(jobs(*configs), **how))


def results(*configs: ArithmeticConfig, **how: Any) -> list[RunResult]:
    """Train the configs together and return their results in the configs' order."""
    found = {e.run_id: e for e in events(*configs, **how) if isinstance(e, RunResult)}
    return [found[f"run{i}"] for i in range(len(configs))]


def resumed(
    config: ArithmeticConfig, checkpoint: Checkpoint, run_id: str = "run0", engine: Engine = looped, **how: Any
) -> RunResult:
    """Go on from a checkpoint and return the result."""
    events = engine([Job(run_id=run_id, config=config, resume=checkpoint)], **how)
    (found,) = [e for e in events if isinstance(e, RunResult)]
    return found


def checkpoints(*configs: ArithmeticConfig, **how: Any) -> list[Checkpoint]:
    return [e for e in events(*configs, **how) if isinstance(e, Checkpoint)]


def curve(result: RunResult) -> dict[int, tuple[float, ...]]:
    """Return a run's curve by step, without what differs between runs of one trajectory."""
    return {
        p.step: (p.train_loss, p.train_acc, p.val_loss, p.val_acc, p.weight_norm, p.weight_norm_all, p.lr)
        for p in result.curve
    }


def default_config(**over: Any) -> ArithmeticConfig:
    config = load_config({"mode": "arithmetic", **over})
    assert isinstance(config, ArithmeticConfig)
    return config


def make_batch(a: Tensor, b: Tensor, answer: Tensor, size: int, dtype: torch.dtype) -> Batch:
    """Return a batch whose first ``size`` examples count and whose rest is padding; operands as numbers [B]."""
    share = shares(a.shape[-1], size, dtype)
    return Batch(a + FIRST_NUMBER, b + FIRST_NUMBER, answer + FIRST_NUMBER, share)
