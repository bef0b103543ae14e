"""Dropout of attention by the fused kernel, as on one GPU; shown here on the processor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from grok.config.gpt import GptConfig
from grok.gpt.parts import attend, draw_masks, kernels_seeded
from grok.gpt.training.numerics import Numerics
from grok.records import RunResult
from grok.streams import Stream
from tests.gpt.conftest import result_of, run

Build = Callable[..., GptConfig]
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
    """At a rate of nothing all runs have the same weights, and so the same evaluation."""
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
