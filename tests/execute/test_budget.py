"""A length in epochs or tokens is a number of steps, and names the run that those steps name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grok import plan
from grok.commands.compose import gpt_settings
from grok.commands.words import presets
from grok.config import GptConfig
from grok.execute.groups import prepare_runs
from grok.gpt.initial import build_model
from grok.gpt.log import Log
from grok.gpt.training.optimizer import batch_ramp
from grok.gpt.training.schedules import Ramp
from grok.text.corpus import Corpus, open_corpus
from grok.text.preparation import Request, prepare


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("data") / "fables"
    prepare(Request(form="fables", inputs=("60:0",), out=out, tokenizer="char"))
    return open_corpus(out)


def planned_steps(corpus: Corpus, *words: str) -> tuple[int, str]:
    preset = [] if words and words[0].startswith("experiment=") else ["experiment=gpt/shakespeare_char"]
    (run,) = prepare_runs([gpt_settings(["mode=gpt", *preset, f"data.path={corpus.path}", *words])])
    assert isinstance(run.config, GptConfig)
    return run.config.train.steps, run.run_id


def test_an_epoch_is_every_block_once(corpus: Corpus) -> None:
    blocks = (corpus.split("train")["tokens"] - 1) // 64
    steps, run_id = planned_steps(corpus, "train.epochs=2")
    assert steps == -(-2 * blocks // 12)
    assert planned_steps(corpus, f"train.steps={steps}") == (steps, run_id)


def test_at_random_offsets_an_epoch_is_every_start_once(corpus: Corpus) -> None:
    steps, _ = planned_steps(corpus, "train.epochs=1", "data.sampling=random")
    assert steps == -(-(corpus.split("train")["tokens"] - 64) // 12)


def test_tokens_heed_the_ramp_of_the_batch(corpus: Corpus) -> None:
    assert planned_steps(corpus, "train.tokens=7680")[0] == 10
    assert planned_steps(corpus, "train.tokens=7680", "train.batch_ramp=[4,4,40]")[0] > 10


def test_a_preset_leaves_the_length_to_the_command(corpus: Corpus) -> None:
    """gpt_mini_v0 had a length in epochs, which took the place of steps and excluded tokens."""
    for name in presets():
        train = gpt_settings(["mode=gpt", f"experiment=gpt/{name}"]).train
        assert (train.epochs, train.tokens) == (None, None), name
    preset = "experiment=gpt/gpt_mini_v0"
    assert planned_steps(corpus, preset, "train.steps=100")[0] == 100
    assert planned_steps(corpus, preset, "train.tokens=1e6")[0] == -(-1_000_000 // (256 * 128))


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 5), st.integers(1, 300), st.integers(1, 3000))
def test_the_steps_of_a_ramp_are_the_first_that_consume_enough(
    first: int, increment: int, increments: int, samples: int, wanted: int
) -> None:
    ramp = Ramp(first, increment, samples, first + increments * increment)
    steps = ramp.steps(wanted)
    assert ramp.consumed(steps) >= wanted > ramp.consumed(steps - 1)


def test_a_ramp_is_in_the_tokens_of_the_plan_and_of_the_first_lines(
    corpus: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 steps of 12 sequences are 7,680 tokens; with the ramp they are fewer, and more steps take as many."""
    preset = ["experiment=gpt/shakespeare_char", f"data.path={corpus.path}"]
    assert plan.main([*preset, "train.steps=10"]) == 0
    assert "7,680 = 10 steps of 768\n" in capsys.readouterr().out
    assert plan.main([*preset, "train.steps=10", "train.batch_ramp=[4,4,40]"]) == 0
    # 5 steps of 4 sequences, 3 of 8 (44 sequences), then 12
    assert f"{64 * (5 * 4 + 3 * 8 + 2 * 12):,} in 10 steps of up to 768\n" in capsys.readouterr().out
    assert plan.main([*preset, "train.steps=10", "train.context_ramp=[16,16,40]"]) == 0
    assert "at most 7,680 in 10 steps of up to 768\n" in capsys.readouterr().out

    words = ["train.steps=10", "train.batch_ramp=[4,4,40]", "numerics.compile=false"]
    config = gpt_settings(["mode=gpt", *preset, *words])
    model = build_model(config, vocab_size=corpus.vocab_size, device=torch.device("cpu"), dtype=torch.float32)
    log = Log("a" * 20, config, corpus, model, torch.device("cpu"), from_step=0)
    log.start("", [], batch_ramp(config).consumed(10))
    tokens = corpus.split("train")["tokens"]
    assert f"10 steps of up to 768 tokens are {4352 / tokens:.2f} epochs of {tokens:,}" in capsys.readouterr().err
