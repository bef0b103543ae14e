"""Text to token ids and back: characters, bytes, BPE trained here, GPT-2's BPE, any ``tokenizer.json``.

Every tokeniser knows one special text, ``<|endoftext|>``: where it has an id for it
(``eot_id``), that text becomes this id and is never cut into pieces; documents end
with it. A tokeniser is saved as one JSON file, and its ``hash`` is that of this file,
so a cache of tokens can tell a changed tokeniser.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError

END_OF_TEXT: Final = "<|endoftext|>"
"""What ends a document, in source files and in decoded text."""

KINDS: Final = ("char", "byte", "bpe", "gpt2", "file")

GPT2_VOCAB_ENV: Final = "GROK_GPT2_VOCAB"
"""Folder with GPT-2's vocab.json and merges.txt, where ``--vocab`` does not name one."""

_GPT2_REPOSITORY: Final = "openai-community/gpt2"
_GPT2_PATTERN: Final = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
# Radford et al. 2019's splitting of text into words, written with possessive quantifiers as tiktoken does

_SPANS_A_CUT: Final = re.compile(r"\n|\S ")
"""In a token that is found before words are split: it may stand across a place where long texts are cut."""
OWN_FORMAT: Final = "grok-tokenizer"
"""The format of tokenisers that no library reads, in their files."""

Tokens = NDArray[np.unsignedinteger[Any]]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the little-endian type that token ids of this vocabulary are stored in: uint16, or uint32 above 65,536."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


class Tokenizer(ABC):
    """Text to token ids and back."""

    kind: str
    vocab_size: int
    """All ids are below this."""
    eot_id: int | None
    """Id of ``<|endoftext|>``, or None where this vocabulary has none."""
    piecewise: bool
    """Whether a text cut where :mod:`grok.text.sources.pieces` cuts it has the same ids as
    the whole: then a long document is encoded in bounded memory."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that ids are stored in."""
        return token_dtype(self.vocab_size)

    def encode(self, text: str) -> Tokens:
        """Return the ids of ``text``; ``<|endoftext|>`` in it becomes ``eot_id``.

        Raises:
            DataError: a character that the vocabulary does not have.
        """
        if self.eot_id is None or END_OF_TEXT not in text:
            return self.encode_plain([text])[0]
        parts: list[Tokens] = []
        for i, part in enumerate(text.split(END_OF_TEXT)):
            if i > 0:
                parts.append(np.array([self.eot_id], dtype=self.dtype))
            parts.append(self.encode_plain([part])[0])
        return np.concatenate(parts)

    @abstractmethod
    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text; none of them contains ``<|endoftext|>``."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids``; bytes that are not whole characters become U+FFFD."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the content of the file that :func:`grok.text.saved_tokenizer.load_tokenizer` reads."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of :meth:`to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class CharTokenizer(Tokenizer):
    """One id per character, in code point order; ``<|endoftext|>``, if wanted, comes last."""

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
                " prepare the data anew with this text in it, or use --tokenizer byte"
            )
        return ids.astype(self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        end = len(self.characters)
        return "".join(self.characters[i] if i < end else END_OF_TEXT for i in ids)

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": OWN_FORMAT,
                "kind": self.kind,
                "characters": self.characters,
                "end_of_text": self.eot_id is not None,
            }
        )


class ByteTokenizer(Tokenizer):
    """The 256 byte values of UTF-8, and 256 for ``<|endoftext|>``."""

    kind = "byte"
    piecewise = True
    vocab_size = 257
    eot_id = 256

    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(self.dtype) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        parts = [b""]
        for i in ids:
            parts.append(END_OF_TEXT.encode() if i == self.eot_id else bytes([i]))
        return b"".join(parts).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"format": OWN_FORMAT, "kind": self.kind})


class SubwordTokenizer(Tokenizer):
    """Any tokeniser of the ``tokenizers`` library: BPE trained here, GPT-2's, or a given ``tokenizer.json``."""

    def __init__(self, definition: str, kind: str = "file", eot: str = END_OF_TEXT) -> None:
        self.kind = kind
        self._definition = definition
        self._tokenizer = tokenizers_library().Tokenizer.from_str(definition)
        # A document's text is text: what looks like a special token in it must not become one.
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.eot_text = eot
        if eot not in vocabulary:
            likely = sorted(
                token for token in vocabulary if token.startswith(("<", "[")) and token.endswith((">", "]"))
            )
            raise DataError(
                f"the tokeniser has no token {eot!r} to end documents with;"
                f" name another with --eot, for example one of {', '.join(likely[:8]) or 'its special tokens'}"
            )
        self.eot_id = end = int(vocabulary[eot])
        self._special = {END_OF_TEXT: end}
        self.piecewise = _cuts_where_texts_are_cut(json.loads(definition))

    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        if self._tiktoken is not None:
            return [np.array(self._tiktoken.encode_ordinary(text), dtype=self.dtype) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        parts: list[str] = []
        run: list[int] = []
        for i in ids:
            if i == self.eot_id:
                parts += [self._tokenizer.decode(run, skip_special_tokens=False), END_OF_TEXT]
                run = []
            else:
                run.append(int(i))
        return "".join([*parts, self._tokenizer.decode(run, skip_special_tokens=False)])

    def to_json(self) -> str:
        return self._definition

    @cached_property
    def _tiktoken(self) -> Any:
        """tiktoken's encoder of the same vocabulary, three times as fast, for GPT-2 and where it is installed."""
        if self.kind != "gpt2":
            return None
        try:
            import tiktoken
        except ImportError:
            return None
        byte_of = {character: byte for byte, character in byte_characters().items()}
        ranks = {
            bytes(byte_of[c] for c in token): i
            for token, i in self._tokenizer.get_vocab(with_added_tokens=False).items()
            if i != self.eot_id
        }
        return tiktoken.Encoding(
            "gpt2-local", pat_str=_GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=self._special
        )


def train_bpe(texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
    """Return a byte-level BPE fitted to ``texts``: ``vocab_size`` ids, all 256 bytes and ``<|endoftext|>`` among them.

    Source: Sennrich et al. 2016; byte level as in Radford et al. 2019. Id 0 is ``<|endoftext|>``.

    Raises:
        DataError: a size below 257.
    """
    if vocab_size < 257:
        raise DataError(f"--vocab-size {vocab_size}: a byte-level BPE needs at least 257 (256 bytes and {END_OF_TEXT})")
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
    ``encoder.json`` and ``vocab.bpe``); without it ``GROK_GPT2_VOCAB`` names one; without
    both the files are fetched from the Hugging Face hub, or found in its cache.

    Raises:
        DataError: the files are neither there nor to be had; the message says which to put where.
    """
    library = tokenizers_library()
    named = vocab or (Path(os.environ[GPT2_VOCAB_ENV]) if os.environ.get(GPT2_VOCAB_ENV) else None)
    if named is None:
        return SubwordTokenizer(_fetch_gpt2(), kind="gpt2")
    for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        files = [named / name for name in names]
        if all(file.is_file() for file in files):
            break
    else:
        raise DataError(f"GPT-2 vocabulary: {named} has no vocab.json and merges.txt; {_gpt2_advice()}")
    try:
        tokenizer = library.Tokenizer(library.models.BPE.from_file(*map(str, files)))
    except Exception as error:
        raise DataError(f"GPT-2 vocabulary: {files[0]} and {files[1]} cannot be read ({error})") from error
    _make_byte_level(tokenizer)
    tokenizer.add_special_tokens([library.AddedToken(END_OF_TEXT, special=True, normalized=False)])
    built = SubwordTokenizer(tokenizer.to_str(), kind="gpt2")
    if built.vocab_size != 50_257 or built.eot_id != 50_256:
        raise DataError(
            f"GPT-2 vocabulary: {named} holds {built.vocab_size} ids with {END_OF_TEXT} = {built.eot_id},"
            " GPT-2's has 50257 and 50256; for another vocabulary give its tokenizer.json as --tokenizer"
        )
    return built


def tokenizers_library() -> Any:
    """Return the ``tokenizers`` package with the parts that are used here.

    Raises:
        DataError: it is not installed.
    """
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise DataError("BPE needs the `tokenizers` package: pip install 'grok-lab[gpt]'") from error
    return tokenizers


def _make_byte_level(tokenizer: Any) -> None:
    library = tokenizers_library()
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()


def _fetch_gpt2() -> str:
    try:
        return str(tokenizers_library().Tokenizer.from_pretrained(_GPT2_REPOSITORY).to_str())
    except Exception as error:  # no network, no hub, a proxy's refusal: all mean "not to be had here"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"GPT-2 vocabulary: none given, and {_GPT2_REPOSITORY} could not be fetched ({reason}); {_gpt2_advice()}"
        ) from error


def _gpt2_advice() -> str:
    return (
        f"put vocab.json and merges.txt of https://huggingface.co/{_GPT2_REPOSITORY} into a folder"
        f" and name it with --vocab DIR or {GPT2_VOCAB_ENV}=DIR"
    )


def _cuts_where_texts_are_cut(definition: dict[str, Any]) -> bool:
    """Return whether words never span a place where texts are cut: GPT-2's splitting, and nothing before it."""
    before, normal = definition.get("pre_tokenizer") or {}, definition.get("normalizer") or {}
    # special tokens are read as text; others are found before anything is split, and some take blanks beside them along
    found_first = [token for token in definition.get("added_tokens") or [] if not token.get("special")]
    if any(
        token.get("lstrip") or token.get("rstrip") or _SPANS_A_CUT.search(token["content"]) for token in found_first
    ):
        return False
    return (
        before.get("type") == "ByteLevel"
        and not before.get("add_prefix_space", True)
        and before.get("use_regex", True)
        and normal.get("type") in (None, "NFC")
    )


def byte_characters() -> dict[int, str]:
    """Return the printable character that GPT-2's vocabulary writes for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
