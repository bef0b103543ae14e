"""Parts of checkpoints that several checkpoints of a run have in common, each on the disk once.

A part is some of a checkpoint's tensors: a state that a rollback may return to, or the best weights so far. It never
changes. Its folder is named by the hash of its content, and is in the folder of every checkpoint that has the part;
the files in it are hard links to the same bytes. The file system removes them with the last link. So there is no
count of references to keep, and a kill at any moment leaves nothing over. On a file system without hard links every
checkpoint has a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from grok.files import share_file
from grok.tensors import content_hash, file_hash, layout_of, load_tensors, plain_tensors, save_tensors
from grok.untrusted import is_folder, is_plain, read_json_object

MANIFEST: Final = "manifest.json"
"""File of a checkpoint that lists its other files with their hashes."""
TENSORS: Final = "tensors.safetensors"
KINDS: Final = ("parts", "parts_in_shares")
"""Keys of a manifest: parts by prefix of their tensors' names; those of one process, and those sharded over several."""

SPARE: Final = ("best.", "average.")
"""Ends of the prefixes of parts that training does not need: where only these are damaged, a load leaves them out."""

Entry = dict[str, Any]
"""What a manifest says of a part: its ``folder``, its ``files`` with their SHA-256, the layout of whole ``tensors``."""


def split(tensors: Mapping[str, torch.Tensor], parts: Iterable[str]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of each part by the prefix of their names, which they lose; all others under ``""``.

    A name belongs to the longest prefix that it has.
    """
    longest_first = sorted(parts, key=len, reverse=True)
    groups: dict[str, dict[str, torch.Tensor]] = {"": {}}
    for name, tensor in tensors.items():
        part = next((part for part in longest_first if name.startswith(part)), "")
        groups.setdefault(part, {})[name.removeprefix(part)] = tensor
    return groups


def folder_of(content: str) -> str:
    """Return the name of the folder of a part with this hash of its content."""
    return f"part-{content[:32]}"


class EarlierParts:
    """The parts of a run's earlier checkpoints, which the next one may have, too."""

    def __init__(self, checkpoints: Iterable[Path]) -> None:
        """``checkpoints``: their folders, newest first."""
        self.checkpoints = list(checkpoints)

    def share(self, part: str, checkpoint: Path) -> dict[str, str] | None:
        """Give the new ``checkpoint`` the folder ``part`` of an earlier one; None where none has it intact.

        Return its files with their SHA-256. They are read for that, so that damage to an earlier checkpoint does not
        reach the new one.
        """
        shared = (_share(earlier / part, checkpoint / part) for earlier in self.checkpoints)
        return next((files for files in shared if files is not None), None)


def _share(source: Path, target: Path) -> dict[str, str] | None:
    if not is_folder(source):
        return None
    try:
        manifest = read_json_object(source.parent / MANIFEST, follow=True)
        entries = [entry for kind in KINDS for entry in manifest.get(kind, {}).values()]
        files: dict[str, str] = next(entry["files"] for entry in entries if entry["folder"] == source.name)
        target.mkdir()
        shared = all(is_plain(name) and share_file(source / name, target / name) for name in files)
        if shared and has_files(target, files):
            return files
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        pass
    shutil.rmtree(target, ignore_errors=True)
    return None


def write_parts(
    groups: Mapping[str, Mapping[str, torch.Tensor]], checkpoint: Path, earlier: EarlierParts
) -> dict[str, Entry]:
    """Give the folder ``checkpoint`` the parts in ``groups``; return what its manifest says of them.

    Raises:
        OSError: the disk refuses.
    """
    entries = {}
    for prefix, tensors in groups.items():
        plain = plain_tensors(tensors)
        folder = checkpoint / folder_of(content_hash(plain))
        shared = None if folder.exists() else earlier.share(folder.name, checkpoint)
        if shared is None and not folder.exists():
            folder.mkdir()
            save_tensors(plain, folder / TENSORS)
        entry = entry_of(folder) if shared is None else {"folder": folder.name, "files": shared}
        entries[prefix] = {**entry, "tensors": layout_of(plain)}
    return entries


def entry_of(folder: Path) -> Entry:
    """Return what a manifest says of a written part."""
    return {"folder": folder.name, "files": {file.name: file_hash(file) for file in sorted(folder.iterdir())}}


def read_parts(checkpoint: Path, entries: Mapping[str, Entry]) -> dict[str, torch.Tensor]:
    """Return the tensors of all parts, under their names in the checkpoint.

    Raises:
        CheckpointError: a file cannot be read, or holds something else.
    """
    tensors: dict[str, torch.Tensor] = {}
    for prefix, entry in entries.items():
        own = load_tensors(checkpoint / entry["folder"] / TENSORS, entry["tensors"])
        tensors |= {prefix + name: tensor for name, tensor in own.items()}
    return tensors


def damaged_parts(checkpoint: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the prefixes of the parts that are not in the folder as they were written; ``""``: it has others, too."""
    entries = [(prefix, entry) for kind in KINDS for prefix, entry in manifest.get(kind, {}).items()]
    others = {path.name for path in checkpoint.glob(folder_of("*"))} - {entry["folder"] for _, entry in entries}
    damaged = [prefix for prefix, entry in entries if not has_files(checkpoint / entry["folder"], entry["files"])]
    return [*([""] if others else []), *dict.fromkeys(damaged)]


def has_files(folder: Path, files: Mapping[str, str]) -> bool:
    """Return whether ``folder`` holds these files with these SHA-256, and no others; links are none of them."""
    if not is_folder(folder) or {file.name for file in folder.iterdir()} != set(files):
        return False
    return all(not (folder / name).is_symlink() and file_hash(folder / name) == sha for name, sha in files.items())
