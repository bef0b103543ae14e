"""Models in the Hugging Face forms GPT-2, MPT and GPT-NeoX: their weights and ``config.json``."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Final

import torch
from torch import Tensor

from grok.config import load_config
from grok.config.gpt import GptConfig, ModelConfig
from grok.errors import CheckpointError, ConfigError
from grok.gpt.model import GPT

# Our tensors' names in a Hugging Face form.


@dataclass(frozen=True, slots=True)
class Names:
    """What a form calls our modules."""

    outside: Mapping[str, str]
    """The modules outside the blocks."""
    blocks: str
    """The form's list of blocks."""
    inside: Mapping[str, str]
    """The modules of a block."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Our settings of the model by the names that they have in ``config.json``."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """What else stands in every ``config.json``."""

    def of(self, name: str) -> str:
        """Return the form's name of our tensor ``name``.

        >>> Names({"head": "lm_head"}, "h", {"mlp.up": "c_fc"}).of("blocks.3.mlp.up.bias")
        'h.3.c_fc.bias'
        """
        module, _, kind = name.rpartition(".")
        if module in self.outside:
            return f"{self.outside[module]}.{kind}"
        _, layer, part = module.split(".", 2)
        return f"{self.blocks}.{layer}.{self.inside[part]}.{kind}"


# GPT-2 in Hugging Face's form: export and import.
#
# Hugging Face's ``Conv1D`` computes ``x @ W``, so its matrices are the transposes of ours. Each tensor of ours is one
# of theirs. A model without biases is exported with biases of zero.

_READ: Final = tomllib.loads(files("grok.gpt.hf").joinpath("names.toml").read_text(encoding="utf-8"))
_NAMES: Final = Names(**_READ["gpt2"])
_OF_TOKENS: Final = ("token_embedding.weight", "head.weight")  # they may have rows beyond the vocabulary
_TRANSPOSED: Final = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}
_BUFFERS: Final = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask in old files
_NEEDED: Final = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
_FLAGS: Final = ("tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")
_REFUSED: Final = {"add_cross_attention": False, "is_encoder_decoder": False, "pruned_heads": {}}
"""Settings that our model lacks, with the value at which they do not change the output."""


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


# ALiBi models without biases in the form of Hugging Face's MPT.
#
# MPT always computes the exact GELU. For another activation the folder contains a model class, which
# ``from_pretrained(folder, trust_remote_code=True)`` uses. Without that flag ``transformers`` refuses the folder.

_MPT_NAMES: Final = Names(**_READ["mpt"])
_MPT_ACTIVATIONS: Final = {"gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}

MPT_MODULE: Final = "modeling_mpt_activation"
MPT_CODE: Final = files("grok.gpt.hf").joinpath(f"{MPT_MODULE}.py.txt").read_text(encoding="utf-8")
"""The model class that is written beside the weights of a model with another activation."""


# Rotary models in the form of Hugging Face's GPT-NeoX, without its parallel residual.

_NEOX_NAMES: Final = Names(**_READ["neox"])
_NEOX_ACTIVATIONS: Final = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu"}


def neox_weights(tensors: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return our tensors under NeoX's names. The rows of queries, keys and values are sorted by head in this form."""
    return {
        _NEOX_NAMES.of(name): (
            tensor.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()
            if ".attention.qkv." in name
            else tensor
        )
        for name, tensor in tensors.items()
    }


# Export: the Hugging Face form of a model, and its weights and ``config.json`` in this form.

_EVERY: Final[dict[str, Any]] = {
    "norm": "pre",
    "norm_type": "layernorm",
    "qk_norm": False,
    "kv_heads": None,
    "plugin": {},
}
_FORMS: Final = {"learned": "gpt2", "rotary": "neox", "alibi": "mpt"}


def form_of(config: ModelConfig) -> str:
    """Return ``gpt2`` (learned positions), ``neox`` (rotary) or ``mpt`` (ALiBi).

    Raises:
        ConfigError: the form does not support an option of the model.
    """
    form, needed = _FORMS[config.positions], dict(_EVERY)
    if form == "mpt":
        needed |= {"bias": False, "d_ff": 4 * config.d_model}
    other = [f"model.{n}={getattr(config, n)} (not {v})" for n, v in needed.items() if getattr(config, n) != v]
    if config.activation == "swiglu":
        other.append("model.activation=swiglu")
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
        return {_MPT_NAMES.of(name): tensor for name, tensor in ours.items()}
    if not model.config.bias:
        ours |= _zero_biases(ours)
    if form != "gpt2":
        return neox_weights(ours, model.config.heads)
    theirs = {_NAMES.of(name): tensor for name, tensor in ours.items()}
    return {n: t.t().contiguous() if n.endswith(_TRANSPOSED) else t for n, t in theirs.items()}


def _zero_biases(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    biases = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if layer == "final_norm" or layer.startswith("blocks."):
            biases[f"{layer}.bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    return biases


def _form_config(form: str, c: ModelConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a form without the vocabulary."""
    names = {"gpt2": _NAMES, "neox": _NEOX_NAMES, "mpt": _MPT_NAMES}[form]
    own = {**names.always, **{theirs: getattr(c, ours) for theirs, ours in names.settings.items()}}
    if form == "gpt2":
        own["activation_function"] = _ACTIVATIONS[c.activation]
    elif form == "neox":
        own["hidden_act"] = _NEOX_ACTIVATIONS[c.activation]
    elif c.activation != "gelu":
        own |= {
            "architectures": ["MptActivationForCausalLM"],
            "model_type": "mpt_activation",
            "hidden_act": _MPT_ACTIVATIONS[c.activation],
            "auto_map": {
                "AutoConfig": f"{MPT_MODULE}.MptActivationConfig",
                "AutoModelForCausalLM": f"{MPT_MODULE}.MptActivationForCausalLM",
            },
        }
    return own


def hf_config(model: GPT, end: int | None = None) -> dict[str, Any]:
    """Return the ``config.json`` of ``model``. ``end`` is the end-of-text id, or None.

    None is written, too. Otherwise ``transformers`` takes a default id, which the vocabulary may lack.

    Raises:
        ConfigError: no form supports an option of the model.
    """
    c = model.config
    return _form_config(form_of(c), c) | {
        "vocab_size": model.vocab_size,
        "initializer_range": c.init_std(),
        "tie_word_embeddings": c.tied,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": str(model.token_embedding.weight.dtype).removeprefix("torch."),
        "torch_dtype": str(model.token_embedding.weight.dtype).removeprefix("torch."),
    }
