"""The GPT benchmark compares like with like: the same model, and a page for each kind of device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import gpt
from benchmarks.plain_gpt import SHAPES, PlainGPT, PlainLoop
from grok.gpt.model import parameter_count
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare


@pytest.fixture(scope="module")
def fables(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("60:0",), out=out, tokenizer="char"))[0]


@pytest.mark.parametrize("name", SHAPES)
def test_both_loops_train_the_same_model(name: str, fables: Corpus) -> None:
    shape = SHAPES[name]
    with torch.device("meta"):
        plain = PlainGPT(shape, 50_257, torch.Generator())
    config = gpt.our_config(shape, fables, 1, 20, "float32", False)
    ours = parameter_count(config.model, vocab_size=50_257)
    assert sum(p.numel() for p in plain.parameters()) == ours
    if name == "gpt2":
        assert ours == 124_439_808 - (12 * (3 + 1 + 4 + 1 + 2) + 1) * 768  # GPT-2 without its biases


@pytest.mark.parametrize("precision", ["bf16", pytest.param("float32", marks=pytest.mark.slow)])
def test_both_loops_learn_alike(fables: Corpus, precision: str) -> None:
    shape = replace(SHAPES["gpt2"], layers=2, heads=2, width=32, tokens=24, batch=4, lr=1e-2, warmup=5)
    plain = PlainLoop(shape, fables, "cpu", 60, precision, compiled=False)
    ours = gpt.OurLoop(shape, fables, "cpu", 1, 60, precision, compiled=False)
    losses = []
    for loop in (plain, ours):
        before = gpt.validation_loss(loop.model, fables, shape, "cpu")
        for _ in range(60):
            loop.step()
        losses.append(gpt.validation_loss(loop.model, fables, shape, "cpu"))
        assert losses[-1] < before - 0.5
    assert losses[0] == pytest.approx(losses[1], abs=0.2)
