"""Text to ids and back, for every tokeniser; the end of a document is one id and never cut up."""

import json
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.errors import DataError
from grok.text import tokenizers
from grok.text.documents import _SAFE_CUT, write_fables
from grok.text.preparation import Request, prepare

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(lambda t: tokenizers.END_OF_TEXT not in t)
bpe = tokenizers.train_bpe(write_fables(60, 0), 400)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=4))
@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_any_text_comes_back_and_the_end_of_a_document_is_one_id(kind: str, parts: list[str]) -> None:
    by_kind: dict[str, tokenizers.Tokenizer] = {
        "char": tokenizers.CharTokenizer("a" + "".join(parts), end_of_text=True),
        "byte": tokenizers.ByteTokenizer(),
        "bpe": bpe,
    }
    tokenizer = by_kind[kind]
    text = tokenizers.END_OF_TEXT.join(parts)
    ids = tokenizer.encode(text)
    assert ids.dtype == tokenizer.dtype and all(ids < tokenizer.vocab_size)
    assert (ids == tokenizer.eot_id).sum() == len(parts) - 1
    ends = np.flatnonzero(ids == tokenizer.eot_id)
    for part, found in zip(parts, np.split(ids, ends), strict=True):
        assert found[found != tokenizer.eot_id].tolist() == tokenizer.encode(part).tolist()
    assert tokenizer.decode(ids.tolist()) == text


def test_a_text_that_looks_special_stays_text() -> None:
    definition = json.loads(bpe.to_json())
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 400, "content": "<|pad|>"})
    definition["model"]["vocab"]["<|pad|>"] = 400
    tokenizer = tokenizers.SubwordTokenizer(json.dumps(definition))
    assert 400 not in tokenizer.encode("a <|pad|> b").tolist()
    assert tokenizer.decode(tokenizer.encode("a <|pad|> b").tolist()) == "a <|pad|> b"


def test_a_saved_tokeniser_neither_cuts_nor_pads_texts() -> None:
    definition = json.loads(bpe.to_json())
    definition["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    definition["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": tokenizers.END_OF_TEXT,
    }  # fmt: skip
    tokenizer = tokenizers.SubwordTokenizer(json.dumps(definition))
    for text in ("a", "There was once a cheerful mouse called Edda."):
        assert tokenizer.encode(text).tolist() == bpe.encode(text).tolist()


def test_an_end_token_inside_a_document_is_refused(tmp_path: Path) -> None:
    characters = dict.fromkeys("abc </s>", -2.0)
    library = tokenizers.tokenizers_library()
    unigram = library.Tokenizer(library.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *characters.items()], 0))
    (tmp_path / "u.json").write_text(unigram.to_str())
    text = tmp_path / "t.txt"
    text.write_text(tokenizers.END_OF_TEXT.join(["abc cab"] * 10))
    request = Request(
        form="text", inputs=(str(text),), out=tmp_path / "o", tokenizer=str(tmp_path / "u.json"), eot="</s>"
    )
    assert prepare(request)[0].split("train")["documents"] == 9
    text.write_text(tokenizers.END_OF_TEXT.join(["abc cab", "abc </s> cab"] * 10))
    with pytest.raises(DataError, match=r"makes its end token '</s>' \(id 1\) out of text inside a document"):
        prepare(request)


def in_the_form_of_gpt_neox() -> dict[str, Any]:
    """Return a `tokenizer.json` built as GPT-NeoX's: NFC first, runs of blanks as tokens, two special ones."""
    definition = json.loads(bpe.to_json())
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    definition["normalizer"] = {"type": "NFC"}
    definition["post_processor"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
    }  # fmt: skip
    definition["added_tokens"].append(
        {"id": 1, "content": "<|padding|>", "normalized": False, "special": True, **plain}
    )
    vocab = definition["model"]["vocab"]
    definition["model"]["vocab"] = {"<|endoftext|>": 0, "<|padding|>": 1} | {t: i + 1 for t, i in vocab.items() if i}
    definition["added_tokens"] += [
        {"id": 401 + i, "content": " " * n, "normalized": True, "special": False, **plain}
        for i, n in enumerate(range(24, 1, -1))
    ]
    return definition


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([" ", "    ", "\n", "a", "e\u0301", "\u0301", "def f(", "字", "<|padding|>"]), max_size=14)
)
def test_a_tokeniser_like_gpt_neox(parts: list[str]) -> None:
    """Runs of blanks are one id, text comes back composed (NFC), and a cut where it is allowed changes no id."""
    tokenizer = tokenizers.SubwordTokenizer(json.dumps(in_the_form_of_gpt_neox()))
    assert (tokenizer.vocab_size, tokenizer.eot_id, tokenizer.piecewise) == (424, 0, True)
    assert tokenizer.encode("a" + " " * 24 + "a").tolist()[1:-1] == [401]
    text = "".join(parts)
    ids = tokenizer.encode(text).tolist()
    assert 1 not in ids and tokenizer.decode(ids) == unicodedata.normalize("NFC", text)
    for match in _SAFE_CUT.finditer(text):
        pieces = [text[: match.end()], text[match.end() :]]
        assert np.concatenate([tokenizer.encode(piece) for piece in pieces]).tolist() == ids


def test_a_token_that_spans_a_line_end_is_never_cut() -> None:
    definition = in_the_form_of_gpt_neox()
    assert tokenizers.SubwordTokenizer(json.dumps(definition)).piecewise
    for change in ({"content": "a\nb"}, {"rstrip": True}):
        spanning = json.loads(json.dumps(definition))
        spanning["added_tokens"][-1] |= change
        assert not tokenizers.SubwordTokenizer(json.dumps(spanning)).piecewise


@pytest.mark.parametrize(
    ("name", "part", "when"),
    [
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "cannot be read"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////w=="}, "cut short"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "fails for this text"),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
         "fails for this text"),
        ("model", {"type": "WordLevel", "unk_token": "u", "vocab": {tokenizers.END_OF_TEXT: 0}}, "fails for this text"),
    ],
)  # fmt: skip
def test_errors_and_panics_of_the_library_are_one_line(
    tmp_path: Path, name: str, part: dict[str, object], when: str
) -> None:
    """A panic of its Rust code is no ``Exception``; a table of 4 GB that is not there ended the process."""
    pytest.importorskip("tokenizers")
    definition = json.loads(tokenizers.train_bpe(["aab"], 257).to_json())
    definition[name] = part
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(DataError, match=when):
        tokenizers.load_tokenizer(tmp_path / "tokenizer.json").encode("a" * 40 + "c")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match="not a file"):
        tokenizers.load_tokenizer(tmp_path / "tokenizer.json")


def test_gpt2_ids_are_openais(samples: Callable[[str], Path]) -> None:
    tokenizer = tokenizers.gpt2_tokenizer(samples("gpt2"))
    assert tokenizer.vocab_size == 50_257 and tokenizer.eot_id == 50_256
    assert tokenizer.encode("Hello, I'm a language model,").tolist() == [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    assert tokenizer.encode(f"a{tokenizers.END_OF_TEXT}").tolist() == [64, 50_256]
    by_library = tokenizers.SubwordTokenizer(tokenizer.to_json(), kind="file")
    text = samples("wikitext/wiki.test.tokens").read_text(encoding="utf-8")[:200_000] + "  \n\n\t x  \r\n'LL 字é "
    assert tokenizer.encode(text).tolist() == by_library.encode(text).tolist()
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
