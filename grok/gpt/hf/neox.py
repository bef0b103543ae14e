"""Rotary models in the form of Hugging Face's GPT-NeoX, with its two residual additions one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from grok.config.gpt_model import ModelConfig
from grok.gpt.hf.names import name_in_form

_OURS: Final = {
    "token_embedding.weight": "gpt_neox.embed_in.weight",
    "final_norm.weight": "gpt_neox.final_layer_norm.weight",
    "final_norm.bias": "gpt_neox.final_layer_norm.bias",
    "head.weight": "embed_out.weight",
}
_BLOCK: Final = {
    "norm1": "input_layernorm",
    "attention.qkv": "attention.query_key_value",
    "attention.out": "attention.dense",
    "norm2": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu"}


def weights(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return our tensors under their names; queries, keys and values stand head by head there."""
    return {
        name_in_form(name, _OURS, "gpt_neox.layers", _BLOCK): (
            tensor.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()
            if ".attention.qkv." in name
            else tensor
        )
        for name, tensor in tensors.items()
    }


def config(c: ModelConfig) -> dict[str, Any]:
    """Return what ``config.json`` says of a rotary model, but for its vocabulary.

    The rotary settings stand twice: ``transformers`` renamed them in version 5.
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
