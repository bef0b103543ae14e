"""A model folder of ``transformers``: it is written in one file, with the tokeniser, and read in one file or shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grok.errors import CheckpointError
from grok.gpt.hf import mpt
from grok.gpt.hf.forms import hf_config, to_hf
from grok.gpt.hf.gpt2 import fitted, load_hf, model_config
from grok.gpt.model import GPT
from grok.numerics.unallocated import unallocated
from grok.text.export import tokenizer_files
from grok.text.tokenizers import Tokenizer
from grok.untrusted import is_plain, read_json_object

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


def save_hf_folder(
    folder: str | Path, model: GPT, tokenizer: Tokenizer | None = None, tokenizer_too: bool = True
) -> None:
    """Write a folder for ``AutoModelForCausalLM`` and, with a ``tokenizer``, for ``AutoTokenizer``.

    With ``tokenizer_too=False`` only the tokeniser's end-of-text id is written, into ``config.json``.

    Raises:
        ConfigError: no form of Hugging Face's supports one of the model's options.
        DataError: the tokeniser cannot be written in Hugging Face's form.
        CheckpointError: the folder cannot be written.
    """
    folder, weights = Path(folder), to_hf(model)
    config = hf_config(model, tokenizer.eot_id if tokenizer is not None else None)
    files = {"config.json": _json(config)}
    if "auto_map" in config:
        files[f"{mpt.MODULE}.py"] = mpt.CODE
    if tokenizer is not None and tokenizer_too:
        files |= tokenizer_files(tokenizer, model.config.context)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be written ({error}): give another folder") from error


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
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read ({error})") from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file.parent} has no {file.name}: give a folder that `save_pretrained` wrote")
    try:
        return read_json_object(file, follow=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error})") from error


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
