"""Every preset's model, with its tokeniser, is read by ``transformers`` and gives the same logits and the same ids."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grok.commands.compose import gpt_settings
from grok.commands.words import presets
from grok.config.gpt import GptConfig
from grok.gpt.hf import save_hf_folder
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.streams import Stream
from grok.text.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    gpt2_tokenizer,
    tokenizer_files,
    train_bpe,
)

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
transformers.utils.logging.disable_progress_bar()
Build = Callable[..., GptConfig]

TEXT = "The cat's 1,000 naïve 猫 said «miaou» 🐈‍⬛👩🏽‍🚀\r\nTabs\tand  spaces \r\n\r\n\x00NUL\x00 日本語。 end \n"
SMALL = ["model.layers=3", "model.d_model=48", "model.heads=6", "model.d_ff=192", "model.context=32"]


LLAMA = {"model__positions": "rotary", "model__norm_type": "rmsnorm", "model__activation": "swiglu"}


def random_model(config: GptConfig, vocab_size: int) -> GPT:
    """Return a model with every tensor random, biases and norms too."""
    model = build_model(config, vocab_size=vocab_size, device=torch.device("cpu"), dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.from_numpy(Stream("eval", 5).at(name).normal(p.numel())).reshape(p.shape)
            p.add_(0.2 * noise.float())
    return model.eval()


def logits_of_theirs(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(str(folder), trust_remote_code=True).eval()
    with torch.no_grad():
        logits: torch.Tensor = theirs(tokens).logits
    return logits


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a folder brings is copied to a cache: not to the user's."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.mark.parametrize("preset", presets())
def test_a_presets_model_gives_the_same_logits(preset: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = gpt_settings(["mode=gpt", f"experiment=gpt/{preset}", *SMALL])
    model = random_model(config, vocab_size=61)
    save_hf_folder(tmp_path / "out", model)
    tokens = torch.from_numpy(Stream("eval", 6).integers(2 * 32, 61).reshape(2, 32))
    with torch.no_grad():
        ours = model(tokens)
    torch.testing.assert_close(logits_of_theirs(tmp_path / "out", tokens), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"model__positions": "rotary", "model__bias": False, "model__tied": False, "model__activation": "gelu"},
        {"model__positions": "alibi", "model__bias": False, "model__activation": "gelu", "model__norm_eps": 1e-3},
        {"model__positions": "learned", "model__tied": False, "model__norm_eps": 1e-3, "model__activation": "relu"},
        LLAMA | {"model__bias": False, "model__norm_eps": 1e-3},
        LLAMA | {"model__kv_heads": 1, "model__tied": False, "model__d_ff": 40},
    ],
    ids=["rotary", "alibi", "learned", "llama", "llama with grouped queries"],
)
def test_other_options_give_the_same_logits(changes: dict[str, Any], settings: Build, tmp_path: Path) -> None:
    model = random_model(settings(**changes, model__vocab_multiple=16), vocab_size=50)
    save_hf_folder(tmp_path / "out", model)
    tokens = torch.from_numpy(Stream("eval", 6).integers(2 * 16, 50).reshape(2, 16))
    with torch.no_grad():
        torch.testing.assert_close(logits_of_theirs(tmp_path / "out", tokens), model(tokens), rtol=0, atol=1e-5)


def tokenizers(samples: Callable[[str], Path]) -> dict[str, Tokenizer]:
    return {
        "char": CharTokenizer(TEXT),
        "char with ends": CharTokenizer(TEXT, end_of_text=True),
        "byte": ByteTokenizer(),
        "bpe": train_bpe([TEXT * 3], 300),
        "gpt2": gpt2_tokenizer(samples("gpt2")),
    }


@pytest.mark.parametrize("kind", ["char", "char with ends", "byte", "bpe", "gpt2"])
def test_a_tokeniser_gives_the_same_ids(kind: str, samples: Callable[[str], Path], tmp_path: Path) -> None:
    ours = tokenizers(samples)[kind]
    for name, text in tokenizer_files(ours, context=32).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [TEXT, TEXT[:17], "\n", "\r\n"] + ([f"{TEXT}<|endoftext|>{TEXT}"] if ours.eot_id is not None else [])
    for text in texts:
        ids = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids) == ours.decode(ids) == text
    assert theirs.eos_token_id == ours.eot_id
    assert len(theirs) == ours.vocab_size
