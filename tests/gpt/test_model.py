"""The model is GPT-2 exactly; every option keeps causality, the cache and its own formula."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grok.config import identify
from grok.config.gpt import ModelConfig
from grok.gpt import parts
from grok.gpt.initial import build_model
from grok.gpt.model import GPT, parameter_count
from grok.gpt.parts import alibi, alibi_slopes, attend, rounded_softmax
from grok.numerics import move_by_ulps
from grok.streams import Stream
from tests.gpt.conftest import Build

CPU = torch.device("cpu")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"positions": "rotary", "qk_norm": True, "norm_type": "rmsnorm"},
    {"positions": "alibi", "bias": False, "tied": False},
    {"norm": "post", "activation": "relu", "qk_scaling": "operands"},
    {"softmax": "float32", "positions": "alibi", "vocab_multiple": 64, "activation": "gelu"},
    {"positions": "rotary", "norm_type": "rmsnorm", "activation": "swiglu", "kv_heads": 1, "bias": False},
]


def tokens(b: int, t: int, v: int = 29) -> torch.Tensor:
    return torch.from_numpy(Stream("eval", 0).at("tokens").integers(b * t, v).reshape(b, t))


def model_of(settings: Build, *, dtype: torch.dtype = torch.float64, v: int = 29, **options: Any) -> GPT:
    config = settings(**{f"model__{k}": value for k, value in options.items()})
    return build_model(config, vocab_size=v, device=CPU, dtype=dtype)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(2, 300), st.integers(1, 50))
def test_count_is_the_chronicles_formula(n: int, k: int, heads: int, v: int, s: int) -> None:
    """N = n (12 h^2 + 13 h) + v h + s h + 2 h."""
    h = k * heads
    config = ModelConfig(layers=n, d_model=h, heads=heads, context=s)
    assert parameter_count(config, vocab_size=v) == n * (12 * h * h + 13 * h) + v * h + s * h + 2 * h


@pytest.mark.parametrize("options", OPTIONS)
def test_the_future_cannot_be_seen(settings: Build, options: dict[str, Any]) -> None:
    model, x = model_of(settings, **options), tokens(2, 16)
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 29
    with torch.no_grad():
        a, b = model(x), model(changed)
    assert torch.equal(a[:, :9], b[:, :9])
    assert not torch.allclose(a[:, 9:], b[:, 9:])


@pytest.mark.parametrize("options", OPTIONS)
def test_cache_gives_the_same_logits(settings: Build, options: dict[str, Any]) -> None:
    model, x = model_of(settings, **options), tokens(2, 16)
    cache = model.new_cache(2, 16)
    with torch.no_grad():
        pieces = [model(piece, cache=cache) for piece in x.split([5, 1, 1, 9], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, 1), model(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"positions": "alibi"}, {"positions": "rotary"}])
@pytest.mark.parametrize("change", [{"softmax": "float32"}, {"qk_scaling": "operands"}])
def test_ways_of_computing_attention_agree(settings: Build, options: dict[str, Any], change: dict[str, Any]) -> None:
    x = tokens(2, 16)
    a, b = model_of(settings, **options), model_of(settings, **options, **change)
    with torch.no_grad():
        torch.testing.assert_close(a(x), b(x), rtol=1e-9, atol=1e-11)


def test_softmax_in_the_activations_precision_is_exact_in_float64_and_rounds_in_bf16(settings: Build) -> None:
    x = tokens(2, 16)
    a, b = model_of(settings), model_of(settings, softmax="activations")
    losses = [model.loss(x, x) for model in (a, b)]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=1e-12)
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-12, msg=name)

    scores = torch.linspace(-4, 4, 2048).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = rounded_softmax(scores)
    exponentials = torch.exp(scores - scores.max())
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, exponentials / exponentials.sum())
    assert not torch.equal(rounded, scores.softmax(-1))


def test_a_moved_initial_weight_is_a_neighbouring_float_and_no_norm_or_bias_moves(settings: Build) -> None:
    base, moved, again, other = (
        build_model(settings(**change), vocab_size=29, device=CPU, dtype=torch.float32)
        for change in ({}, {"perturb__ulps": 1}, {"perturb__ulps": 1}, {"perturb__ulps": 1, "seeds__perturb": 7})
    )
    kinds = zip(base.named_parameters(), moved.parameters(), again.parameters(), other.parameters(), strict=True)
    for (name, a), b, c, d in kinds:
        steps = (a.view(torch.int32) - b.view(torch.int32)).abs()
        assert steps.max() == (1 if a.ndim > 1 else 0), name
        assert torch.equal(b, c) and torch.equal(b, d) == (a.ndim == 1)
        if a.ndim > 1:  # each tensor by draws of its own
            stream = Stream("perturb", settings(perturb__ulps=1).stream_seeds().perturb).at(name)
            assert torch.equal(b, move_by_ulps(a.detach(), 1, stream))


def test_a_perturbation_is_another_trajectory_of_one_condition_only_where_it_is_on(settings: Build) -> None:
    plain, seeded = identify(settings()), identify(settings(seeds__perturb=7))
    one, two = (identify(settings(perturb__ulps=1, seeds__perturb=seed)) for seed in (1, 2))
    assert plain.trajectory_id == seeded.trajectory_id
    assert len({plain.trajectory_id, one.trajectory_id, two.trajectory_id}) == 3
    assert one.config_id == two.config_id


def test_scaled_operands_do_not_overflow_in_half_precision() -> None:
    """A product q·k of 60 over a head width of 64 is 230,400 before the division, beyond float16's 65,504."""
    q = torch.full((1, 1, 4, 64), 60.0, dtype=torch.float16)
    mix = lambda scaling: attend(q, q, q, bias=None, scaling=scaling, softmax="float32", mask=None)  # noqa: E731
    assert mix("product").isnan().any()
    assert torch.equal(mix("operands"), q)


def test_parameters_stay_float32_and_softmax_is_float32_in_bf16(settings: Build) -> None:
    """Activations in bfloat16; softmax in bfloat16 would give sums that are off by up to 1 in 256."""
    model = model_of(settings, dtype=torch.float32, softmax="float32")
    seen: dict[str, torch.dtype] = {}
    model.blocks[0].attention.qkv.register_forward_hook(lambda m, i, o: seen.update(qkv=o.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens(2, 16), tokens(2, 16))
    loss.backward()  # type: ignore[no-untyped-call]
    assert seen == {"qkv": torch.bfloat16}
    assert loss.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters() if p.grad is not None}
    assert {p.dtype for p in model.parameters()} == {torch.float32}

    n = 2048
    q = torch.zeros(1, 1, n, 2, dtype=torch.bfloat16)
    ones = torch.ones(1, 1, n, 2, dtype=torch.bfloat16)
    mixed = attend(q, q, ones, bias=None, scaling="product", softmax="float32", mask=None)
    assert (mixed - 1).abs().max() <= 1 / 128


def test_the_slopes_of_alibi_are_those_of_its_paper() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(12)[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_padded_vocabulary_changes_nothing(settings: Build) -> None:
    x, y = tokens(2, 16), tokens(2, 16).roll(1, 1)
    plain, padded = model_of(settings), model_of(settings, vocab_multiple=64)
    assert padded.token_embedding.weight.shape[0] == 64
    assert padded(x).shape[-1] == 29
    a, b = plain.loss(x, y), padded.loss(x, y)
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    b.backward()  # type: ignore[no-untyped-call]
    grad = padded.token_embedding.weight.grad
    assert grad is not None and not grad[29:].any() and grad[:29].any()


def head(rows: int = 50, width: int = 29, ids: int = 20, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Return features [rows, 8], weights of a head [width, 8], and targets [rows] below ``ids``."""
    stream = Stream("eval", 1)
    made = (torch.from_numpy(stream.at(name).normal(n * 8).reshape(n, 8)) for name, n in (("x", rows), ("w", width)))
    x, w = (tensor.to(dtype).requires_grad_() for tensor in made)
    return x, w, torch.from_numpy(stream.at("y").integers(rows, ids))


@pytest.mark.parametrize("vocab_size", [29, 20])
def test_chunked_head_equals_the_plain_one(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    grads = []
    for elements in (2**24, 29 * 7):
        monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", elements)
        x, w, y = head(ids=vocab_size)
        loss = parts.mean_loss(x, w, y, vocab_size)
        (3 * loss).backward()
        losses, hits = parts.score(x, w, y, vocab_size)
        assert losses.mean().item() == pytest.approx(loss.item(), rel=1e-12)
        assert hits.dtype == torch.bool
        grads.append((loss.detach(), x.grad, w.grad))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("elements", [2**24, 29 * 7], ids=["whole", "in chunks"])
def test_z_loss_is_in_the_gradient_and_not_in_the_value(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", elements)
    x, w, y = head()
    loss = parts.mean_loss(x, w, y, 20, z_loss=0.3)
    logits = (x @ w.T)[:, :20]
    plain = torch.nn.functional.cross_entropy(logits, y)
    expected = torch.autograd.grad(plain + 0.3 * logits.exp().sum(1).log().square().mean(), [x, w])
    assert loss.item() == pytest.approx(plain.item(), rel=1e-12)
    for a, b in zip(torch.autograd.grad(loss, [x, w]), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_chunked_head_keeps_small_gradients_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probability of 1 / 4096 over 2048 rows is below what fp16 holds; the loss scale comes later."""
    monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", 4096 * 512)
    for some in (False, True):
        grads = []
        for half in (False, True):
            x, w, y = head(2048, 4096, dtype=torch.float32)
            w.data /= 8
            with torch.autocast("cpu", torch.float16, enabled=half):
                loss = parts.mean_loss(x, w, y, 4096, scored=y != 0 if some else None)
            (2.0**16 * loss).backward()  # type: ignore[no-untyped-call]
            assert x.grad is not None and w.grad is not None
            grads.append((x.grad, w.grad[20:], w.grad[:20]))
        for a, b in zip(*grads, strict=True):
            assert float((a - b).norm() / a.norm()) < 2e-3


def test_as_many_key_heads_as_heads_is_the_same_run(settings: Build) -> None:
    plain, same, grouped = (settings(model__kv_heads=n) for n in (None, 3, 1))
    assert identify(plain) == identify(same) != identify(grouped)
    assert identify(settings()) == identify(settings(model__z_loss=0.0)) != identify(settings(model__z_loss=1e-4))


def test_every_group_of_queries_reads_its_own_keys(settings: Build) -> None:
    grouped = model_of(settings, d_model=24, heads=6, kv_heads=2)
    plain = model_of(settings, d_model=24, heads=6)
    weights = dict(grouped.named_parameters())
    with torch.no_grad():
        for name, p in plain.named_parameters():
            if ".qkv." in name:
                q, k, v = weights[name].split([24, 8, 8])
                k, v = (part.unflatten(0, (2, 4)).repeat_interleave(3, dim=0).flatten(0, 1) for part in (k, v))
                p.copy_(torch.cat([q, k, v]))
            else:
                p.copy_(weights[name])
        x = tokens(2, 16)
        torch.testing.assert_close(plain(x), grouped(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_reads_shared_keys_without_copies(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    stream, heads = Stream("eval", 4), []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(q: torch.Tensor, k: torch.Tensor, *rest: Any, **how: Any) -> torch.Tensor:
        heads.append(k.shape[1])
        return kernel(q, k, *rest, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    q, k, v = (
        torch.from_numpy(stream.at(name).normal(2 * h * 16 * 8).reshape(2, h, 16, 8)).requires_grad_()
        for name, h in (("q", 6), ("k", 2), ("v", 2))
    )
    made = []
    for copies in (1, 3):
        keys, values = (x.repeat_interleave(copies, dim=1) for x in (k, v))
        allowed = alibi(0, 16, 6, torch.device("cpu")).double() if bias else None
        y = attend(q, keys, values, bias=allowed, scaling="product", softmax="fused", mask=None)
        made.append([y, *torch.autograd.grad(y.square().sum(), (q, k, v))])
    assert heads == [2, 6]
    for ours, theirs in zip(*made, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_swiglu_is_its_formula(settings: Build) -> None:
    """Shazeer 2020: (silu(x W) * x V) W2; without a width of its own it has as many weights as GPT-2's MLP."""
    mlp = model_of(settings, activation="swiglu", bias=False).blocks[0].mlp
    x = torch.from_numpy(Stream("eval", 1).at("x").normal(5 * 24).reshape(5, 24))
    gated = x @ mlp.gate.weight.T
    expected = (gated * torch.sigmoid(gated) * (x @ mlp.up.weight.T)) @ mlp.down.weight.T
    torch.testing.assert_close(mlp(x), expected, rtol=1e-10, atol=1e-12)
    assert sum(p.numel() for p in mlp.parameters()) == 8 * 24**2


@pytest.mark.parametrize("rows", [7, 50])
def test_the_head_through_onednn_equals_the_plain_one(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", 29 * rows)
    found = []
    for path, dtype in (("plain", torch.float64), ("onednn", torch.float32)):
        x, w, y = head(dtype=dtype)
        loss = parts.mean_loss(x, w, y, 20, path)
        loss.backward()  # type: ignore[no-untyped-call]
        losses, _ = parts.score(x, w, y, 20, path)
        found.append([t.double() for t in (loss.detach(), x.grad, w.grad, losses.detach()) if t is not None])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_layer_seeds_move_only_their_layer(settings: Build) -> None:
    plain = dict(model_of(settings).named_parameters())
    config = settings(seeds__layers={"blocks.1": 7, "blocks.1.mlp.up.weight": 8})
    other = dict(build_model(config, vocab_size=29, device=CPU, dtype=torch.float64).named_parameters())
    changed = {name for name in plain if not torch.equal(plain[name], other[name])}
    assert changed == {f"blocks.1.{n}.weight" for n in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")}
    again = settings(seeds__layers={"blocks.1": 7})
    third = dict(build_model(again, vocab_size=29, device=CPU, dtype=torch.float64).named_parameters())
    assert {n for n in other if not torch.equal(third[n], other[n])} == {"blocks.1.mlp.up.weight"}


@pytest.mark.parametrize(("init", "std"), [("0.02", 0.02), ("0.006", 0.006), ("0.004", 0.004), ("small", None)])
def test_initial_deviations(settings: Build, init: str, std: float | None) -> None:
    model = model_of(settings, init=init, d_model=96, layers=8)
    expected = std or math.sqrt(2 / (5 * 96))
    assert model.blocks[0].mlp.up.weight.detach().std().item() == pytest.approx(expected, rel=0.05)
    assert model.blocks[0].mlp.down.weight.detach().std().item() == pytest.approx(expected / 4, rel=0.05)
    assert not model.blocks[0].mlp.up.bias.any()
