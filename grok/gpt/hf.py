"""GPT-2 weights in Hugging Face's form, in and out.

Hugging Face keeps GPT-2's matrices transposed (its ``Conv1D`` is ``x @ W``); names are mapped
one to one. A folder is what ``from_pretrained`` reads: ``config.json`` and ``model.safetensors``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grok.config.gpt import ModelConfig
from grok.errors import CheckpointError, ConfigError
from grok.gpt.model import GPT

_OURS: Final = {
    "token_embedding.weight": "wte.weight",
    "position_embedding.weight": "wpe.weight",
    "final_norm.weight": "ln_f.weight",
    "final_norm.bias": "ln_f.bias",
}
_BLOCK: Final = {
    "norm1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "norm2": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
_TRANSPOSED: Final = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
GPT2_END: Final = 50_256
"""Id of ``<|endoftext|>`` in GPT-2's vocabulary."""
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
_BUFFERS: Final = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask that old files carry


def to_hf_name(name: str) -> str:
    """Return Hugging Face's name of one of our tensors, without its ``transformer.`` prefix."""
    if name in _OURS:
        return _OURS[name]
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"h.{layer}.{_BLOCK[module]}.{kind}"


def to_hf(model: GPT) -> dict[str, Tensor]:
    """Return the weights in Hugging Face's form, on the CPU; rows that only pad the vocabulary are left out.

    Raises:
        ConfigError: an option that GPT-2 does not have.
    """
    check_is_gpt2(model.config)
    tensors = {}
    for name, p in model.named_parameters():
        tensor = p.detach().to("cpu", copy=True)
        if name == "token_embedding.weight":
            tensor = tensor[: model.vocab_size].clone()
        theirs = to_hf_name(name)
        tensors[f"transformer.{theirs}"] = tensor.t().contiguous() if theirs.endswith(_TRANSPOSED) else tensor
    return tensors


@torch.no_grad()
def load_hf(model: GPT, weights: Mapping[str, Tensor]) -> None:
    """Copy Hugging Face's weights into ``model``.

    Raises:
        CheckpointError: a tensor is missing, left over, or of another shape.
        ConfigError: an option that GPT-2 does not have.
    """
    check_is_gpt2(model.config)
    left = {n.removeprefix("transformer."): t for n, t in weights.items()}
    left = {n: t for n, t in left.items() if not _BUFFERS.fullmatch(n) and n != "lm_head.weight"}
    for name, p in model.named_parameters():
        theirs = to_hf_name(name)
        if theirs not in left:
            raise CheckpointError(
                f"the Hugging Face weights have no {theirs}: is this a GPT-2 of {model.config.layers} layers?"
            )
        tensor = left.pop(theirs)
        tensor = tensor.t() if theirs.endswith(_TRANSPOSED) else tensor
        target = p[: model.vocab_size] if name == "token_embedding.weight" else p
        if tensor.shape != target.shape:
            raise CheckpointError(f"{theirs} has shape {tuple(tensor.shape)}, this model's is {tuple(target.shape)}")
        target.copy_(tensor)
    if left:
        raise CheckpointError(f"the Hugging Face weights have {', '.join(sorted(left)[:4])}, which this model has not")


def check_is_gpt2(config: ModelConfig) -> None:
    """Refuse options that Hugging Face's GPT-2 cannot express.

    Raises:
        ConfigError: one of them is set.
    """
    wanted: dict[str, Any] = {
        "norm": "pre",
        "norm_type": "layernorm",
        "positions": "learned",
        "bias": True,
        "tied": True,
        "qk_norm": False,
    }
    other = [f"model.{n}={getattr(config, n)} (not {v})" for n, v in wanted.items() if getattr(config, n) != v]
    if other:
        raise ConfigError(f"Hugging Face's GPT-2 has no place for {', '.join(other)}")


def hf_config(model: GPT) -> dict[str, Any]:
    """Return the ``config.json`` of ``model``."""
    c = model.config
    end = GPT2_END if model.vocab_size > GPT2_END else None  # left out, theirs would name an id that is not there
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": _ACTIVATIONS[c.activation],
        "attn_pdrop": c.dropout_attention,
        "embd_pdrop": c.dropout_embedding,
        "resid_pdrop": c.dropout_residual,
        "layer_norm_epsilon": 1e-5,
        "n_ctx": c.context,
        "n_positions": c.context,
        "n_embd": c.d_model,
        "n_head": c.heads,
        "n_inner": c.d_ff,
        "n_layer": c.layers,
        "vocab_size": model.vocab_size,
        "initializer_range": c.init_std(),
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
    }


def model_config(theirs: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    """Return the model settings and the vocabulary of a ``config.json``.

    Raises:
        CheckpointError: it is not a GPT-2's, or has an activation that we have not.
    """
    known = {v: k for k, v in _ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu_tanh"}
    activation = theirs.get("activation_function", "gelu_new")
    if theirs.get("model_type") != "gpt2" or activation not in known:
        raise CheckpointError(
            f"model_type={theirs.get('model_type')} with activation_function={activation}: expected gpt2 with one of "
            f"{', '.join(known)}"
        )
    config = ModelConfig(
        layers=theirs["n_layer"],
        d_model=theirs["n_embd"],
        heads=theirs["n_head"],
        d_ff=theirs.get("n_inner"),
        context=theirs["n_positions"],
        activation=known[activation],
        dropout_attention=theirs.get("attn_pdrop", 0.1),
        dropout_embedding=theirs.get("embd_pdrop", 0.1),
        dropout_residual=theirs.get("resid_pdrop", 0.1),
    )
    return config, theirs["vocab_size"]


def save_hf_folder(folder: str | Path, model: GPT) -> None:
    """Write ``config.json`` and ``model.safetensors``, which ``GPT2LMHeadModel.from_pretrained(folder)`` reads.

    Raises:
        ConfigError: Hugging Face's GPT-2 has no place for one of the model's options.
        CheckpointError: the disk refuses.
    """
    folder, weights = Path(folder), to_hf(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(hf_config(model), indent=2), encoding="utf-8")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be written ({error}): give another folder") from error


def load_hf_folder(folder: str | Path) -> GPT:
    """Return the model of a folder in Hugging Face's form, in float32 on the CPU.

    Raises:
        CheckpointError: files are missing, or it is not a GPT-2.
    """
    folder = Path(folder)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}: give a folder that `save_pretrained` wrote, as safetensors")
    config, vocab_size = model_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    with torch.device("meta"):
        model = GPT(config, vocab_size=vocab_size)
    model = model.to_empty(device="cpu")
    model.head.weight = model.token_embedding.weight
    load_hf(model, load_file(folder / "model.safetensors"))
    return model
