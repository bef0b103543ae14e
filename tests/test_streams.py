"""Streams are their own; precision of products is what is said, and as before afterwards."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grok.arithmetic.gpu.engine import Stack
from grok.gpt.training.numerics import Numerics
from grok.numerics import OneGraph, choose_path, linear_onednn, product_precision, product_tag
from grok.streams import MAX_SEED, STREAMS, Stream, StreamSeeds, derive_seed
from tests.arithmetic.cases import jobs, tiny

seeds = st.integers(0, MAX_SEED)
names = st.lists(st.one_of(st.text(max_size=8), st.integers(0, 99)), max_size=3)


@given(seeds, names, names)
def test_different_addresses_give_different_draws(seed: int, one: list[str | int], other: list[str | int]) -> None:
    a, b = Stream("init", seed).at(*one), Stream("init", seed).at(*other)
    same = [(type(x), x) for x in one] == [(type(x), x) for x in other]
    assert (a.key() == b.key()) == same
    assert np.array_equal(a.words(4), b.words(4)) == same


@given(seeds, st.integers(0, 200))
def test_a_permutation_is_one(seed: int, n: int) -> None:
    assert sorted(Stream("order", seed).permutation(n)) == list(range(n))


@given(seeds, st.sampled_from(STREAMS), seeds)
def test_overriding_one_stream_moves_no_other(seed: int, name: str, value: int) -> None:
    derived = StreamSeeds.derive(seed)
    overridden = StreamSeeds.derive(seed, {name: value})
    for stream in STREAMS:
        assert getattr(overridden, stream) == (value if stream == name else getattr(derived, stream))


def test_derived_seeds_are_distinct_and_in_range() -> None:
    derived = [derive_seed(seed, stream) for seed in range(2000) for stream in STREAMS]
    assert len(set(derived)) == len(derived)
    assert all(0 <= s <= MAX_SEED for s in derived)


def test_distributions() -> None:
    n = 200_000
    uniform, normal = Stream("eval", 1).uniform(n), Stream("eval", 2).normal(n)
    assert uniform.min() > 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 / np.sqrt(12 * n)
    assert abs(normal.mean()) < 5 / np.sqrt(n)
    assert abs(normal.std() - 1) < 5 / np.sqrt(2 * n)
    counts = np.bincount(Stream("eval", 3).integers(n, 7), minlength=7)
    assert abs(counts - n / 7).max() < 5 * np.sqrt(n / 7)


GOLDEN = {  # the bits of every stored run hang on these
    "Stream('order', 5).at(3, 'x').words(1)[0]": "12373903694235722039",
    "Stream('order', 5).permutation(8)": "[5 7 4 3 2 6 0 1]",
    "derive_seed(7, 'init')": "988714901305800521",
}


def test_draws_never_change_in_a_fresh_process() -> None:
    code = f"from grok.streams import Stream, derive_seed; print({', '.join(GOLDEN)}, sep=chr(10))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == list(GOLDEN.values())


@pytest.mark.parametrize(("precision", "inside"), [("float32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")])
@pytest.mark.parametrize("said", ["none", "tf32", "ieee"])
def test_the_precision_of_products_is_set_inside_and_restored(precision: str, inside: str, said: str) -> None:
    products, on_cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = (products.fp32_precision, on_cpu.fp32_precision)
    try:
        products.fp32_precision = said
        with pytest.raises(KeyError), product_precision(precision):
            assert products.fp32_precision == inside
            # both of torch's ways agree, so that whatever asks in either gets an answer
            assert products.allow_tf32 == (inside == "tf32")
            assert torch.compile(torch.neg, backend="eager")(torch.ones(2)).tolist() == [-1, -1]
            raise KeyError
        assert (products.fp32_precision, on_cpu.fp32_precision) == (said, before[1])
    finally:
        products.fp32_precision = before[0]


def test_a_language_model_says_tf32_in_both_words() -> None:
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    with Numerics(torch.device("cpu"), "tf32", 1, compile=False, auto_fallback=False, micro_batch=1).active():
        assert products.fp32_precision == "tf32" and products.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
    assert products.fp32_precision == before


def test_training_leaves_the_precision_alone_while_its_events_are_looked_at() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    stack = Stack(jobs(tiny(precision="tf32")), lanes=2, device=torch.device("cpu"))
    for _ in stack.train(lambda: False):
        assert torch.backends.cuda.matmul.fp32_precision == before
    assert "precision=tf32" in stack.tag()


needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
SIZES = st.integers(1, 40)


def normal(name: str, *shape: int) -> Tensor:
    count = int(torch.Size(shape).numel())
    return torch.from_numpy(Stream("test", 0).at(name).normal(count)).reshape(shape).float()


def loss_and_gradients(x: Tensor, weight: Tensor, bias: Tensor, *, onednn: bool) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    y = linear_onednn(*leaves) if onednn else torch.nn.functional.linear(*leaves)
    return [y.detach(), *torch.autograd.grad((y * y).sum(), leaves)]


@needs_onednn
@settings(max_examples=60, deadline=None)
@given(rows=SIZES, width=SIZES, features=SIZES)
def test_products_and_gradients_are_those_of_float64(rows: int, width: int, features: int) -> None:
    tensors = normal("x", rows, width), normal("w", features, width), normal("b", features)
    expected = loss_and_gradients(*(t.double() for t in tensors), onednn=False)
    for found, right in zip(loss_and_gradients(*tensors, onednn=True), expected, strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize(("width", "features"), [(24, 40), pytest.param(40, 24, marks=pytest.mark.slow)])
def test_compiled_they_are_the_same(width: int, features: int) -> None:
    tensors = normal("x", 50, width), normal("w", features, width), normal("b", features)
    graph = OneGraph(lambda x, weight, bias: loss_and_gradients(x, weight, bias, onednn=True))
    for found, right in zip(graph(*tensors), loss_and_gradients(*tensors, onednn=True), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_a_bias_may_be_missing() -> None:
    x, weight = normal("x", 7, 5).requires_grad_(), normal("w", 3, 5).requires_grad_()
    linear_onednn(x, weight, None).sum().backward()
    assert x.grad is not None and weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.ones(7, 3).t() @ x.detach())


def test_a_path_whose_bits_changed_has_another_name_in_the_tag() -> None:
    assert [product_tag(path) for path in ("plain", "onednn")] == ["plain", "onednn-narrow"]
    assert choose_path("onednn", "float64") == "plain"
