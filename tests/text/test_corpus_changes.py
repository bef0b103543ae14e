"""A corpus that is changed in use, or after it was written, is noticed; a new one in its place changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grok.errors import DataError
from grok.text.corpus import Corpus, open_corpus
from grok.text.preparation import Request, prepare


def prepared(out: Path, text: str) -> Corpus:
    source = out.parent / "text.txt"
    source.write_text(text, encoding="utf-8")
    return prepare(Request(form="text", inputs=(str(source),), out=out, tokenizer="byte"))[0]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return prepared(tmp_path / "corpus", "a cat sat on a mat\n" * 200)


def test_an_open_corpus_keeps_its_tokens_when_another_takes_its_place(corpus: Corpus, tmp_path: Path) -> None:
    before = corpus.tokens("val")[:50].tolist()
    other = prepared(tmp_path / "corpus", "the dog ran in the fog\n" * 200)
    assert other.hash != corpus.hash
    assert corpus.tokens("val")[:50].tolist() == before != other.tokens("val")[:50].tolist()
    corpus.refuse_changed(["train", "val"])
    corpus.verify()


def test_tokens_that_are_overwritten_in_place_are_noticed(corpus: Corpus) -> None:
    file = corpus.path / "train.bin"
    content = file.read_bytes()
    file.write_bytes(content)  # the same bytes again: no harm
    corpus.refuse_changed(["train"])
    file.write_bytes(content[:-2] + b"x\0")
    with pytest.raises(DataError, match=r"train\.bin was overwritten while it was in use"):
        corpus.refuse_changed(["train"])


def change(corpus: Corpus, path: tuple[str, ...], value: Any) -> None:
    """Write ``value`` to one place of the manifest."""
    file = corpus.path / "manifest.json"
    manifest = json.loads(file.read_text())
    place = manifest
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    file.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tokenizer", "vocab_size"), 259),
        (("tokenizer", "eot_id"), None),
        (("splits", "train", "sha256"), "0" * 64),
        (("hash",), "0" * 64),
        (("splits", "val", "words"), 7),
        (("detokenizer",), "wikitext"),
    ],
)
def test_a_changed_manifest_is_refused_before_anything_is_named_after_it(
    corpus: Corpus, path: tuple[str, ...], value: Any
) -> None:
    change(corpus, path, value)
    with pytest.raises(DataError, match=r"manifest\.json was changed after it was written: run `grok prepare` again"):
        open_corpus(corpus.path)


def test_a_manifest_of_before_is_held_against_the_hash_of_its_data(corpus: Corpus) -> None:
    file = corpus.path / "manifest.json"
    manifest = {k: v for k, v in json.loads(file.read_text()).items() if k != "manifest_sha256"}
    file.write_text(json.dumps(manifest))
    assert open_corpus(corpus.path).hash == corpus.hash
    manifest["tokenizer"]["vocab_size"] += 1
    file.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json was changed after it was written"):
        open_corpus(corpus.path)


def test_prepare_repairs_a_damaged_corpus(corpus: Corpus) -> None:
    """`run` says prepare again: the same command then makes the tokens anew instead of calling them up to date."""
    request = Request(form="text", inputs=(str(corpus.path.parent / "text.txt"),), out=corpus.path, tokenizer="byte")
    assert prepare(request)[1]
    file = corpus.path / "val.bin"
    good = file.read_bytes()
    file.write_bytes(b"\1" * len(good))
    lines: list[str] = []
    again, was_there = prepare(request, say=lines.append)
    assert not was_there and any("rebuilding" in line and "val.bin" in line for line in lines)
    assert (again.path / "val.bin").read_bytes() == good and again.hash == corpus.hash
