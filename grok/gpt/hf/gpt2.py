"""GPT-2 in Hugging Face's form: export and import.

Hugging Face's ``Conv1D`` computes ``x @ W``, so its matrices are the transposes of ours. Each tensor of ours is one of
theirs. A model without biases is exported with biases of zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.config.gpt_model import ModelConfig
from grok.errors import CheckpointError, ConfigError
from grok.gpt.hf.names import Names
from grok.gpt.model import GPT

_NAMES: Final = Names(
    {
        "token_embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    "transformer.h",
    {
        "norm1": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "norm2": "ln_2",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    },
)
_OF_TOKENS: Final = ("token_embedding.weight", "head.weight")  # they may have rows beyond the vocabulary
_TRANSPOSED: Final = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
_BUFFERS: Final = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask in old files
_NEEDED: Final = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
_FLAGS: Final = ("tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")
_REFUSED: Final = {"add_cross_attention": False, "is_encoder_decoder": False, "pruned_heads": {}}
"""Settings that our model lacks, with the value at which they do not change the output."""


def weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our tensors under Hugging Face's names and in its layout."""
    theirs = {_NAMES.of(name): tensor for name, tensor in tensors.items()}
    return {n: t.t().contiguous() if n.endswith(_TRANSPOSED) else t for n, t in theirs.items()}


def config(c: ModelConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a GPT-2 without its vocabulary."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": _ACTIVATIONS[c.activation],
        "attn_pdrop": c.dropout_attention,
        "embd_pdrop": c.dropout_embedding,
        "resid_pdrop": c.dropout_residual,
        "layer_norm_epsilon": c.norm_eps,
        "n_ctx": c.context,
        "n_positions": c.context,
        "n_embd": c.d_model,
        "n_head": c.heads,
        "n_inner": c.d_ff,
        "n_layer": c.layers,
    }


@torch.no_grad()
def load_hf(model: GPT, weights: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None) -> None:
    """Copy Hugging Face's weights into ``model``. ``settings`` is the content of ``config.json``.

    If it scales attention's scores in another way, the query's weights are multiplied by the difference.

    Raises:
        CheckpointError: a tensor is missing, unknown, of another shape, of integers or not finite.
    """
    c, parameters = model.config, dict(model.named_parameters())
    for name, tensor in fitted(model, weights).items():
        target = parameters[name][: model.vocab_size] if name in _OF_TOKENS else parameters[name]
        target.copy_(tensor)
        if ".attention.qkv." in name:
            target[: c.d_model] *= query_factor(c, int(name.split(".")[1]), settings or {})


def fitted(model: GPT, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Hugging Face's weights under our names and in our layout. ``model`` may be on the meta device.

    Raises:
        CheckpointError: a tensor is missing, unknown, of another shape, of integers or not finite.
    """
    left = {n if n.startswith("lm_head.") else f"transformer.{n.removeprefix('transformer.')}": t
            for n, t in weights.items()}  # fmt: skip
    left = {n: t for n, t in left.items() if not _BUFFERS.fullmatch(n)}
    if model.config.tied:
        _refuse_other_head(left)
    ours = {}
    for name, p in model.named_parameters():
        theirs = _NAMES.of(name)
        if theirs not in left:
            raise CheckpointError(
                f"the Hugging Face weights have no {theirs}: is this a GPT-2 of {model.config.layers} layers?"
            )
        tensor = left.pop(theirs)
        ours[name] = tensor = tensor.t() if theirs.endswith(_TRANSPOSED) and tensor.dim() == 2 else tensor
        shape = (model.vocab_size, *p.shape[1:]) if name in _OF_TOKENS else tuple(p.shape)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{theirs} has shape {tuple(tensor.shape)}, this model's is {shape}")
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise CheckpointError(f"{theirs} ({tensor.dtype}): expected finite floating-point numbers")
    if left:
        raise CheckpointError(f"the Hugging Face weights have unknown tensors: {', '.join(sorted(left)[:4])}")
    return ours


def query_factor(c: ModelConfig, layer: int, settings: Mapping[str, Any]) -> float:
    """Return the factor of the queries of ``layer`` by which our scaling of scores, 1 / sqrt(K), gives theirs."""
    factor = 1.0 if settings.get("scale_attn_weights", True) else math.sqrt(c.d_model // c.heads)
    return factor / (layer + 1) if settings.get("scale_attn_by_inverse_layer_idx", False) else factor


def _refuse_other_head(left: dict[str, Tensor]) -> None:
    """Remove the copy of a tied head from ``left``.

    Raises:
        CheckpointError: it differs from the token embedding.
    """
    head = left.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, left.get("transformer.wte.weight", head)):
        raise CheckpointError(
            "lm_head.weight differs from transformer.wte.weight, but config.json does not say "
            "tie_word_embeddings=false: it is not clear which of the two is the model's head"
        )


def model_config(theirs: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    """Return the model settings and the vocabulary of a ``config.json``.

    Raises:
        CheckpointError: it describes no GPT-2, or has a setting that our model lacks.
    """
    known = {v: k for k, v in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
    activation = theirs.get("activation_function", "gelu_new")
    if theirs.get("model_type") != "gpt2" or not isinstance(activation, str) or activation not in known:
        raise CheckpointError(
            f"model_type={_short(theirs.get('model_type'))} with activation_function={_short(activation)}: expected "
            f"gpt2 with one of {', '.join(known)}"
        )
    other = [f"{name}={_short(theirs[name])}" for name, none in _REFUSED.items() if theirs.get(name, none) != none]
    if other:
        raise CheckpointError(f"config.json says {', '.join(other)}, which changes the output and is not supported")
    missing = [name for name in _NEEDED if type(theirs.get(name)) is not int]
    if missing:
        raise CheckpointError(f"config.json has no whole number for {', '.join(missing)}")
    flags = [name for name in _FLAGS if type(theirs.get(name, True)) is not bool]
    if flags:
        raise CheckpointError(f"config.json: {flags[0]}={_short(theirs[flags[0]])}: expected true or false")
    model = {
        "layers": theirs["n_layer"],
        "d_model": theirs["n_embd"],
        "heads": theirs["n_head"],
        "d_ff": theirs.get("n_inner"),
        "context": theirs["n_positions"],
        "activation": known[activation],
        "norm_eps": theirs.get("layer_norm_epsilon", 1e-5),
        "tied": theirs.get("tie_word_embeddings", True),
        "dropout_attention": theirs.get("attn_pdrop", 0.1),
        "dropout_embedding": theirs.get("embd_pdrop", 0.1),
        "dropout_residual": theirs.get("resid_pdrop", 0.1),
        "vocab_size": theirs["vocab_size"],
    }
    try:
        config = load_config({"mode": "gpt", "experiment": "gpt/imported", "model": model})
    except ConfigError as error:
        raise CheckpointError(f"config.json describes no valid GPT-2: {error}") from error
    assert isinstance(config, GptConfig)
    return replace(config.model, vocab_size=None), theirs["vocab_size"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:77]}..."
