"""Language models in Hugging Face's forms: models are exported in three forms and imported from GPT-2's.

A folder is what ``from_pretrained`` reads: ``config.json``, the weights in one file or shards, and the tokeniser's
files. It may also have the initial weights of a run.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from grok.checkpoints import read_tensors
from grok.config import load_config
from grok.config.gpt import GptConfig, ModelConfig
from grok.config.values import literal
from grok.errors import CheckpointError, ConfigError, in_words
from grok.gpt.model import GPT
from grok.numerics import unallocated
from grok.runs import weights_hash
from grok.text.tokenizers import Tokenizer, tokenizer_files
from grok.untrusted import is_plain, read_json_object

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


_NAMES: Final = {
    form: Names(**names)
    for form, names in tomllib.loads(files("grok.gpt").joinpath("hf_names.toml").read_text(encoding="utf-8")).items()
}
_FORMS: Final = {"learned": "gpt2", "rotary": "neox", "alibi": "mpt"}
_ACTIVATIONS: Final = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu": "relu"}


# GPT-2 in Hugging Face's form: import.
#
# Hugging Face's ``Conv1D`` computes ``x @ W``, so its matrices are the transposes of ours. Each tensor of ours is one
# of theirs. A model without biases is exported with biases of zero.

_TRANSPOSED: Final = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
_BUFFERS: Final = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")  # the causal mask in old files
_NEEDED: Final = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
_FLAGS: Final = ("tie_word_embeddings", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")
_REFUSED: Final = {"add_cross_attention": False, "is_encoder_decoder": False, "pruned_heads": {}}
"""Settings that our model lacks, with the value at which they do not change the output."""
_USUAL: Final = {"n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True} | dict.fromkeys(
    ("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.1
)
"""Settings that a ``config.json`` may lack."""


def fitted(model: GPT, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Hugging Face's weights under our names and in our layout. ``model`` may be on the meta device.

    Raises:
        CheckpointError: a tensor is missing, unknown, of another shape, of integers or not finite, or a tied head is
            another matrix.
    """
    left = {n if n.startswith("lm_head.") else f"transformer.{n.removeprefix('transformer.')}": t
            for n, t in weights.items()}  # fmt: skip
    left = {n: t for n, t in left.items() if not _BUFFERS.fullmatch(n)}
    head = left.pop("lm_head.weight", None) if model.config.tied else None
    if head is not None and not torch.equal(head, left.get("transformer.wte.weight", head)):
        raise CheckpointError(
            "lm_head.weight differs from transformer.wte.weight, but config.json does not say "
            "tie_word_embeddings=false: it is not clear which of the two is the model's head"
        )
    ours = {}
    for name, p in model.named_parameters():
        theirs = _NAMES["gpt2"].of(name)
        if theirs not in left:
            raise CheckpointError(
                f"the Hugging Face weights have no {theirs}: is this a GPT-2 of {model.config.layers} layers?"
            )
        tensor = left.pop(theirs)
        ours[name] = tensor = tensor.t() if theirs.endswith(_TRANSPOSED) and tensor.dim() == 2 else tensor
        if tensor.shape != p.shape:
            raise CheckpointError(f"{theirs} has shape {tuple(tensor.shape)}, this model's is {tuple(p.shape)}")
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise CheckpointError(f"{theirs} ({tensor.dtype}): expected finite floating-point numbers")
    if left:
        raise CheckpointError(f"the Hugging Face weights have unknown tensors: {', '.join(sorted(left)[:4])}")
    return ours


def query_factor(c: ModelConfig, layer: int, settings: Mapping[str, Any]) -> float:
    """Return the factor of the queries of ``layer`` by which our scaling of scores, 1 / sqrt(K), gives theirs."""
    factor = 1.0 if settings.get("scale_attn_weights", True) else math.sqrt(c.d_model // c.heads)
    return factor / (layer + 1) if settings.get("scale_attn_by_inverse_layer_idx", False) else factor


def model_config(theirs: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    """Return the model settings and the vocabulary of a ``config.json``.

    Raises:
        CheckpointError: it describes no GPT-2, or has a setting that our model lacks.
    """
    known = {v: k for k, v in _ACTIVATIONS.items()} | {"gelu_new": "gelu_tanh"}
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
    given = {**_USUAL, **theirs}
    model = {ours: given[name] for name, ours in _NAMES["gpt2"].settings.items() if name in given}
    model |= {"activation": known[activation], "tied": given["tie_word_embeddings"], "vocab_size": given["vocab_size"]}
    try:
        config = load_config({"mode": "gpt", "experiment": "gpt/imported", "model": model})
    except ConfigError as error:
        raise CheckpointError(f"config.json describes no valid GPT-2: {error}") from error
    assert isinstance(config, GptConfig)
    return replace(config.model, vocab_size=None), theirs["vocab_size"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{text[:77]}..."


# Export: the Hugging Face form of a model, and its weights and ``config.json`` in this form.
#
# GPT-NeoX (rotary) is written without its parallel residual, MPT (ALiBi) without biases. MPT always computes the exact
# GELU. For another activation the folder contains a model class, which ``from_pretrained(folder,
# trust_remote_code=True)`` uses. Without that flag ``transformers`` refuses the folder.

MPT_MODULE: Final = "modeling_mpt_activation"
"""Module of the model class that is written beside the weights of a model with another activation."""


def form_of(config: ModelConfig) -> str:
    """Return ``gpt2`` (learned positions), ``neox`` (rotary) or ``mpt`` (ALiBi).

    Raises:
        ConfigError: the form does not support an option of the model.
    """
    form = _FORMS[config.positions]
    needed: dict[str, Any] = {"norm": "pre", "norm_type": "layernorm", "qk_norm": False, "kv_heads": None, "plugin": {}}
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
    if form != "mpt" and not model.config.bias:
        for name, tensor in list(ours.items()):
            layer = name.removesuffix(".weight")
            if layer == "final_norm" or layer.startswith("blocks."):
                ours[f"{layer}.bias"] = torch.zeros(len(tensor), dtype=tensor.dtype)
    if form == "neox":  # this form sorts the rows of queries, keys and values by head
        for name in (name for name in ours if ".attention.qkv." in name):
            by_part = ours[name].unflatten(0, (3, model.config.heads, -1))
            ours[name] = by_part.transpose(0, 1).flatten(0, 2).contiguous()
    theirs = {_NAMES[form].of(name): tensor for name, tensor in ours.items()}
    turned = _TRANSPOSED if form == "gpt2" else ()
    return {n: t.t().contiguous() if n.endswith(turned) else t for n, t in theirs.items()}


def hf_config(model: GPT, end: int | None = None) -> dict[str, Any]:
    """Return the ``config.json`` of ``model``. ``end`` is the end-of-text id, or None.

    None is written, too. Otherwise ``transformers`` takes a default id, which the vocabulary may lack.

    Raises:
        ConfigError: no form supports an option of the model.
    """
    c, form = model.config, form_of(model.config)
    own = {**_NAMES[form].always, **{theirs: getattr(c, ours) for theirs, ours in _NAMES[form].settings.items()}}
    if form == "gpt2":
        own["activation_function"] = "gelu_new" if c.activation == "gelu_tanh" else c.activation
    elif form == "neox":
        own["hidden_act"] = _ACTIVATIONS[c.activation]
    elif c.activation != "gelu":
        own |= {
            "architectures": ["MptActivationForCausalLM"],
            "model_type": "mpt_activation",
            "hidden_act": _ACTIVATIONS[c.activation],
            "auto_map": {
                "AutoConfig": f"{MPT_MODULE}.MptActivationConfig",
                "AutoModelForCausalLM": f"{MPT_MODULE}.MptActivationForCausalLM",
            },
        }
    dtype = str(model.token_embedding.weight.dtype).removeprefix("torch.")
    return own | {
        "vocab_size": model.vocab_size,
        "initializer_range": c.init_std(),
        "tie_word_embeddings": c.tied,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


# A model folder of ``transformers``: written in one file, read in one file or shards.

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def save_hf_folder(folder: str | Path, model: GPT, tokenizer: Tokenizer | None = None) -> None:
    """Write a folder for ``AutoModelForCausalLM`` and, with a ``tokenizer``, for ``AutoTokenizer``.

    Raises:
        ConfigError: no form of Hugging Face's supports one of the model's options.
        CheckpointError: the folder cannot be written.
    """
    folder, weights = Path(folder), to_hf(model)
    config = hf_config(model, tokenizer.eot_id if tokenizer is not None else None)
    texts = {"config.json": json.dumps(config, indent=2) + "\n"}
    if "auto_map" in config:
        texts[f"{MPT_MODULE}.py"] = files("grok.gpt").joinpath(f"{MPT_MODULE}.py.txt").read_text(encoding="utf-8")
    if tokenizer is not None:
        texts |= tokenizer_files(tokenizer, model.config.context)
    with in_words(CheckpointError, f"{folder} cannot be written: give another folder", OSError, SafetensorError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def load_hf_folder(folder: str | Path) -> GPT:
    """Return the GPT-2 in a Hugging Face folder, in float32 on the CPU.

    Raises:
        CheckpointError: files are missing or damaged, or the model is no GPT-2.
    """
    folder = Path(folder)
    settings = _read_json(folder / "config.json")
    config, vocab_size = model_config(settings)
    weights = read_weights(folder)
    if config.layers > len(weights):
        raise CheckpointError(f"config.json says n_layer={config.layers}, but there are {len(weights)} tensors only")
    with unallocated():
        model = GPT(config, vocab_size=vocab_size)
    ours = fitted(model, weights)  # the shapes are checked before memory is allocated
    model = model.to_empty(device="cpu")
    if config.tied:
        model.head.weight = model.token_embedding.weight
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(ours[name])
            if ".attention.qkv." in name:
                p[: config.d_model] *= query_factor(config, int(name.split(".")[1]), settings)
    return model


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a folder: those of its one file, or of the shards that its index names.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    if (folder / WEIGHTS).is_file():
        return _tensors(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        if any(folder.glob("pytorch_model*.bin")):
            raise CheckpointError(
                f"{folder} has its weights as .bin files, which are pickles and are not read here. If you trust them: "
                f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained(DIR), and give DIR"
            )
        raise CheckpointError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}: give a folder that `save_pretrained` wrote, as safetensors"
        )
    shard_of = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(shard_of, dict) or not all(map(is_plain, shard_of.values())):
        raise CheckpointError(f"{folder / INDEX} does not say which file has which tensor")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shard_of.values())):
        tensors |= _tensors(folder / shard)
    missing = sorted(shard_of.keys() - tensors.keys())
    if missing:
        raise CheckpointError(f"{folder / INDEX} names {missing[0]}, but {shard_of[missing[0]]} lacks it")
    return tensors


def _tensors(file: Path) -> dict[str, Tensor]:
    with in_words(CheckpointError, f"{file} cannot be read", OSError, SafetensorError):
        return read_tensors(file)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file.parent} has no {file.name}: give a folder that `save_pretrained` wrote")
    with in_words(CheckpointError, f"{file} cannot be read", OSError, ValueError):
        return read_json_object(file, follow=True)


# Initial weights of a run from a folder of ``transformers``: ``init_from=FOLDER``.

TRAINING: Final = frozenset(
    {"dropout", "dropout_embedding", "dropout_residual", "dropout_attention", "init", "init_residual", "qk_scaling",
     "softmax", "vocab_multiple"}
)  # fmt: skip
"""Settings of the model that do not depend on its weights: the command decides them."""


Source = tuple[ModelConfig, str]
"""A folder's model: its settings and the hash of its weights."""


def read_source(folder: str) -> tuple[Source, GPT]:
    """Return settings and hash of the model in ``folder``, and the model in float32 on the CPU.

    Raises:
        CheckpointError: the folder has no GPT-2, or it is damaged.
    """
    model = load_hf_folder(folder)
    settings = replace(model.config, vocab_size=model.vocab_size)
    return (settings, weights_hash(dict(model.named_parameters()))), model


def with_source(config: GptConfig, source: Source) -> GptConfig:
    """Return ``config`` with the model of ``source``: settings that the command does not give are the folder's.

    Raises:
        ConfigError: the command or its preset gives another value to a setting of the model.
    """
    usual, model = ModelConfig(), config.model
    given, sha256 = source
    wrong, taken = [], {}
    for name in (f.name for f in fields(ModelConfig) if f.name not in TRAINING):
        own, theirs = getattr(model, name), getattr(given, name)
        shorter = name == "context" and own < theirs and own != usual.context
        if own == theirs or shorter:
            continue
        if config.experiment is None and own == getattr(usual, name):
            taken[name] = theirs
            if name == "context" and own < theirs:
                warnings.warn(
                    f"init_from={config.init_from}: model.context={theirs} is the folder's; {own} is the default and "
                    "counts as not given, so a shorter context must be another number",
                    stacklevel=2,
                )
        else:
            wrong.append(f"model.{name}={literal(own)} (the folder's: {literal(theirs)})")
    if wrong:
        whose = "" if config.experiment is None else f" and experiment={config.experiment}"
        raise ConfigError(
            f"init_from={config.init_from}{whose}: the command describes another model, {', '.join(wrong)}; leave out "
            "these settings and experiment=... (model.context may be shorter)"
        )
    if config.seeds.layers:
        raise ConfigError(
            f"seeds.layers with init_from={config.init_from}: no weights are drawn; leave one of them out"
        )
    if config.init_hash not in (None, sha256):
        raise ConfigError(
            f"init_from={config.init_from} holds weights {sha256[:12]}, expected "
            f"init_hash={config.init_hash[:12]}: give the folder that has them"
        )
    return replace(
        config,
        experiment=config.experiment or "gpt/imported",
        model=replace(model, **taken),
        init_hash=sha256,
    )


def initial_weights(config: GptConfig, model: GPT) -> dict[str, Tensor]:
    """Return the weights in the folder ``config.init_from`` by name, in the shapes of ``model``.

    ``model`` may be on the meta device. A shorter context takes the first positions. Rows that pad the
    vocabulary are 0.

    Raises:
        CheckpointError: the weights are missing, or changed after the run was named.
    """
    assert config.init_from is not None
    (_, sha256), theirs = read_source(config.init_from)
    if sha256 != config.init_hash:
        raise CheckpointError(
            f"init_from={config.init_from} holds other weights ({sha256[:12]}) than when this run was named "
            f"({str(config.init_hash)[:12]}): put the folder back, or give the command again"
        )
    weights, fitting = dict(theirs.named_parameters()), {}
    for name, p in model.named_parameters():
        own = weights[name].detach()
        fitting[name] = torch.zeros(p.shape, dtype=own.dtype)
        rows = min(len(own), len(p))
        fitting[name][:rows] = own[:rows]
    return fitting
