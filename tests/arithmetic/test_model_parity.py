"""The lanes equal the readable model, and that equals torch's own layers, in float64 to 1e-12."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from grok.arithmetic.gpu.lanes import StackedLanes
from grok.arithmetic.lanes import FusedModel, LaneModel, OneLane
from grok.arithmetic.model import CausalSelfAttention, Transformer
from grok.arithmetic.rows import Batch, RowPlan
from grok.arithmetic.task import Vocabulary, split
from grok.arithmetic.weights import initial_parameters
from grok.config import ArithmeticConfig
from tests.arithmetic.cases import make_batch, tiny

TOLERANCE = 1e-12


def reference(config: ArithmeticConfig, parameters: dict[str, Tensor]) -> Transformer:
    """Return the readable model in float64 with the given parameters."""
    vocabulary = Vocabulary.of(config.task)
    torch.set_default_dtype(torch.float64)
    try:
        model = Transformer(config.model, vocab_size=vocabulary.size, length=vocabulary.length)
    finally:
        torch.set_default_dtype(torch.float32)
    tied = {"head.weight": parameters["token_embedding.weight"]} if config.model.tied else {}
    model.load_state_dict(parameters | tied)
    return model


def some_batch(config: ArithmeticConfig, size: int, true_size: int) -> Batch:
    train_set, _ = split(config.task, 0)
    columns = [torch.from_numpy(x[:size]) for x in (train_set.a, train_set.b, train_set.answer)]
    return make_batch(*columns, true_size, torch.float64)


def reference_step(config: ArithmeticConfig, parameters: dict[str, Tensor], batch: Batch) -> tuple[Tensor, ...]:
    """Return (logits, loss, *gradients) of the readable model."""
    model = reference(config, parameters)
    words = {"a": batch.a, "b": batch.b}
    columns = [
        words[w] if isinstance(w, str) else torch.full_like(batch.a, w) for w in Vocabulary.of(config.task).layout
    ]
    logits = model(torch.stack(columns, 1))[:, -1]
    true = batch.share > 0
    loss = F.cross_entropy(logits[true], batch.answer[true])
    return (logits.detach(), loss.detach(), *torch.autograd.grad(loss, list(model.parameters())))


def lanes_step(
    config: ArithmeticConfig, parameters: dict[str, Tensor], batch: Batch, shared: bool, fused: bool = False
) -> tuple[Tensor, ...]:
    """Return (logits, loss, *gradients) of the row plan; of every lane where parameters are stacked."""
    stacked = parameters["token_embedding.weight"].ndim == 3
    leaves = {n: p.clone().requires_grad_() for n, p in parameters.items()}
    plan = RowPlan.of(config.task, shared=shared)
    model = LaneModel(config.model, plan, StackedLanes() if stacked else OneLane())
    if fused:
        model = FusedModel(config.model, plan, "plain")
    logits = model.logits(leaves, batch)
    loss = (model.ops.losses(logits, batch.answer) * batch.share).sum(-1)
    return (logits.detach(), loss.detach(), *torch.autograd.grad(loss.sum(), list(leaves.values())))


def assert_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert len(found) == len(expected)
    for f, e in zip(found, expected, strict=True):
        assert f.shape == e.shape
        assert (f - e).abs().max() <= TOLERANCE * max(1.0, float(e.abs().max()))


OPTIONS = list(
    itertools.product(
        ("post", "pre", "none"), ("gelu", "relu"), ("learned", "sinusoidal"), (True, False), (True, False)
    )
)


@pytest.mark.parametrize(("norm", "activation", "positions", "bias", "tied"), OPTIONS)
def test_lanes_equal_the_reference(norm: str, activation: str, positions: str, bias: bool, tied: bool) -> None:
    model = {"norm": norm, "activation": activation, "positions": positions, "bias": bias, "tied": tied}
    config = tiny(model={**model, "final_norm": norm != "none"})
    parameters = initial_parameters(config, torch.float64)
    batch = some_batch(config, 25, 19)
    expected = reference_step(config, parameters, batch)
    for shared, fused in itertools.product((True, False), repeat=2):
        assert_equal(lanes_step(config, parameters, batch, shared, fused), expected)


@given(
    operation=st.sampled_from(["x+y", "x/y", "x^3+xy^2+y", "x/y if y odd else x-y"]),
    modulus=st.sampled_from([5, 7, 13, 31]),
    sequence=st.sampled_from(["eos a op b =", "a op b =", "a b ="]),
    layers=st.integers(1, 4),
    heads=st.integers(1, 5),
    head_width=st.integers(1, 7),
    d_ff=st.integers(1, 33),
    norm=st.sampled_from(["post", "pre", "none"]),
    examples=st.integers(1, 9),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_lanes_equal_the_reference_at_odd_shapes(
    operation: str,
    modulus: int,
    sequence: str,
    layers: int,
    heads: int,
    head_width: int,
    d_ff: int,
    norm: str,
    examples: int,
    data: st.DataObject,
) -> None:
    config = tiny(
        task={"operation": operation, "modulus": modulus, "sequence": sequence},
        model={"layers": layers, "heads": heads, "d_model": heads * head_width, "d_ff": d_ff, "norm": norm},
        train={"batch_size": 1},
    )
    parameters = initial_parameters(config, torch.float64)
    batch = some_batch(config, examples, data.draw(st.integers(1, examples)))
    expected = reference_step(config, parameters, batch)
    for fused in (False, True):
        assert_equal(lanes_step(config, parameters, batch, True, fused), expected)


def test_stacked_lanes_equal_the_reference_each() -> None:
    configs = [tiny(seed=seed, model={"d_model": 20, "heads": 4}) for seed in (1, 2, 3)]
    parameters = [initial_parameters(c, torch.float64) for c in configs]
    batches = [some_batch(c, 25, true) for c, true in zip(configs, (25, 7, 19), strict=True)]
    stacked = {n: torch.stack([p[n] for p in parameters]) for n in parameters[0]}
    together = Batch(*[torch.stack([getattr(b, f) for b in batches]) for f in ("a", "b", "answer", "share")])
    found = lanes_step(configs[0], stacked, together, True)
    for lane, (config, p, batch) in enumerate(zip(configs, parameters, batches, strict=True)):
        assert_equal(tuple(f[lane] for f in found), reference_step(config, p, batch))


def test_attention_equals_torch_multihead_attention() -> None:
    config = tiny(model={"d_model": 12, "heads": 3}).model
    ours = CausalSelfAttention(config).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x = torch.linspace(-2, 3, 4 * 5 * 12, dtype=torch.float64).view(4, 5, 12).sin()
    mask = torch.full((5, 5), -math.inf, dtype=torch.float64).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=mask, need_weights=False)
    assert (ours(x) - expected).abs().max() < TOLERANCE


def test_parameter_counts_of_the_default() -> None:
    from grok.config import load_config

    config = load_config({"mode": "arithmetic"})
    assert isinstance(config, ArithmeticConfig)
    parameters = initial_parameters(config)
    assert sum(p.numel() for p in parameters.values()) == 457_578
    assert sum(p.numel() for n, p in parameters.items() if "embedding" not in n) == 426_986
