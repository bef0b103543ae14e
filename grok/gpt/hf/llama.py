"""Rotary models with RMSNorm and SwiGLU in the form of Hugging Face's Llama, grouped queries too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from grok.config.gpt_model import ModelConfig

_OURS: Final = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_BLOCK: Final = {
    "norm1": "input_layernorm",
    "attention.out": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def weights(tensors: Mapping[str, Tensor], c: ModelConfig) -> dict[str, Tensor]:
    """Return our tensors under their names; queries, keys and values are three matrices there."""
    keys = c.key_heads() * (c.d_model // c.heads)
    theirs = {}
    for name, tensor in tensors.items():
        if name in _OURS:
            theirs[_OURS[name]] = tensor
            continue
        _, layer, rest = name.split(".", 2)
        module, _, kind = rest.rpartition(".")
        place = f"model.layers.{layer}"
        if module == "attention.qkv":
            for part, own in zip("qkv", tensor.split([c.d_model, keys, keys]), strict=True):
                theirs[f"{place}.self_attn.{part}_proj.{kind}"] = own.clone()
        else:
            theirs[f"{place}.{_BLOCK[module]}.{kind}"] = tensor
    return theirs


def config(c: ModelConfig) -> dict[str, Any]:
    """Return what ``config.json`` says of such a model, but for its vocabulary.

    The rotary settings stand twice: ``transformers`` renamed them in version 5.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads(),
        "head_dim": c.d_model // c.heads,
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.norm_eps,
        "attention_bias": c.bias,
        "mlp_bias": c.bias,
        "attention_dropout": c.dropout_attention,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
