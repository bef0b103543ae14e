"""Tensors in safetensors files: written plain, read whole, described and hashed by their bytes."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grok.errors import CheckpointError


def plain_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return detached, contiguous CPU tensors that share no memory (tied weights are saved twice).

    Raises:
        CheckpointError: a name that the file format keeps for itself.
    """
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        if name == "__metadata__":
            raise CheckpointError("a tensor named '__metadata__' cannot be saved: the name belongs to the file format")
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage().data_ptr()
        if own.numel() and (memory in seen or own.untyped_storage().nbytes() != own.nbytes):
            own = own.clone()
        seen.add(memory)
        plain[name] = own
    return plain


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write plain ``tensors`` to a file.

    Raises:
        OSError: the disk refuses.
    """
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:  # its text has the operating system's error number
        number = re.search(r"os error (\d+)", str(error))
        raise (OSError(int(number[1]), str(error)) if number else OSError(str(error))) from error


def load_tensors(path: Path, layout: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in the order of ``layout``, which is what :func:`layout_of` says of them.

    Raises:
        CheckpointError: they cannot be read, or are others.
    """
    try:
        # cloned: loaded tensors are mapped from the file, which may be removed while the run uses them
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"its tensors cannot be read: {error}") from error
    present = layout_of(tensors)
    if present != layout:
        wrong = sorted(n for n in present.keys() | layout.keys() if present.get(n) != layout.get(n))
        raise CheckpointError(f"its tensors differ from its manifest ({', '.join(wrong[:3])})")
    return {name: tensors[name] for name in layout}


def layout_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Return dtype and shape by name."""
    return {name: {"dtype": _dtype(t), "shape": list(t.shape)} for name, t in tensors.items()}


def content_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the names."""
    digest = hashlib.sha256(json.dumps(layout_of(tensors), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_shards(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors whose shards are in ``folder``, joined.

    Raises:
        CheckpointError: the files cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        about = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
            for name, tensor in about.items()
            if isinstance(tensor, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that only one process reads
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except (OSError, ValueError, KeyError, SafetensorError, CheckpointException) as error:
        raise CheckpointError(f"its shards cannot be read: {error}") from error
    return tensors


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
