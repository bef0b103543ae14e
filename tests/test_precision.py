"""Torch's two words for TF32 agree while a run trains, and are as before after it."""

from __future__ import annotations

import pytest
import torch

from grok.arithmetic.gpu.engine import Stack
from grok.gpt.training.numerics import Numerics
from grok.numerics import product_precision
from tests.arithmetic.cases import jobs, tiny


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
