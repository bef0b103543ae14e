"""Every optimiser goes on from a checkpoint to the bit, and its parts do what their papers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grok.checkpoints import load_checkpoint, save_checkpoint
from grok.config.gpt import GptConfig
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.optimizer import build_optimizer, second_moments
from grok.gpt.training.trainer import Trainer
from grok.records import Checkpoint
from grok.text.corpus import Corpus
from tests.gpt.conftest import differences, result_of, run

Build = Callable[..., GptConfig]
WIDE = {"model__d_model": 72, "model__heads": 2}
"""Matrices of more than 4,096 elements: bitsandbytes keeps smaller ones' moments in 32 bits."""


@pytest.fixture
def eight_bits() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `bitsandbytes` is not installed")


@pytest.mark.parametrize(
    "changes",
    [
        {"optim__kind": "muon", "model__activation": "swiglu"},
        {"optim__kind": "muon", "optim__decay": "all", "stability__policy": "new_data_seed"},
        {"optim__kind": "adamw8bit"},
    ],
    ids=["muon", "muon with states to roll back to", "8 bits"],
)
def test_stopped_and_gone_on_with_equals_never_stopped(
    settings: Build, tmp_path: Path, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if changes["optim__kind"] == "adamw8bit":
        request.getfixturevalue("eight_bits")
    config = settings(**WIDE, **changes)
    whole = result_of(run(config))
    stopped = run(config, stop_at=5)[-1]
    assert isinstance(stopped, Checkpoint)
    save_checkpoint(tmp_path, stopped)
    assert not differences(whole, result_of(run(config, load_checkpoint(tmp_path))))
    assert whole.curve[-1].val_loss < whole.curve[0].val_loss


def trainer_of(config: GptConfig, corpus: Corpus) -> Trainer:
    return Trainer(config, corpus, Numerics.of(config, "cpu"))


def test_muon_takes_the_blocks_matrices_and_adamw_the_rest(settings: Build, corpus: Corpus) -> None:
    trainer = trainer_of(settings(optim__kind="muon"), corpus)
    trainer.update()
    names = {p: name for name, p in trainer.model.named_parameters()}
    for group in trainer.optimizer.param_groups:
        assert group["lr"] == trainer.optimizer.param_groups[0]["lr"] > 0
    for p, name in names.items():
        state = set(trainer.optimizer.state[p])
        is_matrix = name.startswith("blocks.") and p.dim() == 2
        assert state == ({"momentum_buffer"} if is_matrix else {"step", "exp_avg", "exp_avg_sq"}), name
        (group,) = [g for g in trainer.optimizer.param_groups if any(p is q for q in g["params"])]
        assert group["weight_decay"] == (0.1 if p.dim() >= 2 else 0.0), name


def test_muons_update_is_nearly_orthogonal(settings: Build, corpus: Corpus) -> None:
    """Its singular values lie around one, times 0.2 sqrt(largest side): the size of AdamW's updates (Liu et al.)."""
    config = settings(optim__kind="muon", optim__weight_decay=0.0, optim__warmup_steps=0, optim__schedule="constant")
    trainer = trainer_of(config, corpus)
    up = trainer.model.blocks[0].mlp.up.weight  # [96, 24]
    before = up.detach().clone()
    trainer.update()
    values = torch.linalg.svdvals((before - up.detach()) / (config.optim.lr * 0.2 * 96**0.5))
    assert values.median() > 0.7 and values.max() < 1.3  # of a direction that the gradient hardly has it can be small


@pytest.mark.usefixtures("eight_bits")
def test_a_second_moment_of_eight_bits_is_shown_as_numbers() -> None:
    """What the log shows is AdamW's own second moment, but for the rounding of 8 bits."""
    torch.manual_seed(0)
    models = [torch.nn.Linear(100, 60) for _ in range(2)]
    options = {"lr": 1e-3, "decay": "all"}
    optimizers = [
        build_optimizer(m, GptConfig(mode="gpt", optim=_optim(kind, options)).optim)
        for m, kind in zip(models, ("adamw", "adamw8bit"), strict=True)
    ]
    for _ in range(5):
        gradient = torch.randn(60, 100)
        for model, optimizer in zip(models, optimizers, strict=True):
            model.weight.grad = gradient * torch.linspace(0.1, 2, 100)
            model.bias.grad = gradient[:, 0].clone()
            optimizer.step()
    exact, shown = (second_moments(optimizer) for optimizer in optimizers)
    assert optimizers[1].state[models[1].weight]["state2"].dtype == torch.uint8
    for a, b in zip(exact, shown, strict=True):
        assert b.dtype == torch.float32 and a.shape == b.shape
        assert (a - b).abs().max() < 0.02 * a.max()
        assert b.sum().item() == pytest.approx(a.sum().item(), rel=0.02)


def _optim(kind: str, options: dict[str, Any]) -> Any:
    from grok.config.gpt import OptimConfig

    return OptimConfig(kind=kind, **options)
