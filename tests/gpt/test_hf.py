"""Hugging Face: theirs and ours give the same logits and ids, or a folder is refused in one line."""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from grok import evaluate
from grok.commands.compose import gpt_settings
from grok.commands.words import presets
from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.errors import CheckpointError
from grok.gpt.hf import load_hf_folder, save_hf_folder
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.hf import imported_run_id
from grok.hf import main as hf_door
from grok.streams import Stream
from grok.text.corpus import Corpus
from grok.text.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, gpt2_tokenizer, tokenizer_files, train_bpe
from tests.gpt.conftest import Build

os.environ["HF_HUB_OFFLINE"] = "1"
V = 50
TOKENS = torch.from_numpy(Stream("eval", 6).integers(3 * 16, V).reshape(3, 16))
transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
transformers.utils.logging.disable_progress_bar()


def their_model(folder: Path, *, shard: str | None = None, **settings: Any) -> Any:
    """Write a small GPT-2 of theirs, every tensor random, and return it."""
    shape = {"vocab_size": V, "n_positions": 32, "n_embd": 64, "n_layer": 3, "n_head": 4}
    with torch.random.fork_rng():
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**(shape | settings))).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.from_numpy(Stream("eval", 5).at(name).normal(p.numel())).reshape(p.shape)
            p.copy_(0.3 * noise.float() + (1.0 if "ln" in name and name.endswith("weight") else 0.0))
    model.save_pretrained(str(folder), **({"max_shard_size": shard} if shard else {}))
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layer_norm_epsilon": 0.1},
        {"tie_word_embeddings": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "tie_word_embeddings": False},
        {"activation_function": "relu", "n_inner": 100},
        {"activation_function": "gelu_pytorch_tanh"},
    ],
    ids=lambda settings: ",".join(settings) or "plain",
)
def test_our_model_computes_what_theirs_does(settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = their_model(tmp_path, **settings)
    ours = load_hf_folder(tmp_path).double()  # in float32 unscaled scores round too much to be compared
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs.double()(TOKENS).logits, rtol=0, atol=1e-5)


def test_a_sharded_folder_is_read(tmp_path: Path) -> None:
    theirs = their_model(tmp_path, shard="50KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        ours = load_hf_folder(tmp_path).double()
        torch.testing.assert_close(ours(TOKENS), theirs.double()(TOKENS).logits, rtol=0, atol=1e-5)
    next(tmp_path.glob("model-00001-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"model-00001-.*cannot be read"):
        load_hf_folder(tmp_path)


def test_half_precision_weights_are_read_in_float32(tmp_path: Path) -> None:
    theirs = their_model(tmp_path).bfloat16()
    theirs.save_pretrained(str(tmp_path))
    ours = load_hf_folder(tmp_path)
    assert ours.token_embedding.weight.dtype == torch.float32
    assert torch.equal(ours.final_norm.bias, theirs.transformer.ln_f.bias.float())


def random_model(config: GptConfig, vocab_size: int) -> GPT:
    """Return a model with every tensor random, biases and norms too."""
    model = build_model(config, vocab_size=vocab_size, device=torch.device("cpu"), dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.from_numpy(Stream("eval", 5).at(name).normal(p.numel())).reshape(p.shape)
            p.add_(0.2 * noise.float())
    return model.eval()


@pytest.fixture
def model(settings: Build) -> GPT:
    return random_model(settings(model__vocab_multiple=16), V)


def test_doors_carry_weights_both_ways(
    model: GPT, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


TEXT = "The cat's 1,000 naïve 猫 said «miaou» 🐈‍⬛👩🏽‍🚀\r\nTabs\tand  spaces \r\n\r\n\x00NUL\x00 日本語。 end \n"
SMALL = ["model.layers=3", "model.d_model=48", "model.heads=6", "model.d_ff=192", "model.context=32"]


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
    ],
    ids=["rotary", "alibi", "learned"],
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("theirs")
    their_model(path)
    return path


def weights_of(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def as_index(path: Path, content: Any) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps(content))


def settings_of(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


HARM: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty weights": (lambda p: (p / "model.safetensors").write_bytes(b""), ""),
    "a header of 2^60 bytes": (
        lambda p: (p / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}"), "",
    ),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), ""),
    "weights as pickles": (
        lambda p: (p / "model.safetensors").rename(p / "pytorch_model.bin"),
        r"pickles.*from_pretrained\(.*\)\.save_pretrained\(DIR\)",
    ),
    "settings in no JSON": (
        lambda p: (p / "config.json").write_bytes(b"\xff\xfe{"), r"config\.json cannot be read"
    ),
    "settings 100,000 deep": (lambda p: (p / "config.json").write_text("[" * 100_000), ""),
    "a part that ours lacks": (lambda p: settings_of(p, add_cross_attention=True), "add_cross_attention=True"),
    "a word for a number": (lambda p: settings_of(p, n_layer="three"), "no whole number for n_layer"),
    "another architecture": (lambda p: settings_of(p, model_type="llama"), "model_type=llama"),
    "a tied model with a head": (
        lambda p: weights_of(p, lambda t: t.update({"lm_head.weight": 2 * t["transformer.wte.weight"]})),
        r"lm_head\.weight differs from transformer\.wte\.weight",
    ),
    "a tensor is missing": (lambda p: weights_of(p, lambda t: t.pop(sorted(t)[3])), ""),
    "a tensor of another shape": (lambda p: weights_of(p, lambda t: t.update({sorted(t)[3]: torch.zeros(7)})), ""),
    "a tensor of whole numbers": (
        lambda p: weights_of(
            p, lambda t: t.update({sorted(t)[3]: torch.zeros(t[sorted(t)[3]].shape, dtype=torch.int64)})
        ), "",
    ),
    "weights that are not finite": (lambda p: weights_of(p, lambda t: t[sorted(t)[3]].fill_(float("nan"))), ""),
    "a tensor too many": (lambda p: weights_of(p, lambda t: t.update({"transformer.h.99.x": torch.zeros(3)})), ""),
    "an index that leads outside": (lambda p: as_index(p, {"weight_map": {"x": "../secret.safetensors"}}), ""),
    "a shard that is a pipe": (lambda p: (as_index(p, {"weight_map": {"x": "a"}}), os.mkfifo(p / "a")), ""),
    "an index of numbers": (lambda p: as_index(p, {"weight_map": {"x": 3}}), ""),
}  # fmt: skip
"""What is done to a folder, and what its refusal says."""


@pytest.mark.parametrize("harm", HARM)
def test_a_harmed_folder_is_refused_in_one_line(
    folder: Path, corpus: Corpus, tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harmed = Path(shutil.copytree(folder, tmp_path / "theirs"))
    do, words = HARM[harm]
    do(harmed)
    assert hf_door(["import", str(harmed), "--data", str(corpus.path), "--store", str(tmp_path / "store")]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1) and re.search(words, said.err), said.err
    assert len(said.err) < 1500 and not (tmp_path / "store").exists()


SETTINGS = {"mode": "gpt", "experiment": "gpt/imported", "data": {"path": "corpus"}, "model": {"vocab_size": 50}}


def test_an_import_keeps_its_run_id() -> None:
    """The literal is from the version in which the command was new. A new setting belongs into ``_ADDED``."""
    config = load_config({**SETTINGS, "numerics": {"compile": False}})
    assert isinstance(config, GptConfig)
    assert imported_run_id("weights", "corpus", config) == "74a93919fe33f5769842"
    changed = load_config({**SETTINGS, "numerics": {"compile": False}, "model": {"vocab_size": 51}})
    assert isinstance(changed, GptConfig)
    assert imported_run_id("weights", "corpus", changed) != "74a93919fe33f5769842"
