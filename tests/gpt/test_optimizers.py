"""Optimisers, schedules, dropout's kernel and MFU do what their papers say."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grok.config import load_config
from grok.config.gpt import GptConfig, OptimConfig
from grok.gpt import schedules
from grok.gpt.costs import MACHINES, count_parameters, peak_of_device
from grok.gpt.parts import attend, draw_masks, kernels_seeded
from grok.gpt.schedules import Ramp, learning_rate
from grok.gpt.training import trainer
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.trainer import Usage, build_optimizer, second_moments
from grok.records import RunResult
from grok.streams import Stream
from tests.gpt.conftest import EIGHT_BITS, Build, result_of, run


@EIGHT_BITS
def test_a_second_moment_of_eight_bits_is_shown_as_numbers() -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(100, 60) for _ in range(2)]
    kinds = ("adamw", "adamw8bit")
    options = [GptConfig(mode="gpt", optim=OptimConfig(kind=kind, lr=1e-3, decay="all")).optim for kind in kinds]
    optimizers = [build_optimizer(model, optim) for model, optim in zip(models, options, strict=True)]
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


@pytest.mark.parametrize(
    ("optim", "rates"),
    [
        ({"schedule": "linear", "warmup_steps": 10, "min_lr": 0.1}, [0.2, 1.0, 2.0, 1.1, 0.65, 0.2]),
        ({"schedule": "constant", "warmup_samples": 120}, [0.2, 1.0, 2.0, 2.0, 2.0, 2.0]),  # batches of 12
        (
            {"schedule": "cosine", "warmup_steps": 10, "min_lr": 0.1},
            [0.2, 1.0, 2.0, 1.1, 0.46360389693, 0.2],
        ),
        ({"schedule": "wsd", "warmup_steps": 10, "min_lr": 0.1}, [0.2, 1.0, 2.0, 2.0, 2.0, 0.2]),
    ],
)
def test_a_rate_begins_with_its_warmup_in_steps_or_samples(optim: dict[str, Any], rates: list[float]) -> None:
    train = {"steps": 110, "batch_size": 12}
    config = load_config({"mode": "gpt", "experiment": "t", "optim": {"lr": 2.0, **optim}, "train": train})
    assert [learning_rate(config, k) for k in (1, 5, 10, 60, 85, 110)] == pytest.approx(rates)


def test_one_cycle_equals_pytorch() -> None:
    # PyTorch counts from 0 and puts its peak at pct_start * total - 1
    total, rise, lr = 200, 0.3, 0.01
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=total, pct_start=rise, div_factor=25, final_div_factor=1e4
    )
    for k in range(1, total + 1):
        mine = lr * schedules.one_cycle(k, total, rise, 1 / 25, 1 / 25e4)
        assert mine == pytest.approx(reference.get_last_lr()[0], rel=1e-9, abs=1e-15), k
        optimizer.step()
        if k < total:
            reference.step()


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 6), st.integers(1, 4000), st.integers(0, 400))
def test_ramp_adds_up_step_by_step(first: int, increment: int, increments: int, samples: int, steps: int) -> None:
    ramp = Ramp(first, increment, samples, first + increment * increments)
    seen = 0
    for k in range(steps):
        assert ramp.consumed(k) == seen
        seen += ramp.size_at(seen)
    assert ramp.consumed(steps) == seen


def test_the_peak_follows_from_the_drivers_name() -> None:
    assert peak_of_device("NVIDIA H100 80GB HBM3", "bf16") == MACHINES["H100"].peak["bf16"]
    assert peak_of_device("NVIDIA H200", "float64") == MACHINES["H200"].peak["float32"]
    assert peak_of_device("Tesla V100-SXM2-16GB", "fp16") == 125e12
    assert peak_of_device("NVIDIA GH200 480GB", "bf16") == 989e12
    assert peak_of_device("GeForceRTX4090", "bf16") == peak_of_device("RTX4090", "bf16") == 165.2e12
    assert peak_of_device("NVIDIA RTX A1000 Laptop GPU", "bf16") is None
    assert peak_of_device("Quadro GV100", "fp16") is None
    assert peak_of_device("cpu-core", "float32") is None
    assert peak_of_device("NVIDIA A100-PCIE-40GB", "bf16") == peak_of_device("NVIDIA A100-SXM4-80GB", "bf16") == 312e12


def test_mfu_is_six_flops_a_parameter_and_attention(settings: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "device_model", lambda device: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    config = settings(precision="bf16")
    numerics = replace(Numerics.of(config, "cpu"), device=torch.device("cuda"), devices=2)
    model, n = config.model, count_parameters(config.model, 50)
    flops = 6 * (n.total - n.embedding - n.positions + (0 if n.head else n.embedding))
    flops += 12 * model.layers * 8 * model.d_model
    assert Usage(config, 50, numerics).mfu(1e6, 8) == pytest.approx(flops * 1e6 / (2 * 989e12), rel=1e-12)
    assert math.isnan(Usage(config, 50, Numerics.of(config, "cpu")).mfu(1e6, 8))


def test_the_peak_is_that_of_this_process_alone() -> None:
    code = (
        "from grok.processes import peak_of_process\n"
        "before = peak_of_process(); large = bytearray(b'1' * 2**26); del large; print(before, peak_of_process())"
    )
    ballast = b"1" * 2**28
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = map(int, said.split())
    assert before < len(ballast) and 2**26 <= after - before < 2**28


CPU = torch.device("cpu")


@pytest.fixture
def on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs compute attention's dropout as on one GPU."""
    resolve = Numerics.of

    def of(config: GptConfig, device: str) -> Numerics:
        return replace(resolve(config, device), fused_dropout=fused(config))

    monkeypatch.setattr(Numerics, "of", of)


def trained(config: GptConfig) -> RunResult:
    result = result_of(run(config))
    assert result.status == "completed"
    return result


def test_the_kernel_drops_weights_and_keeps_their_mean() -> None:
    """Over n heads alike the mean of outputs is the undropped output, to five standard errors."""
    generator = torch.Generator().manual_seed(1)
    n, t, width, p = 4000, 5, 4, 0.3
    q, k, v = (torch.randn(1, 1, t, width, generator=generator, dtype=torch.float64) for _ in range(3))
    how = {"bias": None, "scaling": "product", "softmax": "fused", "mask": None}
    whole = attend(q, k, v, **how)
    before = torch.get_rng_state()
    with kernels_seeded(CPU, Stream("dropout", 3)):
        dropped = attend(*[x.expand(1, n, t, width) for x in (q, k, v)], dropped=p, **how)[0]
    assert torch.equal(torch.get_rng_state(), before)
    error = dropped.std(0) / math.sqrt(n)
    assert ((dropped.mean(0) - whole[0, 0]).abs() <= 5 * error).all() and error.min() > 0
    nothing = (dropped[:, 0] == 0).all(-1).double().mean().item()  # the first token sees itself alone
    assert nothing == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))


def test_attention_gets_no_mask_and_the_others_keep_theirs(settings: Build) -> None:
    model = settings(model__dropout=0.2).model
    masked, others = (
        draw_masks(model, 2, 8, stream=Stream("dropout", 1).at(1, 0), device=CPU, fused=f) for f in (False, True)
    )
    assert set(masked) - set(others) == {"blocks.0.attention", "blocks.1.attention"}
    assert all(torch.equal(others[name], masked[name]) for name in others)


@pytest.mark.usefixtures("on_one_gpu")
def test_what_is_dropped_follows_from_the_streams_address_alone(settings: Build) -> None:
    config = settings(model__dropout=0.2, train__micro_batch=3)
    first = trained(config)
    torch.manual_seed(99)  # what was drawn before counts for nothing
    state = torch.get_rng_state()
    again = trained(config)
    assert torch.equal(torch.get_rng_state(), state)  # and what is drawn after is not moved
    other = trained(settings(model__dropout=0.2, train__micro_batch=3, seeds__dropout=5))
    assert "dropout=fused;" in first.numerics
    assert again.weights_hash == first.weights_hash and again.curve == first.curve
    assert other.weights_hash != first.weights_hash


@pytest.mark.usefixtures("on_one_gpu")
def test_nothing_is_dropped_in_an_evaluation(settings: Build) -> None:
    still = {"optim__lr": 1e-30, "optim__weight_decay": 0.0}
    with_dropout, without = (trained(settings(model__dropout=p, **still)) for p in (0.5, 0.0))
    assert [p.val_loss for p in with_dropout.curve] == [p.val_loss for p in without.curve]
    assert with_dropout.curve[-1].train_loss != without.curve[-1].train_loss


def fused(config: GptConfig) -> bool:
    return config.model.drops_in_kernel(config.train.recompute)


def test_what_is_computed_again_keeps_its_masks(settings: Build) -> None:
    assert fused(settings(model__dropout=0.2))
    assert not fused(settings(model__dropout=0.0))
    assert not fused(settings(model__dropout=0.2, train__recompute="attention"))
    assert not fused(settings(model__dropout=0.2, model__softmax="float32"))
    assert "dropout" not in Numerics.of(settings(model__dropout=0.2), "cpu").tag()
