"""ALiBi models without biases in the form of Hugging Face's MPT.

MPT always computes the exact GELU. For another activation the folder contains a model class, which
``from_pretrained(folder, trust_remote_code=True)`` uses. Without that flag ``transformers`` refuses the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from grok.config.gpt_model import ModelConfig
from grok.gpt.hf.names import Names

_NAMES: Final = Names(
    {"token_embedding": "transformer.wte", "final_norm": "transformer.norm_f", "head": "lm_head"},
    "transformer.blocks",
    {
        "norm1": "norm_1",
        "attention.qkv": "attn.Wqkv",
        "attention.out": "attn.out_proj",
        "norm2": "norm_2",
        "mlp.up": "ffn.up_proj",
        "mlp.down": "ffn.down_proj",
    },
)
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}

MODULE: Final = "modeling_mpt_activation"
CODE: Final = '''\
"""MPT with a choice of activation: Hugging Face's own has the exact GELU built in."""

from transformers import MptConfig, MptForCausalLM
from transformers.activations import ACT2FN


class MptActivationConfig(MptConfig):
    model_type = "mpt_activation"
    hidden_act: str = "gelu"


class MptActivationForCausalLM(MptForCausalLM):
    config_class = MptActivationConfig

    def __init__(self, config):
        super().__init__(config)
        for block in self.transformer.blocks:
            block.ffn.act = ACT2FN[config.hidden_act]
'''
"""The model class that is written beside the weights of a model with another activation."""


def weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our tensors under MPT's names."""
    return {_NAMES.of(name): tensor for name, tensor in tensors.items()}


def config(c: ModelConfig) -> dict[str, Any]:
    """Return the ``config.json`` of an ALiBi model without its vocabulary."""
    own: dict[str, Any] = {"architectures": ["MptForCausalLM"], "model_type": "mpt"}
    if c.activation != "gelu":
        own = {
            "architectures": ["MptActivationForCausalLM"],
            "model_type": "mpt_activation",
            "hidden_act": _ACTIVATIONS[c.activation],
            "auto_map": {
                "AutoConfig": f"{MODULE}.MptActivationConfig",
                "AutoModelForCausalLM": f"{MODULE}.MptActivationForCausalLM",
            },
        }
    return own | {
        "d_model": c.d_model,
        "n_heads": c.heads,
        "n_layers": c.layers,
        "expansion_ratio": 4,
        "max_seq_len": c.context,
        "learned_pos_emb": False,
        "layer_norm_epsilon": c.norm_eps,
        "attn_config": {"alibi": True, "alibi_bias_max": 8},
    }
