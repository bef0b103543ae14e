"""Export: the Hugging Face form of a model, and its weights and ``config.json`` in this form."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from grok.config.gpt_model import ModelConfig
from grok.errors import ConfigError
from grok.gpt.hf import gpt2, llama, mpt, neox
from grok.gpt.model import GPT

_EVERY: Final[dict[str, Any]] = {"norm": "pre", "qk_norm": False}
_LLAMA: Final[dict[str, Any]] = {"positions": "rotary", "norm_type": "rmsnorm", "activation": "swiglu"}
_FORMS: Final = {"learned": "gpt2", "rotary": "neox", "alibi": "mpt"}


def form_of(config: ModelConfig) -> str:
    """Return ``gpt2`` (learned positions), ``neox`` (rotary), ``mpt`` (ALiBi) or ``llama`` (rotary and any of RMSNorm,
    SwiGLU and grouped queries).

    Raises:
        ConfigError: the form does not support an option of the model.
    """
    form, needed = _FORMS[config.positions], _EVERY | {"norm_type": "layernorm", "kv_heads": None}
    if config.activation == "swiglu" or (
        form == "neox" and (config.norm_type == "rmsnorm" or config.kv_heads is not None)
    ):
        form, needed = "llama", _EVERY | _LLAMA
    if form == "mpt":
        needed |= {"bias": False, "d_ff": 4 * config.d_model}
    other = [f"model.{n}={getattr(config, n)} (not {v})" for n, v in needed.items() if getattr(config, n) != v]
    if other:
        raise ConfigError(f"Hugging Face's {form} does not support {', '.join(other)}")
    return form


def to_hf(model: GPT) -> dict[str, Tensor]:
    """Return the weights in Hugging Face's form, on the CPU.

    Rows that only pad the vocabulary are left out. Biases that the model lacks are zero.

    Raises:
        ConfigError: no form supports an option of the model.
    """
    form = form_of(model.config)
    ours = {}
    for name, p in model.named_parameters():
        tensor = p.detach().to("cpu", copy=True)
        ours[name] = tensor[: model.vocab_size].clone() if name in ("token_embedding.weight", "head.weight") else tensor
    if form == "mpt":
        return mpt.weights(ours)
    if form == "llama":
        return llama.weights(ours, model.config)
    if not model.config.bias:
        ours |= _zero_biases(ours)
    return gpt2.weights(ours) if form == "gpt2" else neox.weights(ours, model.config.heads)


def _zero_biases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    biases = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if layer == "final_norm" or layer.startswith("blocks."):
            biases[f"{layer}.bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    return biases


def hf_config(model: GPT, end: int | None = None) -> dict[str, Any]:
    """Return the ``config.json`` of ``model``. ``end`` is the end-of-text id, or None.

    None is written, too. Otherwise ``transformers`` takes a default id, which the vocabulary may lack.

    Raises:
        ConfigError: no form supports an option of the model.
    """
    c = model.config
    own = {"gpt2": gpt2.config, "neox": neox.config, "mpt": mpt.config, "llama": llama.config}[form_of(c)](c)
    return own | {
        "vocab_size": model.vocab_size,
        "initializer_range": c.init_std(),
        "tie_word_embeddings": c.tied,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": str(model.token_embedding.weight.dtype).removeprefix("torch."),
        "torch_dtype": str(model.token_embedding.weight.dtype).removeprefix("torch."),
    }
