"""A run's checkpoints and kept weights on the disk: safetensors with a JSON manifest, no pickle.

```
checkpoints/<run_id>/
  00000007-step-3000/   a checkpoint: tensors.safetensors, manifest.json; of tensors that are sharded over
                        processes also shards/*.safetensors, written by all of them
    part-3f2a.../       tensors that other checkpoints of the run have, too: the same files (grok.checkpoints)
  weights-final/        kept weights, the same two files
```
A folder is written under another name and then renamed, so it exists whole or not at all.
The manifest has every tensor's dtype and shape and the SHA-256 of the tensor file. Loading
checks all of it, uses the newest intact checkpoint, and warns of damaged ones. A checkpoint of which
only the best or averaged weights are damaged is loaded without them. One that cannot be read at the
moment, or has a newer format, is not damaged: the load stops, and nothing is removed. So does a load that finds
the weights of another run (``refuse_other_run``).
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from grok.errors import CheckpointError, CheckpointUnreadable, OtherRunsCheckpoint, disk_remedy
from grok.files import clear_unfinished, discard_folder, disk_errors, is_unfinished, share_file, write_folder
from grok.records import Checkpoint, joined_tags, tags_of
from grok.untrusted import file_hash, is_folder, is_plain, open_file, plain_name, read_json_object, refuse_links

# Tensors in safetensors files: written plain, read whole, described and hashed by their bytes.

NO_SUCH_FILE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP)
"""Error numbers that say that there is no regular file of the name; all others may pass, and prove nothing."""

OUTSIDE: Final = (OSError, MemoryError, RuntimeError)
"""Errors for reasons outside of a file; RuntimeError is torch's when memory is short."""


def plain_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return detached, contiguous CPU tensors that share no memory (tied weights are saved twice).

    Raises:
        CheckpointError: a name that the file format keeps for itself: the file could not be read again.
    """
    if "__metadata__" in tensors:
        raise CheckpointError("a tensor named '__metadata__' cannot be saved: the name belongs to the file format")
    plain: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
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


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file.

    Raises:
        OSError: it cannot be read, or is no file: a pipe would be waited for.
        SafetensorError: its content is no safetensors'.
    """
    open_file(path, follow=True).close()
    return load_file(path)


def load_tensors(path: Path, layout: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in the order of ``layout``, which is what :func:`layout_of` says of them.

    Raises:
        CheckpointUnreadable: they cannot be read at the moment.
        CheckpointError: they are missing, or others.
    """
    with reading(path):
        # cloned: loaded tensors are mapped from the file, which may be removed while the run uses them
        tensors = {name: tensor.clone() for name, tensor in read_tensors(path).items()}
    present = layout_of(tensors)
    if present != layout:
        wrong = sorted(n for n in present.keys() | layout.keys() if present.get(n) != layout.get(n))
        raise CheckpointError(f"its tensors differ from its manifest ({', '.join(wrong[:3])})")
    return {name: tensors[name] for name in layout}


def layout_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """Return dtype and shape by name."""
    return {name: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for name, t in tensors.items()}


def content_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, whatever the order of the names."""
    digest = hashlib.sha256(json.dumps(layout_of(tensors), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


# Parts of checkpoints that several checkpoints of a run have in common, each on the disk once.
#
# A part is some of a checkpoint's tensors: a state that a rollback may return to, or the best weights so far. It never
# changes. Its folder is named by the hash of its content, and is in the folder of every checkpoint that has the part;
# the files in it are hard links to the same bytes. The file system removes them with the last link. So there is no
# count of references to keep, and a kill at any moment leaves nothing over. On a file system without hard links every
# checkpoint has a copy.

MANIFEST: Final = "manifest.json"
"""File of a checkpoint that lists its other files with their hashes."""
TENSORS: Final = "tensors.safetensors"
KINDS: Final = ("parts", "parts_in_shares")
"""Keys of a manifest: parts by prefix of their tensors' names; those of one process, and those sharded over several."""

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


def share_part(part: str, checkpoint: Path, earlier: Iterable[Path]) -> dict[str, str] | None:
    """Give the new ``checkpoint`` the folder ``part`` of an ``earlier`` one; None where none has it intact.

    Return its files with their SHA-256. They are read for that, so that damage to an earlier checkpoint does not
    reach the new one.
    """
    target = checkpoint / part
    for source in (other / part for other in earlier if is_folder(other / part)):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
            entries = _entries(read_json_object(source.parent / MANIFEST, follow=True))
            files: dict[str, str] = next(entry["files"] for entry in entries if entry["folder"] == part)
            target.mkdir()
            shared = all(is_plain(name) and share_file(source / name, target / name) for name in files)
            if shared and has_files(target, files):
                return files
        shutil.rmtree(target, ignore_errors=True)
    return None


def _entries(manifest: Mapping[str, Any]) -> list[Entry]:
    return [entry for kind in KINDS for entry in manifest.get(kind, {}).values()]


def write_parts(
    groups: Mapping[str, Mapping[str, torch.Tensor]], checkpoint: Path, earlier: Sequence[Path]
) -> dict[str, Entry]:
    """Give the folder ``checkpoint`` the parts in ``groups``; return what its manifest says of them.

    ``earlier``: the folders of the run's other checkpoints, newest first, which may have some of them.

    Raises:
        OSError: the disk refuses.
    """
    entries = {}
    for prefix, tensors in groups.items():
        plain = plain_tensors(tensors)
        folder = checkpoint / folder_of(content_hash(plain))
        shared = None if folder.exists() else share_part(folder.name, checkpoint, earlier)
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


def parts_are_whole(checkpoint: Path, manifest: Mapping[str, Any]) -> bool:
    """Return whether the folder has the parts of its manifest as they were written, and no others."""
    entries = _entries(manifest)
    others = {path.name for path in checkpoint.glob(folder_of("*"))} - {entry["folder"] for entry in entries}
    return not others and all(has_files(checkpoint / entry["folder"], entry["files"]) for entry in entries)


def has_files(folder: Path, files: Mapping[str, str]) -> bool:
    """Return whether ``folder`` holds these files with these SHA-256, and no others; links are none of them."""
    if not is_folder(folder) or {file.name for file in folder.iterdir()} != set(files):
        return False
    return all(not (folder / name).is_symlink() and file_hash(folder / name) == sha for name, sha in files.items())


# A run's checkpoints and kept weights on the disk: safetensors with a JSON manifest, no pickle.

FORMAT: Final = 2
SHARDS: Final = "shards"
CHECKPOINTS: Final = "checkpoints"
_STEP: Final = re.compile(r"(\d{8,})-step-(\d+)")
_KIND_AND_KEPT: Final = CheckpointError, "what was saved before is unchanged"
"""What errors of the disk become here."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was left out because its files differ from its manifest."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that weights are of, as far as it is known."""

    run_id: str | None
    trajectory_id: str | None = None
    numerics: str | None = None
    """The tags of all processes that computed them, in order, as in a run's row."""

    def known(self) -> dict[str, str]:
        """Return what is known, as a manifest says it."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.known().items())


def refuse_other_run(path: Path, manifest: Mapping[str, Any], of: Origin | None) -> None:
    """Compare the run that the ``manifest`` of ``path`` names with ``of``; older manifests have only its ``run_id``.

    ``of``: None: the run that a store's folder is named by. A checkpoint was made on the way to the expected row, so
    the numerics tags of the row begin with its own.

    Raises:
        OtherRunsCheckpoint: they differ; says both.
    """
    home = path.parent
    expected = of or Origin(home.name if home.parent.name == CHECKPOINTS else None)
    actual = Origin(manifest.get("run_id"), manifest.get("trajectory_id"), manifest.get("numerics"))
    pairs = (actual.run_id, expected.run_id), (actual.trajectory_id, expected.trajectory_id)
    same = all(None in pair or pair[0] == pair[1] for pair in pairs)
    if actual.numerics and expected.numerics:
        own = tags_of(actual.numerics)
        same &= tags_of(expected.numerics)[: len(own)] == own
    if not same:
        raise OtherRunsCheckpoint(
            f"{path} is of another run: expected {expected}; found {actual}. Nothing was removed: move it to the "
            "folder of its own run, or out of the store, and give the command again"
        )


def run_folder(store: str | Path, run_id: str) -> Path:
    """Return ``<store>/checkpoints/<run_id>``.

    Raises:
        CheckpointError: ``run_id`` is not a plain name, so the path could leave the store.
    """
    return Path(store) / CHECKPOINTS / plain_name(run_id, "run_id", CheckpointError)


def save_checkpoint(
    folder: str | Path,
    checkpoint: Checkpoint,
    keep: int | None = 1,
    keep_every: int = 0,
    keep_steps: Collection[int] = (),
) -> Path:
    """Write ``checkpoint`` below the run's ``folder`` and return its path; then remove older ones.

    The newest ``keep`` checkpoints (None: all) and those of every ``keep_every``-th step and
    of ``keep_steps`` stay. The newest is the one saved last, whatever its step: after a rollback that of the branch.

    Raises:
        CheckpointError: the disk refuses (existing checkpoints are unchanged), or the state is not
            plain JSON (text keys, no tuples), so that it would not be equal after loading.
    """
    folder = Path(folder)
    try:
        comes_back = repr(json.loads(json.dumps(checkpoint.state))) == repr(checkpoint.state)
    except (TypeError, ValueError):
        comes_back = False
    if not comes_back:
        raise CheckpointError(f"the state at step {checkpoint.step} is not JSON-serialisable: expected plain values")
    serial = max((s for s, _, _ in _saved(folder)), default=0) + 1
    target = folder / f"{serial:08d}-step-{checkpoint.step}"
    origin = Origin(
        checkpoint.run_id, checkpoint.trajectory_id, joined_tags(checkpoint.state.get("numerics", ())) or None
    )
    about = {**origin.known(), "step": checkpoint.step, "state": checkpoint.state}
    _commit(target, split(checkpoint.tensors, checkpoint.parts), about, checkpoint.shards)
    if keep is not None:
        for _, step, old in _saved(folder)[keep:]:
            if not _for_good(step, keep_every, keep_steps):
                _discard(old, checkpoint.run_id)
    return target


def load_checkpoint(
    folder: str | Path, step: int | None = None, *, whole: bool = True, of: Origin | None = None
) -> Checkpoint:
    """Return the newest intact checkpoint of the run's ``folder`` (or that of ``step``), on the CPU.

    ``of``: the run that it must be of; None: the one that a store's folder is named by.
    Tensors have their saved dtypes and shapes. Sharded tensors are joined; with ``whole=False`` they are not read, and
    ``shards`` is their folder.

    Raises:
        OtherRunsCheckpoint: it is of another run; older ones are not tried.
        CheckpointUnreadable: one that may be intact cannot be read; older ones are not tried.
        CheckpointError: no checkpoint is intact.
    """
    folder = Path(folder)
    candidates = [path for _, at, path in _saved(folder) if step in (None, at)]
    for path in candidates:
        try:
            manifest, tensors = _load(path, of)
            # the folders of shards by prefix of their tensors' names
            shards = {"": path / SHARDS} if manifest.get("shards") else {}
            shards |= {prefix: path / e["folder"] for prefix, e in manifest.get("parts_in_shares", {}).items()}
            if whole:
                for prefix, folder_of_shards in shards.items():
                    tensors |= {prefix + name: tensor for name, tensor in read_shards(folder_of_shards).items()}
                shards = {}
        except CheckpointError as error:
            warnings.warn(f"left out {path}: {error}", DamagedCheckpointWarning, stacklevel=2)
            continue
        return Checkpoint(
            run_id=manifest["run_id"],
            trajectory_id=manifest.get("trajectory_id"),
            step=manifest["step"],
            tensors=tensors,
            state=manifest["state"],
            parts=tuple(manifest.get("parts", {})),
            shards=shards or None,
        )
    missing = f"no checkpoint in {folder}" if step is None else f"no checkpoint of step {step} in {folder}"
    available = ", ".join(map(str, checkpoint_steps(folder))) or "none"
    raise CheckpointError(f"{missing} that is intact: {len(candidates)} damaged; steps there: {available}")


def read_state(folder: Path, step: int, *, of: Origin | None = None) -> Checkpoint:
    """Return the checkpoint of ``step`` without its tensors, after a check that it can be loaded.

    Raises:
        CheckpointError: it is missing, damaged or of another run than ``of`` (see ``load_checkpoint``).
    """
    for _, at, path in _saved(folder):
        if at == step:
            try:
                manifest = _intact_manifest(path, of)
            except CheckpointError as error:
                raise CheckpointError(f"{path} is damaged: {error}") from error
            return Checkpoint(run_id=manifest["run_id"], step=step, tensors={}, state=manifest["state"])
    available = ", ".join(map(str, checkpoint_steps(folder))) or "none"
    raise CheckpointError(f"no checkpoint of step {step} in {folder}; steps there: {available}")


def damaged_checkpoints(folder: Path, *, of: Origin | None = None) -> list[str]:
    """Return one line for each checkpoint of ``folder`` that is damaged, unreadable or of another run than ``of``.

    Reads all checkpoints, newest first, and what kept weights say of their run.
    """
    problems = []
    for path in sorted(folder.glob("weights-*")):
        with suppress(OSError, ValueError, AttributeError):  # damage: their load says it
            try:
                refuse_other_run(path, read_json_object(path / MANIFEST, follow=True), of)
            except OtherRunsCheckpoint as error:
                problems.append(str(error))
    for _, _, path in _saved(folder):
        try:
            _intact_manifest(path, of)
        except CheckpointUnreadable as error:
            problems.append(str(error))
        except CheckpointError as error:
            if path.exists():  # a run in progress removes older ones
                problems.append(f"{path}: {error}")
    return problems


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the run's checkpoints, newest first."""
    return [step for _, step, _ in _saved(folder)]


def remove_checkpoints(folder: Path, keep_every: int = 0, keep_steps: Collection[int] = ()) -> None:
    """Remove the run's checkpoints except those of every ``keep_every``-th step and of ``keep_steps``.

    Kept weights stay. A checkpoint of another run stays, too.
    """
    if not is_folder(folder):  # a link points outside the store
        return
    for _, step, path in _saved(folder):
        if not _for_good(step, keep_every, keep_steps):
            _discard(path, folder.name)
    with suppress(OSError):  # missing or not empty: kept weights stay, and files that another process writes
        clear_unfinished(folder, everything=True)
        folder.rmdir()


def save_weights(folder: Path, moment: str, tensors: Mapping[str, torch.Tensor], of: Origin | None = None) -> Path:
    """Write the weights of a ``moment`` (``init``, ``final``) to the run's ``folder``; existing ones are replaced.

    ``of``: the run that they are of.

    Raises:
        CheckpointError: the disk refuses, or ``moment`` is not a plain name.
    """
    target = folder / f"weights-{plain_name(moment, 'moment', CheckpointError)}"
    _commit(target, {"": tensors}, {"moment": moment, **({} if of is None else of.known())})
    return target


def load_weights(folder: Path, moment: str, *, of: Origin | None = None) -> dict[str, torch.Tensor]:
    """Return the kept weights of a ``moment``, on the CPU; ``of``: see :func:`load_checkpoint`.

    Raises:
        OtherRunsCheckpoint: they are of another run.
        CheckpointError: they were not kept, or are damaged.
    """
    path = folder / f"weights-{plain_name(moment, 'moment', CheckpointError)}"
    if not path.is_dir():
        kept = sorted(p.name.removeprefix("weights-") for p in folder.glob("weights-*") if not is_unfinished(p))
        raise CheckpointError(
            f"no weights of moment {moment!r} in {folder} (kept: {', '.join(kept) or 'none'}): "
            f"train with `save={moment}`"
        )
    try:
        return _load(path, of)[1]
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _saved(folder: Path) -> list[tuple[int, int, Path]]:
    """Return (serial, step, path) of the committed checkpoints, newest first."""
    try:
        with reading(folder):
            paths = list(folder.iterdir())
    except CheckpointError:
        return []
    matches = ((_STEP.fullmatch(path.name), path) for path in paths)
    return sorted(((int(m[1]), int(m[2]), path) for m, path in matches if m), reverse=True)


def _for_good(step: int, keep_every: int, keep_steps: Collection[int]) -> bool:
    """Return whether the checkpoint of ``step`` is kept by ``keep_every`` or ``keep_steps``."""
    return step in keep_steps or (keep_every > 0 and step > 0 and step % keep_every == 0)


def _commit(
    target: Path,
    groups: Mapping[str, Mapping[str, torch.Tensor]],
    about: dict[str, Any],
    write_shards: Callable[[Path, Sequence[Path]], dict[str, Entry]] | None = None,
) -> None:
    """Write a folder and rename it to ``target``: the tensors under ``""`` in ``groups``, all others as parts.

    ``write_shards`` writes the shards, also those of parts, together with other processes.

    After the loss of a lease (a machine slept) two processes may train one run, and one may
    remove the other's unfinished folder, which is then written again.
    """
    plain = plain_tensors(groups[""])
    parts = {prefix: tensors for prefix, tensors in groups.items() if prefix}

    def write(folder: Path) -> None:
        earlier = [path for _, _, path in _saved(target.parent)]
        save_tensors(plain, folder / TENSORS)
        entries = {"parts": write_parts(parts, folder, earlier)}
        if write_shards is not None:
            (folder / SHARDS).mkdir()
            entries["parts_in_shares"] = write_shards(folder / SHARDS, earlier)
            entries["shards"] = entry_of(folder / SHARDS)["files"]
        manifest = {
            "format": FORMAT,
            **about,
            **{key: entry for key, entry in entries.items() if entry},
            "tensors": layout_of(plain),
            "sha256": file_hash(folder / TENSORS),
        }
        text = json.dumps({**manifest, "manifest_sha256": _fingerprint(manifest)}, indent=1)
        (folder / MANIFEST).write_text(text, encoding="utf-8")

    with disk_errors(f"writing {target}", *_KIND_AND_KEPT):
        for folder in (target.parent.parent, target.parent):  # not the store: if it is missing, it was removed
            folder.mkdir(exist_ok=True)
        refuse_links([target.parent, target], [], CheckpointError)
        clear_unfinished(target.parent)
        # only kept weights are replaced, and they are written before their run has a row
        write_folder(target, write)


def _load(path: Path, of: Origin | None) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return manifest and tensors of a committed folder, after its files are compared with the manifest."""
    manifest = _intact_manifest(path, of)
    return manifest, load_tensors(path / TENSORS, manifest["tensors"]) | read_parts(path, manifest.get("parts", {}))


def _intact_manifest(path: Path, of: Origin | None) -> dict[str, Any]:
    """Return the manifest of a folder whose files equal it.

    Raises:
        OtherRunsCheckpoint: it is intact and of another run than ``of``, see :func:`refuse_other_run`.
        CheckpointUnreadable: a file cannot be read at the moment, or a newer version wrote it; the path is said.
        CheckpointError: it is damaged.
    """
    with reading(path):
        manifest = read_json_object(path / MANIFEST, follow=True)
        fingerprint = manifest.pop("manifest_sha256")
        written_by = manifest["format"]
        if written_by > FORMAT:
            raise CheckpointUnreadable(
                f"{path} has format {written_by}, this version reads {FORMAT}: update grok-lab; it was not removed"
            )
        whole = fingerprint == _fingerprint(manifest) and file_hash(path / TENSORS) == manifest["sha256"]
        shards = manifest.get("shards")
        whole = whole and (has_files(path / SHARDS, shards) if shards else not (path / SHARDS).exists())
        whole = whole and parts_are_whole(path, manifest)
    if not whole:
        raise CheckpointError("its bytes differ from those that were written")
    refuse_other_run(path, manifest, of)
    return dict(manifest)


def _fingerprint(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _discard(path: Path, run_id: str) -> None:
    """Remove a checkpoint, unless it is of another run than ``run_id``."""
    with suppress(OSError, ValueError):  # damaged: it says nothing
        if read_json_object(path / MANIFEST, follow=True).get("run_id", run_id) != run_id:
            return
    with disk_errors(f"removing {path}", *_KIND_AND_KEPT):
        discard_folder(path)
