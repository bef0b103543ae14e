"""A model folder of ``transformers``: written in one file, read in one file or shards, also as initial weights."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from grok.checkpoints import read_tensors
from grok.config.gpt import GptConfig, ModelConfig
from grok.config.values import literal
from grok.errors import CheckpointError, ConfigError, in_words
from grok.gpt.hf import forms
from grok.gpt.hf.forms import fitted, hf_config, load_hf, model_config, to_hf
from grok.gpt.model import GPT
from grok.numerics import unallocated
from grok.runs import weights_hash
from grok.text.tokenizers import Tokenizer, tokenizer_files
from grok.untrusted import is_plain, read_json_object

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
    files = {"config.json": json.dumps(config, indent=2) + "\n"}
    if "auto_map" in config:
        files[f"{forms.MPT_MODULE}.py"] = forms.MPT_CODE
    if tokenizer is not None:
        files |= tokenizer_files(tokenizer, model.config.context)
    with in_words(CheckpointError, f"{folder} cannot be written: give another folder", OSError, SafetensorError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
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
    fitted(model, weights)  # the shapes are checked before memory is allocated
    model = model.to_empty(device="cpu")
    if config.tied:
        model.head.weight = model.token_embedding.weight
    load_hf(model, weights, settings)
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


@dataclass(frozen=True, slots=True)
class Source:
    """A folder's model: its settings and the hash of its weights."""

    model: ModelConfig
    sha256: str


def read_source(folder: str) -> tuple[Source, GPT]:
    """Return settings and hash of the model in ``folder``, and the model in float32 on the CPU.

    Raises:
        CheckpointError: the folder has no GPT-2, or it is damaged.
    """
    model = load_hf_folder(folder)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    settings = replace(model.config, vocab_size=model.vocab_size)
    return Source(settings, weights_hash(weights)), model


def with_source(config: GptConfig, source: Source) -> GptConfig:
    """Return ``config`` with the model of ``source``: settings that the command does not give are the folder's.

    Raises:
        ConfigError: the command or its preset gives another value to a setting of the model.
    """
    usual, model = ModelConfig(), config.model
    wrong, taken = [], {}
    for name in (f.name for f in fields(ModelConfig) if f.name not in TRAINING):
        own, theirs = getattr(model, name), getattr(source.model, name)
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
    if config.init_hash not in (None, source.sha256):
        raise ConfigError(
            f"init_from={config.init_from} holds weights {source.sha256[:12]}, expected "
            f"init_hash={config.init_hash[:12]}: give the folder that has them"
        )
    return replace(
        config,
        experiment=config.experiment or "gpt/imported",
        model=replace(model, **taken),
        init_hash=source.sha256,
    )


def initial_weights(config: GptConfig, model: GPT) -> dict[str, Tensor]:
    """Return the weights in the folder ``config.init_from`` by name, in the shapes of ``model``.

    ``model`` may be on the meta device. A shorter context takes the first positions. Rows that pad the
    vocabulary are 0.

    Raises:
        CheckpointError: the weights are missing, or changed after the run was named.
    """
    assert config.init_from is not None
    source, theirs = read_source(config.init_from)
    if source.sha256 != config.init_hash:
        raise CheckpointError(
            f"init_from={config.init_from} holds other weights ({source.sha256[:12]}) than when this run was named "
            f"({str(config.init_hash)[:12]}): put the folder back, or give the command again"
        )
    weights, fitting = dict(theirs.named_parameters()), {}
    for name, p in model.named_parameters():
        own = weights[name].detach()
        fitting[name] = torch.zeros(p.shape, dtype=own.dtype)
        rows = min(len(own), len(p))
        fitting[name][:rows] = own[:rows]
    return fitting
