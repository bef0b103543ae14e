"""Tensors in safetensors files: written plain, read whole, described and hashed by their bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grok.errors import CheckpointError, CheckpointUnreadable, disk_remedy

NO_SUCH_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP)
"""Error numbers that say that there is no regular file of the name; all others may pass, and prove nothing."""

OUTSIDE: Final = (OSError, MemoryError, RuntimeError)
"""Errors for reasons outside of a file; RuntimeError is torch's when memory is short."""


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
    except SafetensorError as error:
        number = _number(error)
        raise (OSError(str(error)) if number is None else OSError(number, str(error))) from error


def _number(error: Exception) -> int | None:
    """Return the operating system's error number; safetensors has it in the text of its errors only."""
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT
    number = re.search(r"os error (\d+)", str(error))
    return error.errno if isinstance(error, OSError) and error.errno else int(number[1]) if number else None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of reading a checkpoint's file or folder into one of those below.

    Raises:
        CheckpointUnreadable: for a reason outside of it, for example the file server or too little memory.
        CheckpointError: it is missing, or its content is no checkpoint's.
    """
    try:
        yield
    except (*OUTSIDE, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        number = _number(error)
        outside = isinstance(error, OUTSIDE) or number is not None
        if not outside or number in NO_SUCH_FILE:
            raise CheckpointError(f"its files cannot be read ({error})") from error
        reason = disk_remedy(number, str(error) or "not enough memory")
        raise CheckpointUnreadable(f"{path} cannot be read now ({reason}); it was not removed") from error


def load_tensors(path: Path, layout: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in the order of ``layout``, which is what :func:`layout_of` says of them.

    Raises:
        CheckpointUnreadable: they cannot be read at the moment.
        CheckpointError: they are missing, or others.
    """
    with reading(path):
        # cloned: loaded tensors are mapped from the file, which may be removed while the run uses them
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
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
    """Return the tensors whose shards are in ``folder``, joined. The caller has compared the files with their hashes.

    Raises:
        CheckpointUnreadable: they cannot be read at the moment.
        CheckpointError: they are missing, or others.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    with reading(folder):
        about = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(tensor.size, dtype=tensor.properties.dtype)
            for name, tensor in about.items()
            if isinstance(tensor, TensorStorageMetadata)
        }
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that only one process reads
                load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        except CheckpointException as error:
            causes = [cause for cause, _ in error.failures.values() if isinstance(cause, Exception)]
            raise (causes[0] if causes else RuntimeError(str(error))) from error
    return tensors


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
