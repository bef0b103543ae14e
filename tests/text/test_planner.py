"""The planner's counts are the model's own, its memory what a backward pass keeps, its corrections recomputed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grok import plan as door
from grok.config.gpt import GptConfig, ModelConfig, TrainConfig
from grok.errors import ConfigError
from grok.gpt.initial import build_model
from grok.gpt.model import parameter_count
from grok.gpt.planning import planner, published

models = st.builds(
    ModelConfig,
    layers=st.integers(1, 3),
    d_model=st.sampled_from([8, 12, 32]),
    heads=st.sampled_from([1, 2]),
    d_ff=st.none() | st.integers(1, 50),
    context=st.integers(1, 40),
    vocab_multiple=st.sampled_from([1, 64]),
    norm=st.sampled_from(["pre", "post"]),
    norm_type=st.sampled_from(["layernorm", "rmsnorm"]),
    positions=st.sampled_from(["learned", "rotary", "alibi"]),
    bias=st.booleans(),
    tied=st.booleans(),
    qk_norm=st.booleans(),
    activation=st.sampled_from(["gelu", "swiglu"]),
    kv_heads=st.sampled_from([None, 1]),
)


@settings(max_examples=200, deadline=None)
@given(models, st.integers(2, 300))
def test_parameters_are_counted_as_the_model_counts_them(model: ModelConfig, vocab_size: int) -> None:
    assert planner.count_parameters(model, vocab_size).total == parameter_count(model, vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("layers", "d_model", "heads", "vocab_size", "context", "parameters"),
    [
        (12, 768, 12, 50_257, 1024, 124_439_808),
        (24, 1024, 16, 50_257, 1024, 354_823_168),
        (36, 1280, 20, 50_257, 1024, 774_030_080),
        (48, 1600, 25, 50_257, 1024, 1_557_611_200),
    ],
)
def test_the_formula_is_gpt2(
    layers: int, d_model: int, heads: int, vocab_size: int, context: int, parameters: int
) -> None:
    """The formula, for the sizes of the published weights."""
    assert planner.gpt2_parameters(layers, d_model, vocab_size, context) == parameters
    model = ModelConfig(layers=layers, d_model=d_model, heads=heads, context=context)
    assert planner.count_parameters(model, vocab_size).total == parameters


@torch.no_grad()
def test_flops_are_those_of_the_matrix_products() -> None:
    """Forward FLOPs as torch's own counter sees them; training is three times that."""
    from torch.utils.flop_counter import FlopCounterMode

    for model in (
        ModelConfig(layers=2, d_model=32, heads=2, context=48, softmax="float32", bias=False),
        ModelConfig(layers=3, d_model=24, heads=2, context=16, softmax="float32", bias=False, tied=False, d_ff=50),
    ):
        config = GptConfig(mode="gpt", experiment="gpt/shakespeare_char", model=model)
        built = build_model(config, vocab_size=70, device=torch.device("cpu"), dtype=torch.float32)
        with FlopCounterMode(display=False) as counter:
            built(torch.zeros(3, model.context, dtype=torch.long))
        expected = planner.train_flops_per_token(model, planner.count_parameters(model, 70)) / 3 * 3 * model.context
        norms = 0.01  # they multiply element by element, which is no matrix product
        assert counter.get_total_flops() == pytest.approx(expected, rel=norms)


def test_a_plan_adds_up() -> None:
    config = GptConfig(
        mode="gpt",
        experiment="gpt/gpt2_117m",
        precision="bf16",
        train=TrainConfig(steps=1000, batch_size=512, micro_batch=16),
    )
    one = planner.plan(config, 50_257, device="A100", mfu=0.4, corpus_tokens=10**8)
    assert one.tokens == 1000 * 512 * 1024 and one.epochs == pytest.approx(5.24288)
    assert one.six_n == 6 * 124_439_808 * one.tokens
    assert one.flops == pytest.approx(one.tokens * (6 * (124_439_808 - 1024 * 768) + 12 * 12 * 1024 * 768))
    assert one.seconds == pytest.approx(one.flops / (0.4 * 312e12))
    assert one.chinchilla_tokens == 20 * 124_439_808
    eight = planner.plan(config, 50_257, device="A100", devices=8, mfu=0.4)
    assert eight.seconds * 8 == pytest.approx(one.seconds) and eight.device_hours == pytest.approx(one.device_hours)
    assert eight.epochs is None
    with pytest.raises(ConfigError, match="expected"):
        planner.plan(config, 50_257, device="A1000")


def test_the_diarys_corrections() -> None:
    """Which figures differ, and the computed values."""
    found = {(f.about, f.says): f for f in published.figures()}
    differs = {key for key, f in found.items() if not f.agrees}
    for about, says, value in (
        ("job that was killed", "335hr = 14.6 days", 13.96),
        ("GPT-2 small", "heads=16", 12),
        ("learning rate", "1.5x10e-4", 1.5e-4),
        ("WikiText-103 model", "315M", 353_551_360),
        ('"1B" model', "1B param model", 1_160_745_600),
        ('step of the "1B" model', "~150TF", 114.1e12),
        ("factor of training", "factor seems to be 9", 6),
        ("factor of the forward pass", "Forward pass factor is 6", 2),
        ("Chinchilla tokens of that model", "3.3B tokens suggested by Chinchilla", 7.07e9),
        ("XL large, batch on 8 x V100/16GB", "8*4=32 global instead of 256", 32),
        ("OpenWebText run, tokens", "30.7B tokens for training", 245.8e9),
    ):
        assert (about, says) in differs
        assert found[about, says].computed == pytest.approx(value, rel=1e-3)
    agrees = {key for key, f in found.items() if f.agrees}
    assert ("WikiText-103 model", "Model (353M)") in agrees
    assert ("compute of 117M on 3.3B tokens", "flops is 2.4E+18") in agrees
    assert ("tokens of the WikiText-103 run", "2.1B tokens") in agrees
    chronicles = {f.says: f for f in published.chronicles()}
    assert {says for says, f in chronicles.items() if not f.agrees} == {"1B tokens, 500M samples"}
    assert chronicles["1B tokens, 500M samples"].computed == pytest.approx(488e3, rel=1e-3)
    assert {f.says for f in published.training_log() if not f.agrees} == {"over 5 epochs"}
    assert pytest.approx(147e12, rel=0.01) == 9 * 1e9 * 16 * 1024  # how the diary came to its 147
    assert pytest.approx(152e12, rel=0.01) == 8 * 1_160_745_600 * 16 * 1024


def test_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["experiment=gpt/gpt2_117m", "--price", "2", "--device", "H200", "--devices", "8"]) == 0
    page = capsys.readouterr().out
    for part in (
        "(the preset: 124,439,808 at 50,257 ids)",
        "(exact)",
        "2.49e+09",
        "8 x H200",
        "262,144,000,000",
    ):
        assert part in page, part
    assert door.main(["--diary"]) == 0
    assert "335hr = 14.6 days" in capsys.readouterr().out
    for argv, message in (
        (["experiment=gpt/gpt2_117b"], "did you mean 'gpt/gpt2_117m'"),
        (["experiment=gpt/gpt2_117m", "model.hedas=2"], "did you mean 'model.heads'"),
        (["experiment=gpt/gpt2_117m", "model.heads=5"], "does not divide"),
        (["experiment=gpt/gpt2_117m", "--device", "Z80"], "--device Z80 is not known"),
        (["experiment=gpt/gpt2_117m", "data.path=nowhere"], "no prepared corpus"),
        ([], "starts from a preset"),
        (["gpt2_117m"], "'gpt2_117m' is no setting"),
        (["experiment=quickstart"], "task belongs to mode=arithmetic"),
        (["experiment=gpt/gpt2_117m", "task.modulus=7"], "a setting of mode=arithmetic"),
        (["experiment=gpt/gpt2_117m", "--price", "-1"], "--price -1: expected a number"),
        (["experiment=gpt/gpt2_117m", "--vocab-size", "0"], "--vocab-size 0"),
        (["experiment=gpt/gpt2_117m", "--mfu", "1.5"], "--mfu 1.5: expected a number, above 0 and at most 1"),
        (["experiment=gpt/gpt2_117m", "train.tokens=1e30"], "train.tokens=1e+30 is out of range"),
        (["experiment=gpt/gpt2_117m", "train.epochs=2"], "train.epochs=2 is a length in passes over the data"),
    ):
        assert door.main(argv) == 2, argv
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
