"""What is imported computes what ``transformers`` computes, or is refused: never something else without a word."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from grok.errors import CheckpointError
from grok.gpt.hf import load_hf_folder
from grok.streams import Stream

os.environ["HF_HUB_OFFLINE"] = "1"
V = 50
TOKENS = torch.from_numpy(Stream("eval", 6).integers(3 * 16, V).reshape(3, 16))
transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
transformers.utils.logging.disable_progress_bar()


def their_model(folder: Path, *, shard: str | None = None, **settings: Any) -> Any:
    """Write a small GPT-2 of theirs, every tensor random, and return it."""
    shape = {"vocab_size": V, "n_positions": 32, "n_embd": 64, "n_layer": 3, "n_head": 4}
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
    with torch.random.fork_rng():
        theirs = their_model(tmp_path, **settings)
    ours = load_hf_folder(tmp_path).double()  # in float32 unscaled scores round too much to be compared
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs.double()(TOKENS).logits, rtol=0, atol=1e-5)


def test_a_sharded_folder_is_read(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        theirs = their_model(tmp_path, shard="50KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        ours = load_hf_folder(tmp_path).double()
        torch.testing.assert_close(ours(TOKENS), theirs.double()(TOKENS).logits, rtol=0, atol=1e-5)
    next(tmp_path.glob("model-00001-*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"model-00001-.*cannot be read"):
        load_hf_folder(tmp_path)


def test_weights_as_pickles_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        their_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickles.*from_pretrained\(.*\)\.save_pretrained\(DIR\)"):
        load_hf_folder(tmp_path)


def test_half_precision_weights_are_read_in_float32(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        theirs = their_model(tmp_path).bfloat16()
    theirs.save_pretrained(str(tmp_path))
    ours = load_hf_folder(tmp_path)
    assert ours.token_embedding.weight.dtype == torch.float32
    assert torch.equal(ours.final_norm.bias, theirs.transformer.ln_f.bias.float())


def test_what_ours_does_not_have_is_refused(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        their_model(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())

    def refused(**changes: Any) -> str:
        file.write_text(json.dumps(settings | changes))
        with pytest.raises(CheckpointError) as error:
            load_hf_folder(tmp_path)
        return str(error.value)

    assert "add_cross_attention=True" in refused(add_cross_attention=True)
    assert "no whole number for n_layer" in refused(n_layer="three")
    assert "model_type=llama" in refused(model_type="llama")
    file.write_text("[")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_hf_folder(tmp_path)


def test_a_tied_model_with_another_head_in_its_file_is_refused(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        their_model(tmp_path, tie_word_embeddings=False)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": True}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from transformer\.wte\.weight"):
        load_hf_folder(tmp_path)
