"""Rotary models with RMSNorm and SwiGLU, also with grouped queries, in the form of Hugging Face's Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from grok.config.gpt_model import ModelConfig
from grok.gpt.hf.names import Names

_NAMES: Final = Names(
    {"token_embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
    "model.layers",
    {
        "norm1": "input_layernorm",
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.out": "self_attn.o_proj",
        "norm2": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    },
)


def weights(tensors: Mapping[str, Tensor], c: ModelConfig) -> dict[str, Tensor]:
    """Return our tensors under Llama's names. Queries, keys and values are three matrices in this form."""
    keys = c.key_heads() * (c.d_model // c.heads)
    theirs = {}
    for name, tensor in tensors.items():
        if ".attention.qkv." in name:
            for part, own in zip("qkv", tensor.split([c.d_model, keys, keys]), strict=True):
                theirs[_NAMES.of(name.replace("qkv", part))] = own.clone()
        else:
            theirs[_NAMES.of(name)] = tensor
    return theirs


def config(c: ModelConfig) -> dict[str, Any]:
    """Return the ``config.json`` of such a model without its vocabulary.

    The rotary settings are written under two names, because ``transformers`` renamed them in version 5.
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
