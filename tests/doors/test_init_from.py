"""Going on from a Hugging Face GPT-2: the command names what changes, the weights name the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from grok.checkpoints import load_weights, run_folder
from grok.gpt.hf import load_hf_folder
from grok.store import open_store
from tests.doors.conftest import Door
from tests.gpt.conftest import prepare_text, text_of
from tests.gpt.test_hf_import import their_model

SMALL = ("optim.lr=1e-3", "train.steps=3", "train.batch_size=2", "train.threads=1", "eval.every=3", "eval.windows=2",
         "eval.sample_tokens=0", "numerics.compile=false", "log.quiet=true", "save=init,final")  # fmt: skip


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    """A command that goes on from the model in ``hf``, made by transformers; one of its options is unusual."""
    with torch.random.fork_rng():
        their_model(tmp_path / "hf", layer_norm_epsilon=1e-3)
    (tmp_path / "text").mkdir()
    corpus = prepare_text(tmp_path / "text", text_of(600))
    return ("mode=gpt", "init_from=hf", f"data.path={corpus.path}", "store.path=S", *SMALL)


def test_a_run_begins_with_their_weights(door: Door, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Nothing of the model is typed. A change of the weights is another run, their place is none."""
    assert door(*words).status == 0
    (row,) = open_store("S").runs().to_dict("records")
    assert (row["config.model.layers"], row["config.model.context"], row["config.model.norm_eps"]) == (3, 32, 1e-3)
    theirs = dict(load_hf_folder(tmp_path / "hf").named_parameters())
    kept = load_weights(run_folder("S", row["run_id"]), "init")
    assert all(torch.equal(kept[name], w) for name, w in theirs.items())
    moved = load_weights(run_folder("S", row["run_id"]), "final")
    assert not torch.equal(moved["token_embedding.weight"], theirs["token_embedding.weight"])
    shutil.copytree("hf", "elsewhere")
    assert "1 stored" in door(*words, "init_from=elsewhere", "dry_run=true").out
    assert door("--again", row["run_id"], "--store", "S").last.startswith("same bits")
    shutil.rmtree("hf")
    with torch.random.fork_rng():
        their_model(tmp_path / "hf", layer_norm_epsilon=1e-3, scale_attn_by_inverse_layer_idx=True)
    assert "0 stored" in door(*words, "dry_run=true").out, "other weights under the same settings"


def test_fewer_positions_and_a_padded_vocabulary(door: Door, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert door(*words, "model.context=16", "model.vocab_multiple=64").status == 0
    kept = load_weights(run_folder("S", open_store("S").runs().run_id[0]), "init")
    theirs = dict(load_hf_folder(tmp_path / "hf").named_parameters())
    assert torch.equal(kept["position_embedding.weight"], theirs["position_embedding.weight"][:16])
    assert kept["token_embedding.weight"].shape == (64, 64) and not kept["token_embedding.weight"][50:].any()
