"""Tokenisers: characters, bytes, BPE, GPT-2's, any ``tokenizer.json``; saved, loaded, exported.

Every tokeniser has at most one special token, ``<|endoftext|>``, which ends documents: its
text becomes the id ``eot_id``. A tokeniser is saved as one JSON file, and its ``hash`` is
the hash of this file, so that a changed tokeniser is detected.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError, GrokError, in_words, one_line
from grok.untrusted import read_text

END_OF_TEXT: Final = "<|endoftext|>"
"""The text that ends a document, in source files and in decoded text."""


GPT2_VOCAB_ENV: Final = "GROK_GPT2_VOCAB"
"""Folder with GPT-2's vocab.json and merges.txt, where ``--vocab`` does not name one."""

_GPT2_REPOSITORY: Final = "openai-community/gpt2"
_SPANS_A_CUT: Final = re.compile(r"\n|\S ")
"""Matches an added token that may extend across a place where long texts are cut."""
OWN_FORMAT: Final = "grok-tokenizer"
"""The value of ``format`` in files of tokenisers that only this project reads."""

Tokens = NDArray[np.unsignedinteger[Any]]


class Tokenizer(ABC):
    """Converts text to token ids and back."""

    kind: str
    vocab_size: int
    """Number of ids; every id is below it."""
    eot_id: int | None
    """Id of ``<|endoftext|>``, or None if the vocabulary has none."""
    piecewise: bool
    """Whether the pieces that :mod:`grok.text.documents` makes of a text have the ids of the
    whole text: then a long document is encoded piece by piece, in bounded memory."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that stores ids."""
        return np.dtype("<u2") if self.vocab_size <= 2**16 else np.dtype("<u4")

    def encode(self, text: str) -> Tokens:
        """Return the ids of ``text``, ``[tokens]``; ``<|endoftext|>`` in it becomes ``eot_id``.

        Raises:
            DataError: the vocabulary lacks a character.
        """
        if self.eot_id is None or END_OF_TEXT not in text:
            return self.encode_plain([text])[0]
        end = np.array([self.eot_id], dtype=self.dtype)
        parts = [part for ids in self.encode_plain(text.split(END_OF_TEXT)) for part in (end, ids)]
        return np.concatenate(parts[1:])

    @abstractmethod
    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text; none of them contains ``<|endoftext|>``."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids``; bytes that are not valid UTF-8 become U+FFFD."""
        parts: list[list[int]] = [[]]
        for i in ids:
            if i == self.eot_id:
                parts.append([])
            else:
                parts[-1].append(int(i))
        return END_OF_TEXT.join(map(self.decode_plain, parts))

    @abstractmethod
    def decode_plain(self, ids: list[int]) -> str:
        """Return the text of ``ids``, none of which is ``eot_id``."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the content of the file that :func:`grok.text.tokenizers.load_tokenizer` reads."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of :meth:`to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class CharTokenizer(Tokenizer):
    """One id per character in the order of code points; with ``end_of_text`` the last id is ``<|endoftext|>``."""

    kind = "char"
    piecewise = True

    def __init__(self, characters: Iterable[str], end_of_text: bool = False) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise DataError("a character vocabulary needs at least one character: the text is empty")
        self.eot_id = len(self.characters) if end_of_text else None
        self.vocab_size = len(self.characters) + int(end_of_text)
        codes = _code_points(self.characters)
        self._id_of_code = np.full(int(codes[-1]) + 2, -1, dtype=np.int32)  # the last entry: all codes above
        self._id_of_code[codes] = np.arange(len(codes))

    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        return [self._encode_one(text) for text in texts]

    def _encode_one(self, text: str) -> Tokens:
        codes = _code_points(text)
        ids = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        if len(ids) and int(ids.min()) < 0:
            missing = sorted({chr(code) for code in codes[ids < 0]})
            shown = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in missing[:5])
            raise DataError(
                f"{len(missing)} characters of the text are not among the {len(self.characters)} of this"
                f" character vocabulary: {shown}{', ...' if len(missing) > 5 else ''};"
                " add this text to the input and prepare the data again, or use --tokenizer byte"
            )
        return ids.astype(self.dtype)

    def decode_plain(self, ids: list[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def to_json(self) -> str:
        content = {"format": OWN_FORMAT, "kind": self.kind, "characters": self.characters}
        return json.dumps({**content, "end_of_text": self.eot_id is not None})


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8, 0 to 255; id 256 is ``<|endoftext|>``."""

    kind = "byte"
    piecewise = True
    vocab_size = 257
    eot_id = 256

    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(self.dtype) for text in texts]

    def decode_plain(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"format": OWN_FORMAT, "kind": self.kind})


class SubwordTokenizer(Tokenizer):
    """A tokeniser of the ``tokenizers`` library: a BPE fitted here, GPT-2's BPE, or any ``tokenizer.json``."""

    def __init__(self, definition: str, kind: str = "file", eot: str = END_OF_TEXT) -> None:
        self.kind = kind
        self._definition = definition
        content = json.loads(definition, object_hook=_with_sound_table)
        self._tokenizer = tokenizers_library().Tokenizer.from_str(definition)
        # text that looks like a special token must not become that token
        self._tokenizer.encode_special_tokens = True
        # many published files cut and pad each text, for a model's batches
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.eot_text = eot
        if eot not in vocabulary:
            likely = sorted(filter(re.compile(r"[<\[].*[>\]]", re.DOTALL).fullmatch, vocabulary))
            raise DataError(
                f"the tokeniser has no token {eot!r} to end documents with;"
                f" name another with --eot, for example one of {', '.join(likely[:8]) or 'its special tokens'}"
            )
        self.eot_id = int(vocabulary[eot])
        self.piecewise = _cuts_where_texts_are_cut(content)

    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        with _library_errors("the tokeniser fails for this text"):
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def decode_plain(self, ids: list[int]) -> str:
        with _library_errors("the tokeniser fails for these ids"):
            return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def to_json(self) -> str:
        return self._definition


@contextmanager
def _library_errors(words: str) -> Iterator[None]:
    """Turn every error of the ``tokenizers`` library, also a panic of its Rust code, into a DataError."""
    try:
        yield
    except GrokError:
        raise
    except BaseException as error:  # the library raises plain Exception; a panic is not even that
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{words} ({one_line(error)})") from error


def _with_sound_table(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a ``tokenizer.json``, if its table of characters is no longer than it is: the library aborts."""
    table = base64.b64decode(str(part.get("precompiled_charsmap") or ""))
    if int.from_bytes(table[:4], "little") > len(table):
        raise DataError("the tokeniser's file has a precompiled_charsmap that is cut short: fetch the file again")
    return part


def train_bpe(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Return a byte-level BPE fitted to ``texts``, with at most ``vocab_size`` ids.

    The vocabulary has all 256 bytes; id 0 is ``<|endoftext|>``. Source: Sennrich et al. 2016; byte
    level as in Radford et al. 2019.

    Raises:
        DataError: the ``tokenizers`` package is missing.
    """
    library = tokenizers_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    _make_byte_level(tokenizer)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokenizer(tokenizer.to_str(), kind="bpe")


def gpt2_tokenizer(vocab: Path | None = None) -> SubwordTokenizer:
    """Return GPT-2's tokeniser: 50,257 ids, ``<|endoftext|>`` = 50256.

    ``vocab`` is a folder with ``vocab.json`` and ``merges.txt`` (or OpenAI's names
    ``encoder.json`` and ``vocab.bpe``). Its default is the value of ``GROK_GPT2_VOCAB``;
    without both the files come from the Hugging Face hub or its cache.

    Raises:
        DataError: the files are missing or wrong, or cannot be fetched; the message says what to do.
    """
    library = tokenizers_library()
    named = vocab or (Path(os.environ[GPT2_VOCAB_ENV]) if os.environ.get(GPT2_VOCAB_ENV) else None)
    if named is None:
        words = f"GPT-2 vocabulary: none given, and {_GPT2_REPOSITORY} could not be fetched; {_gpt2_advice()}"
        with in_words(DataError, words):  # no network, an error of the hub, a proxy's refusal: the remedy is the same
            return SubwordTokenizer(library.Tokenizer.from_pretrained(_GPT2_REPOSITORY).to_str(), kind="gpt2")
    for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        files = [named / name for name in names]
        if all(file.is_file() for file in files):
            break
    else:
        raise DataError(f"GPT-2 vocabulary: {named} has no vocab.json and merges.txt; {_gpt2_advice()}")
    with in_words(DataError, f"GPT-2 vocabulary: {files[0]} and {files[1]} cannot be read"):
        tokenizer = library.Tokenizer(library.models.BPE.from_file(*map(str, files)))
    _make_byte_level(tokenizer)
    tokenizer.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    built = SubwordTokenizer(tokenizer.to_str(), kind="gpt2")
    if built.vocab_size != 50_257 or built.eot_id != 50_256:
        raise DataError(
            f"GPT-2 vocabulary: {named} has {built.vocab_size} ids with {END_OF_TEXT} = {built.eot_id}, expected 50257"
            " ids with 50256; for another vocabulary give its tokenizer.json as --tokenizer"
        )
    return built


def tokenizers_library() -> Any:
    """Return the ``tokenizers`` package.

    Raises:
        DataError: the package is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise DataError("BPE needs the `tokenizers` package: pip install 'grok-lab[gpt]'") from error
    return tokenizers


def _make_byte_level(tokenizer: Any) -> None:
    library = tokenizers_library()
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()


def _gpt2_advice() -> str:
    return (
        f"put vocab.json and merges.txt of https://huggingface.co/{_GPT2_REPOSITORY} into a folder"
        f" and name it with --vocab DIR or {GPT2_VOCAB_ENV}=DIR"
    )


def _cuts_where_texts_are_cut(definition: dict[str, Any]) -> bool:
    """Return whether no token extends across a place where texts are cut: true of GPT-2's way to split words."""
    before, normal = definition.get("pre_tokenizer") or {}, definition.get("normalizer") or {}
    # Special tokens are encoded as text. Other added tokens are matched before words are split, some with spaces
    # beside them.
    added = [token for token in definition.get("added_tokens") or [] if not token.get("special")]
    if any(token.get("lstrip") or token.get("rstrip") or _SPANS_A_CUT.search(token["content"]) for token in added):
        return False
    return (
        before.get("type") == "ByteLevel"
        and not before.get("add_prefix_space", True)
        and before.get("use_regex", True)
        and normal.get("type") in (None, "NFC")
    )


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


# Loads a saved tokeniser.


def load_tokenizer(path: Path, kind: str = "file", eot: str = END_OF_TEXT) -> Tokenizer:
    """Return the tokeniser saved at ``path``: one of this project's files or any ``tokenizer.json``.

    Raises:
        DataError: the file is missing or is no tokeniser.
    """
    with in_words(DataError, f"tokeniser {path} cannot be read: expected a tokenizer.json", OSError, ValueError):
        definition = read_text(path, follow=True)
    with _library_errors(f"tokeniser {path} cannot be read as a tokenizer.json"):
        content = json.loads(definition)
        if content.get("format") == OWN_FORMAT and content["kind"] == "byte":
            return ByteTokenizer()
        if content.get("format") == OWN_FORMAT and content["kind"] == "char":
            return CharTokenizer(content["characters"], content["end_of_text"])
        return SubwordTokenizer(definition, kind, eot)


# Exports a tokeniser to Hugging Face's format: ``AutoTokenizer.from_pretrained`` reads the files, with equal ids.


def tokenizer_files(tokenizer: Tokenizer, context: int) -> dict[str, str]:
    """Return the content of ``tokenizer.json`` and ``tokenizer_config.json`` by file name.

    The exported tokeniser adds no token before or after a text, like this project's.

    Args:
        tokenizer: the tokeniser to export.
        context: the model's context in tokens.
    """
    definition = json.loads(_definition(tokenizer))
    definition["post_processor"] = None
    definition["truncation"] = definition["padding"] = None
    end = getattr(tokenizer, "eot_text", END_OF_TEXT) if tokenizer.eot_id is not None else None
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "bos_token": end,
        "eos_token": end,
    }
    return {
        "tokenizer.json": json.dumps(definition, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False) + "\n",
    }


def _definition(tokenizer: Tokenizer) -> str:
    if isinstance(tokenizer, SubwordTokenizer):
        return tokenizer.to_json()
    library = tokenizers_library()
    if isinstance(tokenizer, CharTokenizer):
        vocabulary = {c: i for i, c in enumerate(tokenizer.characters)}
        # no unknown token: an unknown character is an error, as in CharTokenizer
        theirs = library.Tokenizer(library.models.WordLevel(vocabulary))
        theirs.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(r"[\s\S]"), "isolated")
        theirs.decoder = library.decoders.Fuse()
    else:
        assert isinstance(tokenizer, ByteTokenizer)
        alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())  # of GPT-2: printable bytes are themselves
        others = (byte for byte in range(256) if chr(byte) not in alphabet)
        vocabulary = {character: ord(character) if ord(character) < 256 else next(others) for character in alphabet}
        theirs = library.Tokenizer(library.models.BPE(vocabulary, []))
        theirs.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        theirs.decoder = library.decoders.ByteLevel()
    if tokenizer.eot_id is not None:
        theirs.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return str(theirs.to_str())
