"""Every preset holds the values of the public document that it is named after; what departs from one says why."""

import functools
from typing import Any, Final

import pytest

from grok.commands.compose import gpt_settings
from grok.commands.words import presets
from grok.config import flatten
from grok.config.gpt import GptConfig
from grok.gpt.model import parameter_count

MEGATRON_GPT2: Final = {
    "model.context": 1024, "train.batch_size": 512, "optim.lr": 1.5e-4, "optim.schedule": "cosine",
    "optim.decay_steps": 320_000, "optim.weight_decay": 1e-2, "optim.clip": 1.0, "train.steps": 500_000,
    "optim.warmup_steps": 5_000, "target.vocab_size": 50_257,
}  # fmt: skip
TRANSFORMER_XL: Final = {"optim.schedule": "cosine", "optim.lr": 1e-3}  # a tenth of the source's 1e-2, which is LAMB's
NANOGPT_CHAR: Final = {"model.bias": False, "optim.lr": 1e-3, "optim.betas": "[0.9,0.99]", "optim.warmup_steps": 100}
TINYSTORIES: Final = {"model.heads": 16, "model.context": 512, "train.batch_size": 80, "optim.lr": 5e-4}

SOURCES: Final[dict[str, dict[str, Any]]] = {
    # the seed diary's list of reference runs; its "heads=16" of the smaller model cannot be: 768 / 16 is no width of 64
    "gpt2_117m": MEGATRON_GPT2 | {"model.layers": 12, "model.d_model": 768, "model.heads": 12},
    "gpt2_345m": MEGATRON_GPT2 | {"model.layers": 24, "model.d_model": 1024, "model.heads": 16},
    "wikitext103_353m": {
        "model.layers": 24, "model.heads": 16, "model.d_model": 1024, "model.context": 1024, "model.bias": False,
        "model.vocab_multiple": 64, "target.vocab_size": 50_257, "model.dropout": 0.0, "train.batch_size": 512,
    },
    "transformer_xl_base": TRANSFORMER_XL | {
        "model.d_model": 512, "model.heads": 8, "model.d_ff": 2048, "model.context": 192, "model.dropout": 0.1,
        "optim.min_lr": 0.1, "train.steps": 40_000, "optim.warmup_steps": 1_000, "train.batch_size": 256,
    },
    "transformer_xl_large": TRANSFORMER_XL | {
        "model.d_model": 1024, "model.heads": 16, "model.d_ff": 4096, "model.context": 384, "model.dropout": 0.3,
        "optim.min_lr": 0.01, "train.steps": 100_000, "optim.warmup_steps": 16_000, "train.batch_size": 128,
    },
    # the Shakespeare journal's table; "gpt3-small" is named there without one
    "gpt_mini_v0": {
        "train.batch_size": 128, "model.context": 256, "optim.lr": 1e-3, "model.d_model": 512, "train.steps": 7_841,
        "model.heads": 8, "model.layers": 10, "optim.schedule": "constant", "model.dropout": 0.2,
        "target.vocab_size": 75, "data.sampling": "random",
    },
    "gpt3_small_char": {
        "model.layers": 12, "model.d_model": 768, "model.heads": 12, "model.context": 2048, "optim.lr": 6e-4,
        "optim.schedule": "one_cycle",
    },
    # the 580M log's tables
    "gpt_580m": {
        "model.layers": 18, "model.d_model": 1536, "model.d_ff": 6144, "model.heads": 12, "model.vocab_multiple": 64,
        "target.vocab_size": 50_257, "model.positions": "alibi", "model.context": 1024, "train.steps": 97_000,
        "train.batch_size": 512, "optim.lr": 2.5e-4, "optim.warmup_steps": 2_000, "model.dropout_residual": 0.1,
        "model.dropout_attention": 0.1, "model.dropout_embedding": 0.0, "precision": "bf16", "optim.weight_decay": 0.1,
        "optim.schedule": "cosine", "optim.min_lr": 0.1, "model.softmax": "float32",
    },
    # Brown et al. 2020, tables 2.1 and appendix B
    "gpt3_small": {
        "model.layers": 12, "model.d_model": 768, "model.heads": 12, "model.context": 2048, "train.batch_size": 256,
        "optim.lr": 6e-4, "optim.betas": "[0.9,0.95]", "optim.eps": 1e-8, "optim.clip": 1.0, "optim.weight_decay": 0.1,
        "optim.min_lr": 0.1, "optim.schedule": "cosine", "target.vocab_size": 50_257,
    },
    # nanoGPT's README and config/train_shakespeare_char.py
    "shakespeare_char": NANOGPT_CHAR | {
        "model.layers": 4, "model.heads": 4, "model.d_model": 128, "model.context": 64, "train.batch_size": 12,
        "train.steps": 2_000, "model.dropout": 0.0,
    },
    "shakespeare_char_gpu": NANOGPT_CHAR | {
        "model.layers": 6, "model.heads": 6, "model.d_model": 384, "model.context": 256, "train.batch_size": 64,
        "train.steps": 5_000, "model.dropout": 0.2,
    },
    # Eldan and Li 2023: layers and widths
    "tinystories_1m": TINYSTORIES | {"model.layers": 8, "model.d_model": 64},
    "tinystories_3m": TINYSTORIES | {"model.layers": 8, "model.d_model": 128},
    "tinystories_8m": TINYSTORIES | {"model.layers": 8, "model.d_model": 256},
    "tinystories_28m": TINYSTORIES | {"model.layers": 8, "model.d_model": 512},
    "tinystories_33m": TINYSTORIES | {"model.layers": 4, "model.d_model": 768},
}  # fmt: skip
OWN: Final = {"tinystories_sample", "wikitext_sample"}
"""Presets of this project, after no document."""


@functools.cache
def preset(name: str) -> GptConfig:
    return gpt_settings(["mode=gpt", f"experiment=gpt/{name}"])


def test_every_preset_has_a_source() -> None:
    assert set(SOURCES) | OWN == set(presets())


@pytest.mark.parametrize("name", SOURCES)
def test_a_preset_holds_every_value_of_its_source(name: str) -> None:
    have = flatten(preset(name))
    assert {key: have[key] for key in SOURCES[name]} == SOURCES[name]


@pytest.mark.parametrize("name", presets())
def test_preset_has_its_own_count(name: str) -> None:
    config = preset(name)
    assert config.experiment == f"gpt/{name}"
    assert config.target.params is not None and config.target.vocab_size is not None
    assert parameter_count(config.model, vocab_size=config.target.vocab_size) == config.target.params


@pytest.mark.parametrize(
    ("name", "published", "vocab_size"),
    [
        ("gpt2_117m", 124_439_808, 50257),
        ("gpt2_345m", 354_823_168, 50257),
        ("wikitext103_353m", 354_600_000, 50304),
        ("shakespeare_char_gpu", 10_745_088, 65),
        ("tinystories_1m", 1_070_000, 10_000),
        ("tinystories_28m", 30_600_000, 10_000),
        ("gpt_580m", 587_000_000, 50304),
    ],
)
def test_counts_agree_with_the_sources(name: str, published: int, vocab_size: int) -> None:
    assert parameter_count(preset(name).model, vocab_size=vocab_size) == pytest.approx(published, rel=3e-3)
