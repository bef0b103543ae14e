"""A prepared corpus: token ids in memory-mapped files, document offsets, and a manifest with a hash of the data.

A corpus folder holds ``manifest.json``, ``tokenizer.json``, the report (``corpus.json``, ``corpus.md``), and
for each split (``train``, ``val``, and ``test`` if there is one)

- ``SPLIT.bin``: the ids in order, little-endian uint16, or uint32 above 65,536 ids;
- ``SPLIT.docs``: int64 little-endian offsets, one more than documents; document ``i`` is
  ``tokens[docs[i]:docs[i + 1]]``, its ``<|endoftext|>`` included.

``manifest["hash"]`` identifies the data in a run's identity. It depends on the ids, the documents and the
tokeniser, never on a path or on the form of the text (parquet, JSON, plain files).
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError, in_words
from grok.text.tokenizers import END_OF_TEXT, Tokenizer, load_tokenizer
from grok.text.windows import check_length
from grok.untrusted import has_shape, is_plain, read_json_object

# A file that stays open for reading: a replacement has no effect on its reader, an overwrite is detected.
#
# ``grok.prepare`` replaces a corpus by a rename, so a run that trains on the old one reads
# the old bytes until it ends. Only a file that is overwritten in place changes for its readers.


class OpenFile:
    """One file, open for reading until the object is garbage-collected.

    Raises:
        DataError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with in_words(DataError, f"{path} cannot be read: run `grok prepare` again", OSError):
            self._file = path.open("rb")
        weakref.finalize(self, self._file.close)
        self.stamp = self.present()
        """Device, inode, size and modification time when the file's content was last known to be right."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file.fileno()).st_size

    def map(self, dtype: np.dtype[Any]) -> np.memmap[Any, np.dtype[Any]]:
        """Return the content, memory-mapped for reading."""
        return np.memmap(self._file, dtype=dtype, mode="r")

    def read(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the content as an array in memory."""
        self._file.seek(0)
        return np.frombuffer(self._file.read(), dtype=dtype)

    def sha256(self) -> str:
        """Return the hash of all bytes, in hexadecimal."""
        # read, not memory-mapped: mapped pages count as memory in use
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def present(self) -> tuple[int, ...]:
        """Return what :attr:`stamp` would be now; costs one system call."""
        now = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)


# A prepared corpus: token ids in memory-mapped files, document offsets, and a manifest with a hash of the data.

MANIFEST_VERSION: Final = 1
_DOCS_DTYPE: Final = np.dtype("<i8")
_SPLIT_SHAPE: Final[dict[str, Any]] = {
    **dict.fromkeys(("file", "sha256", "documents_file", "documents_sha256"), str),
    **dict.fromkeys(("tokens", "documents", "bytes", "words"), int),
}
_MANIFEST_SHAPE: Final = {
    "version": int,
    **dict.fromkeys(("hash", "key", "form", "word_rule", "dtype"), str),
    "detokenizer": (str, None),
    "tokenizer": {"kind": str, "file": str, "hash": str, "vocab_size": int, "eot": str, "eot_id": (int, None)},
    "splits": {"train": _SPLIT_SHAPE, "val": _SPLIT_SHAPE, "test?": _SPLIT_SHAPE},
}


@dataclass(frozen=True)
class Corpus:
    """An open corpus folder. Opening reads the manifest and checks sizes; tokens are read when they are used.

    Its files stay open, so its tokens do not change when ``grok.prepare`` replaces the folder.
    """

    path: Path
    manifest: Mapping[str, Any]
    _files: dict[str, OpenFile] = field(default_factory=dict, repr=False, compare=False)

    @property
    def hash(self) -> str:
        """The identifier of this data: equal hash means equal ids, documents and tokeniser."""
        return str(self.manifest["hash"])

    @property
    def vocab_size(self) -> int:
        """Number of ids; every token is below it."""
        return int(self.manifest["tokenizer"]["vocab_size"])

    @property
    def eot_id(self) -> int | None:
        """The tokeniser's id for the end of a document, or None."""
        value = self.manifest["tokenizer"]["eot_id"]
        return None if value is None else int(value)

    @property
    def document_end(self) -> int | None:
        """Id that ends the documents of train and val; None if they are one text, whatever ids the tokeniser has."""
        return None if self.manifest.get("continuous") else self.eot_id

    @property
    def splits(self) -> list[str]:
        """Names of the corpus's splits."""
        return list(self.manifest["splits"])

    def split(self, name: str) -> Mapping[str, Any]:
        """Return the manifest's entry of a split: file, tokens, documents, bytes, words.

        Raises:
            DataError: the corpus has no such split.
        """
        if name not in self.manifest["splits"]:
            raise DataError(f"{self.path} has no split {name!r}: it has {', '.join(self.splits)}")
        entry: Mapping[str, Any] = self.manifest["splits"][name]
        return entry

    def tokens(self, split: str) -> np.memmap[Any, np.dtype[np.unsignedinteger[Any]]]:
        """Return the ids of a split, ``[tokens]``, memory-mapped for reading."""
        return self.file(self.split(split)["file"]).map(np.dtype(self.manifest["dtype"]))

    def documents(self, split: str) -> NDArray[np.int64]:
        """Return the offsets of the documents in tokens, ``[documents + 1]``; the last is the number of tokens."""
        return self.file(self.split(split)["documents_file"]).read(_DOCS_DTYPE)

    def file(self, name: str) -> OpenFile:
        """Return a file of the folder; it is opened once.

        Raises:
            DataError: the file is missing or cannot be read.
        """
        if name not in self._files:
            self._files[name] = OpenFile(self.path / name)
        return self._files[name]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser that made these ids.

        Raises:
            DataError: the file is missing, or differs from the one that made the ids.
        """
        entry = self.manifest["tokenizer"]
        tokenizer = load_tokenizer(self.path / entry["file"], entry["kind"], entry["eot"])
        if tokenizer.hash != entry["hash"]:
            raise DataError(
                f"{self.path / entry['file']} is not the tokeniser that these tokens were made with"
                f" (hash {tokenizer.hash[:12]}, manifest {entry['hash'][:12]}): run `grok prepare` again"
            )
        return tokenizer

    def sample(self, split: str = "train", tokens: int = 64) -> str:
        """Return the text of the first ``tokens`` ids of a split, so that the user can see what the data is."""
        return self.tokenizer.decode(self.tokens(split)[:tokens].tolist())

    def verify(self, splits: Iterable[str] | None = None) -> None:
        """Read all bytes of some splits (default: of all) and compare them with the manifest's hashes.

        Raises:
            DataError: a file was changed since it was written.
        """
        for name in self.splits if splits is None else splits:
            entry = self.split(name)
            for file, known in ((entry["file"], entry["sha256"]), (entry["documents_file"], entry["documents_sha256"])):
                if self.file(file).sha256() != known:
                    raise DataError(f"{self.path / file} was changed after it was written: run `grok prepare` again")

    def refuse_changed(self, splits: Iterable[str]) -> None:
        """Refuse tokens that were overwritten in place. A file whose size and time are unchanged is not read again.

        Raises:
            DataError: a split's tokens differ from the manifest's hash.
        """
        for name in splits:
            entry = self.split(name)
            file = self.file(entry["file"])
            if (present := file.present()) != file.stamp:  # size or modification time
                file.stamp = present
                if file.sha256() != entry["sha256"]:
                    raise DataError(
                        f"{file.path} was overwritten while it was in use: further results would carry the hash of"
                        " other data; run `grok prepare` again, and then the same command"
                    )

    def stamps(self, splits: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return device, inode, size and modification time of these splits' token files: another tuple, other data."""
        return tuple(self.file(self.split(name)["file"]).stamp for name in splits)


def open_corpus(path: str | Path) -> Corpus:
    """Return the corpus in folder ``path``, after a comparison of file sizes and tokeniser with the manifest.

    Raises:
        DataError: no corpus in the folder, another version, a changed manifest, truncated or missing files, or
            another tokeniser.
    """
    folder = Path(path)
    corpus = Corpus(folder, read_manifest(folder))
    _check_sizes(corpus)
    known = corpus.manifest["tokenizer"]
    if (corpus.tokenizer.vocab_size, corpus.tokenizer.eot_id) != (known["vocab_size"], known["eot_id"]):
        raise DataError(
            f"{folder}: the manifest has {known['vocab_size']} ids and the end of text {known['eot_id']}, its tokeniser"
            f" has {corpus.tokenizer.vocab_size} and {corpus.tokenizer.eot_id}: run `grok prepare` again"
        )
    return corpus


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """Return the manifest of a corpus folder, compared with its own hashes.

    Raises:
        DataError: the folder has no manifest, or one that ``grok.prepare`` did not write.
    """
    file = folder / "manifest.json"
    if not file.is_file():
        raise DataError(
            f"{folder} has no prepared corpus (no manifest.json):"
            f" make one with `grok prepare text --input FILE --tokenizer char --out {folder}`"
        )
    with in_words(DataError, f"{file} is not a corpus manifest: run `grok prepare` again", OSError, ValueError):
        manifest = read_json_object(file, follow=True)
    version = manifest.get("version")
    if version != MANIFEST_VERSION and isinstance(version, int):
        raise DataError(f"{file} has version {version}, this code reads {MANIFEST_VERSION}: run `grok prepare` again")
    sound = has_shape(manifest, _MANIFEST_SHAPE) and manifest["dtype"] in ("uint16", "uint32")
    if not sound or not all(map(is_plain, _names(manifest))):
        raise DataError(
            f"{file} is not a corpus manifest (a field is missing or has the wrong type): run `grok prepare` again"
        )
    same = data_hash(manifest["tokenizer"], manifest["splits"]) == manifest["hash"]
    if not same or manifest.get("manifest_sha256") != fingerprint(manifest):
        raise DataError(f"{file} was changed after it was written: run `grok prepare` again")
    return manifest


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest without its field ``manifest_sha256``, which has this hash."""
    stated = {name: value for name, value in manifest.items() if name != "manifest_sha256"}
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()


def _names(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the manifest's files."""
    of_splits = [entry[key] for entry in manifest["splits"].values() for key in ("file", "documents_file")]
    return [manifest["tokenizer"]["file"], *of_splits]


def _check_sizes(corpus: Corpus) -> None:
    itemsize = np.dtype(corpus.manifest["dtype"]).itemsize
    for name in corpus.splits:
        entry = corpus.split(name)
        for file, size in (
            (entry["file"], entry["tokens"] * itemsize),
            (entry["documents_file"], (entry["documents"] + 1) * _DOCS_DTYPE.itemsize),
        ):
            if (actual := corpus.file(file).size) != size:
                raise DataError(
                    f"{corpus.path / file} is {'truncated' if actual < size else 'too long'}: {actual:,} bytes,"
                    f" the manifest says {size:,}; run `grok prepare` again"
                )


class SplitWriter:
    """Writes one split: its ids, its document offsets, and the hashes of both.

    A context manager: its end closes the file.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int, dtype: np.dtype[Any]) -> None:
        self.folder, self.name, self._vocab_size, self._dtype = folder, split, vocab_size, dtype
        self.tokens = self.bytes = self.words = 0
        self._offsets: list[NDArray[np.int64]] = [np.zeros(1, dtype=_DOCS_DTYPE)]
        self._hasher = hashlib.sha256()
        self._file = (folder / f"{split}.bin").open("wb")

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, ids: NDArray[np.unsignedinteger[Any]], ends: NDArray[np.int64], n_bytes: int, words: int) -> None:
        """Append ids.

        Args:
            ids: ``[n]``.
            ends: for each document that ends in this call, the number of this call's ids up to its end.
            n_bytes: UTF-8 bytes of the source text.
            words: words of the source text.

        Raises:
            DataError: an id is not below ``vocab_size``.
        """
        if len(ids) and int(ids.max()) >= self._vocab_size:
            raise DataError(f"the tokeniser returned id {int(ids.max())}, its vocabulary has {self._vocab_size}")
        data = np.ascontiguousarray(ids, dtype=self._dtype).tobytes()
        self._file.write(data)
        self._hasher.update(data)
        self._offsets.append(ends.astype(_DOCS_DTYPE) + self.tokens)
        self.tokens += len(ids)
        self.bytes += n_bytes
        self.words += words

    def finish(self) -> dict[str, Any]:
        """Finish both files and return the split's entry in the manifest."""
        self._file.close()
        offsets = np.concatenate(self._offsets)
        if offsets[-1] != self.tokens:
            offsets = np.append(offsets, np.int64(self.tokens))  # part of one continuous text: no document ends in it
        data = offsets.astype(_DOCS_DTYPE).tobytes()
        (self.folder / f"{self.name}.docs").write_bytes(data)
        return {
            "file": f"{self.name}.bin",
            "sha256": self._hasher.hexdigest(),
            "documents_file": f"{self.name}.docs",
            "documents_sha256": hashlib.sha256(data).hexdigest(),
            "tokens": self.tokens,
            "documents": len(offsets) - 1,
            "bytes": self.bytes,
            "words": self.words,
        }


def tokenizer_entry(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the manifest's entry of a tokeniser."""
    return {
        "kind": tokenizer.kind,
        "file": "tokenizer.json",
        "hash": tokenizer.hash,
        "vocab_size": tokenizer.vocab_size,
        "eot": getattr(tokenizer, "eot_text", END_OF_TEXT),
        "eot_id": tokenizer.eot_id,
    }


def data_hash(tokenizer: Mapping[str, Any], splits: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the identifier of the data: a hash of ids, documents and tokeniser.

    The split ``test`` is left out, because no run trains on it: adding it changes no ``run_id``. A run that is
    validated on it is named after :func:`grok.text.windows.set_hash`, too.
    """
    content = {
        "version": MANIFEST_VERSION,
        "tokenizer": {key: tokenizer[key] for key in ("hash", "vocab_size", "eot_id")},
        "splits": {
            name: [entry["sha256"], entry["documents_sha256"]] for name, entry in splits.items() if name != "test"
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_vocabulary(corpus: Corpus, vocab_size: int) -> None:
    """Refuse a model whose vocabulary is smaller than the corpus's.

    Raises:
        DataError: the model has fewer ids than the tokeniser.
    """
    if vocab_size < corpus.vocab_size:
        raise DataError(
            f"the model has {vocab_size:,} ids, the tokeniser of {corpus.path} ({corpus.manifest['tokenizer']['kind']})"
            f" has {corpus.vocab_size:,}: set model.vocab_size to at least that, or use the data the model was made for"
        )


def refuse_other_tokenizer(corpus: Corpus, main: Corpus) -> None:
    """Refuse a corpus with another tokeniser than ``main``'s.

    Raises:
        DataError: its tokeniser is another one, or another of its tokens ends documents.
    """
    ours, theirs = corpus.manifest["tokenizer"], main.manifest["tokenizer"]
    if (ours["hash"], ours["eot_id"]) != (theirs["hash"], theirs["eot_id"]):
        raise DataError(
            f"{corpus.path} was made with another tokeniser than {main.path}: prepare it with --tokenizer "
            f"{main.path / theirs['file']}" + ("" if theirs["eot"] == END_OF_TEXT else f" --eot '{theirs['eot']}'")
        )


def check_fit(
    corpus: Corpus, *, context: int, vocab_size: int | None, splits: Iterable[str] = ("train", "val")
) -> None:
    """Refuse a corpus that a model of this context and vocabulary (None: the corpus's) cannot read.

    Raises:
        DataError: a split is missing or shorter than one block, or the model's vocabulary is smaller than the corpus's.
    """
    if vocab_size is not None:
        check_vocabulary(corpus, vocab_size)
    for name in splits:
        check_length(int(corpus.split(name)["tokens"]), context, name)
