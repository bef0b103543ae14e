"""What a second preparation into the same folder replaces, what it leaves, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grok.errors import DataError
from grok.files import exchange
from grok.text.corpus import open_corpus, refuse_other_tokenizer
from grok.text.preparation import prepare
from grok.text.tokenizers import END_OF_TEXT, train_bpe
from tests.text.test_preparation import request


def test_files_that_are_not_of_the_corpus_are_never_lost(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("text enough\n" * 20)
    corpus, _ = prepare(request(tmp_path, tmp_path / "t.txt"))
    prepare(request(tmp_path, tmp_path / "t.txt", out="out/inner"))
    (corpus.path / "notes.md").write_text("precious")
    assert prepare(request(tmp_path, tmp_path / "t.txt"))[1], "it is up to date, so nothing would be lost"
    with pytest.raises(DataError, match=r"would be lost \(inner, notes\.md\): move them away"):
        prepare(request(tmp_path, tmp_path / "t.txt", val_fraction=0.2))
    assert open_corpus(corpus.path / "inner").hash == open_corpus(corpus.path).hash == corpus.hash
    (site := tmp_path / "site").mkdir()
    (site / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(DataError, match=r"would be lost \(manifest\.json\)"):
        prepare(request(tmp_path, tmp_path / "t.txt", out="site"))
    assert [p.name for p in site.iterdir()] == ["manifest.json"]


def test_a_new_corpus_replaces_the_old_one_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two renames would leave no corpus under its name."""
    (a := tmp_path / "a").mkdir()
    try:
        exchange(a, a)
    except OSError:
        pytest.skip("this file system cannot swap two folders")
    a.rmdir()
    (tmp_path / "t.txt").write_text("first text\n" * 30)
    old, _ = prepare(request(tmp_path, tmp_path / "t.txt"))
    rename = Path.rename

    def checked(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        assert old.path.is_dir()
        return moved

    monkeypatch.setattr(Path, "rename", checked)
    new, _ = prepare(request(tmp_path, tmp_path / "t.txt", val_fraction=0.5))
    assert new.hash != old.hash and sorted(p.name for p in tmp_path.iterdir()) == ["out", "t.txt"]


def test_where_folders_cannot_be_swapped_two_renames_replace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(a: Path, b: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("grok.files._swap", refuse)
    (tmp_path / "t.txt").write_text("first text\n" * 30)
    old, _ = prepare(request(tmp_path, tmp_path / "t.txt"))
    new, _ = prepare(request(tmp_path, tmp_path / "t.txt", val_fraction=0.5))
    assert open_corpus(tmp_path / "out").hash == new.hash != old.hash
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "t.txt"]


def test_the_same_bytes_read_in_another_way_are_another_corpus(tmp_path: Path) -> None:
    lines = tmp_path / "s.txt"
    lines.write_text("".join(json.dumps({"text": f"story {n}"}) + "\n" for n in range(18)))
    plain, _ = prepare(request(tmp_path, lines))
    table, was_there = prepare(request(tmp_path, lines.rename(tmp_path / "s.jsonl")))
    assert not was_there and table.hash != plain.hash
    assert table.split("train")["documents"] + table.split("val")["documents"] == 18
    assert prepare(request(tmp_path, tmp_path / "s.jsonl"))[1]


def test_another_end_token_is_another_corpus(tmp_path: Path) -> None:
    definition = json.loads(train_bpe(["some text"], 270).to_json())
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 280, "content": "<s>"})
    (tmp_path / "two.json").write_text(json.dumps(definition))
    (tmp_path / "t.txt").write_text(END_OF_TEXT.join(["some text"] * 20))
    told = {"tokenizer": str(tmp_path / "two.json")}
    first, _ = prepare(request(tmp_path, tmp_path / "t.txt", out="a", **told))
    for out in ("a", "b"):
        second, was_there = prepare(request(tmp_path, tmp_path / "t.txt", out=out, eot="<s>", **told))
        assert not was_there and second.eot_id != first.eot_id
    assert prepare(request(tmp_path, tmp_path / "t.txt", out="b", eot="<s>", **told))[1]
    third, _ = prepare(request(tmp_path, tmp_path / "t.txt", out="c", **told))
    with pytest.raises(DataError, match=r"another tokeniser .* with --tokenizer .*tokenizer\.json --eot '<s>'"):
        refuse_other_tokenizer(third, second)
