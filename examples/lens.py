"""The weights of a run in TransformerLens 3 (pip install 'grok-lab[lens]'), from a data set of `grok atlas build`.

    grok sweep experiment=nanda seed=2 train.steps=9000 save=init,final store.path=S
    grok atlas build atlas S
    python lens.py atlas/runs/S.parquet RUN final

TransformerLens has blocks without LayerNorm, or with one before each sublayer. In the diary's blocks it stands behind
the residual sum, where TransformerLens has nothing: such a run opens as the readable model only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from grok.arithmetic.model import Block, Transformer
from grok.arithmetic.task import shapes_of
from grok.store.provenance import stored_config

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer


def readable(runs: Path, run_id: str, moment: str) -> Transformer:
    """Return the readable model of a run with its weights of ``moment``: init, final, or a kept step.

    Raises:
        ValueError: there is no such run.
    """
    rows = pq.read_table(runs, filters=[("run_id", "==", run_id)]).to_pylist()
    if not rows:
        raise ValueError(f"{run_id}: expected the whole run_id of a run in {runs}")
    config = stored_config(rows[0])
    shapes = shapes_of(config.task)
    model = Transformer(config.model, vocab_size=shapes.tokens, length=shapes.length)
    weights = runs.parents[1] / "weights" / runs.stem / f"{run_id}-{moment}.safetensors"
    model.load_state_dict(load_file(weights))
    return model.eval()


def hooked(model: Transformer) -> HookedTransformer:
    """Return a model without LayerNorm with equal logits, where every activation has a hook.

    Raises:
        ValueError: the model has a LayerNorm, sinusoidal positions or biases.
    """
    from transformer_lens import HookedTransformer, HookedTransformerConfig  # takes seconds

    block = model.blocks[0]
    assert isinstance(block, Block)
    if block.order != "none" or hasattr(model.final_norm, "weight") or not model.learned_positions:
        raise ValueError("expected model.norm=none, model.final_norm=false and model.positions=learned")
    if model.head.bias is not None:
        raise ValueError("expected model.bias=false")
    width, heads = model.head.in_features, block.attention.heads
    config = HookedTransformerConfig(
        n_layers=len(model.blocks), n_ctx=len(model.position_embedding.weight), d_model=width, n_heads=heads,
        d_head=width // heads, d_mlp=block.mlp.up.out_features, d_vocab=model.head.out_features,
        act_fn="relu" if block.mlp.activation is torch.nn.functional.relu else "gelu", normalization_type=None,
    )  # fmt: skip
    theirs = HookedTransformer(config)
    weights = {"embed.W_E": model.token_embedding.weight, "pos_embed.W_pos": model.position_embedding.weight}
    for i, block in enumerate(model.blocks):
        for letter, w in zip("QKV", block.attention.qkv.weight.chunk(3), strict=True):
            weights[f"blocks.{i}.attn.W_{letter}"] = w.view(heads, -1, width).transpose(1, 2)
        weights[f"blocks.{i}.attn.W_O"] = block.attention.out.weight.T.reshape(heads, -1, width)
        weights[f"blocks.{i}.mlp.W_in"] = block.mlp.up.weight.T
        weights[f"blocks.{i}.mlp.W_out"] = block.mlp.down.weight.T
    weights["unembed.W_U"] = model.head.weight.T
    theirs.load_state_dict(weights, strict=False)  # all of its biases stay zero
    return theirs.eval()


if __name__ == "__main__":
    try:
        file, run_id, moment = sys.argv[1:]
        mine = readable(Path(file), run_id, moment)
        theirs = hooked(mine)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}; give RUNS.parquet RUN init|final, of a run without LayerNorm")
    _, cache = theirs.run_with_cache(torch.tensor([[1, 2, mine.head.out_features - 1]]))
    for name, values in cache.items():
        print(f"{name:32} {tuple(values.shape)}")
