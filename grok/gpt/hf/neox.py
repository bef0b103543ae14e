"""Rotary models in the form of Hugging Face's GPT-NeoX, without its parallel residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from grok.config.gpt_model import ModelConfig
from grok.gpt.hf.names import Names

_NAMES: Final = Names(
    {"token_embedding": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
    "gpt_neox.layers",
    {
        "norm1": "input_layernorm",
        "attention.qkv": "attention.query_key_value",
        "attention.out": "attention.dense",
        "norm2": "post_attention_layernorm",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
)
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu"}


def weights(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return our tensors under NeoX's names. The rows of queries, keys and values are sorted by head in this form."""
    return {
        _NAMES.of(name): (
            tensor.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()
            if ".attention.qkv." in name
            else tensor
        )
        for name, tensor in tensors.items()
    }


def config(c: ModelConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a rotary model without its vocabulary.

    The rotary settings are written under two names, because ``transformers`` renamed them in version 5.
    """
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": _ACTIVATIONS[c.activation],
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "max_position_embeddings": c.context,
        "layer_norm_eps": c.norm_eps,
        "attention_bias": True,
        "attention_dropout": c.dropout_attention,
        "hidden_dropout": c.dropout_residual,
        "use_parallel_residual": False,
        "rotary_pct": 1.0,
        "rotary_emb_base": 10000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    }
