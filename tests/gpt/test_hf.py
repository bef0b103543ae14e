"""Hugging Face's GPT-2 and ours give the same logits, whoever's the weights are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grok import evaluate
from grok.config.gpt import GptConfig
from grok.gpt.hf import load_hf_folder, save_hf_folder
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.hf import main as hf_door
from grok.streams import Stream
from grok.text.corpus import Corpus

os.environ["HF_HUB_OFFLINE"] = "1"
Build = Callable[..., GptConfig]
V = 50


@pytest.fixture
def model(settings: Build) -> GPT:
    """Small, with every tensor random, biases and norms too."""
    config = settings(model__vocab_multiple=16)
    model = build_model(config, vocab_size=V, device=torch.device("cpu"), dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.from_numpy(Stream("eval", 5).at(name).normal(p.numel())).reshape(p.shape)
            p.add_(0.2 * noise.float())
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.from_numpy(Stream("eval", 6).integers(3 * 16, V).reshape(3, 16))


def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the extra `hf` is not installed")


def test_their_model_reads_ours(model: GPT, tokens: torch.Tensor, tmp_path: Path) -> None:
    library = transformers()
    save_hf_folder(tmp_path, model)
    theirs = library.GPT2LMHeadModel.from_pretrained(str(tmp_path)).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), rtol=0, atol=1e-4)
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in model.parameters()) - 14 * 24


def test_our_model_reads_theirs(tokens: torch.Tensor, tmp_path: Path) -> None:
    library = transformers()
    config = library.GPT2Config(vocab_size=V, n_positions=32, n_embd=48, n_layer=3, n_head=4)
    with torch.random.fork_rng():
        theirs = library.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(str(tmp_path))
    ours = load_hf_folder(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=0, atol=1e-4)


def test_there_and_back(model: GPT, tmp_path: Path) -> None:
    save_hf_folder(tmp_path, model)
    again = load_hf_folder(tmp_path)
    for name, p in again.named_parameters():
        assert torch.equal(p, dict(model.named_parameters())[name][: len(p)])


def test_doors_carry_weights_both_ways(
    model: GPT, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is imported is a run that `evaluate` and `generate` find, and exports to the same weights."""
    save_hf_folder(tmp_path / "in", model)
    store = str(tmp_path / "store")
    assert hf_door(["import", str(tmp_path / "in"), "--data", str(corpus.path), "--store", store]) == 0
    run_id = capsys.readouterr().out.split()[1]
    assert evaluate.main([run_id[:6], "--store", store, "--data", str(corpus.path), "--limit", "100"]) == 0
    assert hf_door(["export", run_id[:6], "--store", store, "--out", str(tmp_path / "out")]) == 0
    again = load_hf_folder(tmp_path / "out")
    assert all(
        torch.equal(p, q) for p, q in zip(again.parameters(), load_hf_folder(tmp_path / "in").parameters(), strict=True)
    )
    assert hf_door(["import", str(tmp_path / "none"), "--data", str(corpus.path), "--store", store]) == 2
    assert capsys.readouterr().err.startswith("error: ")
