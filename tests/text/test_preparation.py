"""Text becomes the same tokens whatever its form, size, path or workers; a changed cause rebuilds."""

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok import files
from grok.commands.compose import apply
from grok.errors import DataError
from grok.processes import host_in_names
from grok.text import documents as pieces
from grok.text import preparation
from grok.text.corpus import Corpus, check_vocabulary, open_corpus, refuse_other_tokenizer
from grok.text.documents import write_fables
from grok.text.preparation import Request, prepare
from grok.text.tokenizers import END_OF_TEXT, train_bpe
from grok.text.windows import gather
from tests.gpt.conftest import prepare_text
from tests.text.conftest import ARTICLES


def request(tmp_path: Path, *inputs: Path | str, out: str = "out", form: str = "text", **settings: Any) -> Request:
    given = {"tokenizer": "byte"} | settings
    return Request(form=form, inputs=tuple(map(str, inputs)), out=tmp_path / out, **given)


def texts(corpus: Corpus, split: str) -> list[str]:
    ids, offsets = corpus.tokens(split), corpus.documents(split)
    return [corpus.tokenizer.decode(ids[a:b].tolist()) for a, b in itertools.pairwise(offsets)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("ab é\n.", min_size=1, max_size=40).filter(str.strip), min_size=2, max_size=12), st.data())
def test_documents_end_with_their_token_and_come_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("p")
    (folder / "d.jsonl").write_text("\n".join(json.dumps({"text": d}) for d in documents))
    tokenizer = data.draw(st.sampled_from(["char", "byte", "bpe"]))
    fraction = data.draw(st.sampled_from([0.01, 0.3, 0.9]))
    monkey = pytest.MonkeyPatch()
    monkey.setattr(preparation, "CHUNK_CHARACTERS", data.draw(st.integers(1, 60)))
    corpus, _ = prepare(request(folder, folder / "d.jsonl", tokenizer=tokenizer, val_fraction=fraction, vocab_size=270))
    monkey.undo()
    found = texts(corpus, "train") + texts(corpus, "val")
    assert found == [d + END_OF_TEXT for d in documents]
    held_out = min(max(1, round(len(documents) * fraction)), len(documents) - 1)
    assert corpus.split("val")["documents"] == held_out
    for split in ("train", "val"):
        ids, offsets = corpus.tokens(split), corpus.documents(split)
        assert (ids[offsets[1:] - 1] == corpus.eot_id).all() and (ids == corpus.eot_id).sum() == len(offsets) - 1
        assert ids.max() < corpus.vocab_size and offsets[0] == 0 and offsets[-1] == len(ids)
        assert corpus.split(split)["bytes"] == sum(len(d[: -len(END_OF_TEXT)].encode()) for d in texts(corpus, split))
    corpus.verify()


def test_one_text_is_cut_by_characters_and_has_no_end(tmp_path: Path) -> None:
    text = "".join(f"{i} bottles é\n" for i in range(300))
    (tmp_path / "t.txt").write_text(text)
    for tokenizer in ("char", "byte", "bpe"):
        corpus, _ = prepare(request(tmp_path, tmp_path / "t.txt", tokenizer=tokenizer, vocab_size=300))
        cut = int(len(text) * 0.9)
        assert texts(corpus, "train") == [text[:cut]] and texts(corpus, "val") == [text[cut:]]
        assert corpus.manifest["continuous"]
    char, _ = prepare(request(tmp_path, tmp_path / "t.txt", tokenizer="char"))
    assert char.eot_id is None and char.vocab_size == len(set(text))


def test_the_hash_names_content_not_form_or_path(tmp_path: Path) -> None:
    stories = list(write_fables(40, 0))
    (tmp_path / "s.txt").write_text(f"\n{END_OF_TEXT}\n".join(stories))
    pq.write_table(pa.table({"text": stories}), tmp_path / "s.parquet")
    one, _ = prepare(request(tmp_path, tmp_path / "s.txt", form="tinystories", out="a"))
    two, _ = prepare(request(tmp_path, tmp_path / "s.parquet", form="tinystories", out="deep/b"))
    assert one.hash == two.hash and one.manifest["key"] != two.manifest["key"]
    moved = shutil.move(two.path, tmp_path / "moved")
    assert open_corpus(moved).hash == one.hash
    for change in ({"tokenizer": "char"}, {"val_fraction": 0.2}):
        assert prepare(request(tmp_path, tmp_path / "s.txt", form="tinystories", out="c", **change))[0].hash != one.hash
    (tmp_path / "s2.txt").write_text(f"\n{END_OF_TEXT}\n".join([*stories[:-1], stories[-1] + "!"]))
    assert prepare(request(tmp_path, tmp_path / "s2.txt", form="tinystories", out="d"))[0].hash != one.hash
    with_test = request(
        tmp_path, tmp_path / "s.txt", form="tinystories", out="e", split_files={"test": (str(tmp_path / "s2.txt"),)}
    )
    assert prepare(with_test)[0].hash == one.hash  # no run trains on a test split


def test_nothing_is_done_twice_and_a_changed_cause_rebuilds(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("once upon a time " * 50)
    asked = request(tmp_path, tmp_path / "t.txt", tokenizer="bpe", vocab_size=270)
    first, was_there = prepare(asked)
    before = {f.name: f.stat().st_mtime_ns for f in asked.out.iterdir()}
    assert not was_there and prepare(asked)[1]
    assert {f.name: f.stat().st_mtime_ns for f in asked.out.iterdir()} == before
    assert set(before) == {
        "manifest.json", "tokenizer.json", "corpus.json", "corpus.md", "train.bin", "train.docs", "val.bin", "val.docs",
    }  # fmt: skip

    said: list[str] = []
    (tmp_path / "t.txt").write_text("twice upon a time " * 50)  # the same name, other content
    second, was_there = prepare(asked, said.append)
    assert not was_there and second.hash != first.hash and any("have changed" in line for line in said)
    third, was_there = prepare(request(tmp_path, tmp_path / "t.txt", tokenizer="bpe", vocab_size=280))
    assert not was_there and third.hash != second.hash

    whole = (asked.out / "val.bin").read_bytes()
    for damaged, word in ((b"\0", "truncated"), (b"\1" * len(whole), "val.bin")):
        (asked.out / "val.bin").write_bytes(damaged)
        said.clear()
        fourth, was_there = prepare(request(tmp_path, tmp_path / "t.txt", tokenizer="bpe", vocab_size=280), said.append)
        assert not was_there and fourth.hash == third.hash and (asked.out / "val.bin").read_bytes() == whole
        assert any("rebuilding" in line and word in line for line in said)
    assert not list(tmp_path.glob(".out*"))


def test_workers_and_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.txt").write_text(f"\n{END_OF_TEXT}\n".join([*write_fables(400, 2), "\n".join(write_fables(300, 3))]))
    asked = request(tmp_path, tmp_path / "s.txt", form="tinystories", tokenizer="bpe", vocab_size=400, out="one")
    plain, _ = prepare(asked)
    monkeypatch.setattr(preparation, "POOL_BYTES", 1)
    monkeypatch.setattr(preparation, "CHUNK_CHARACTERS", 5000)
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 3000)
    pooled, _ = prepare(
        request(tmp_path, tmp_path / "s.txt", form="tinystories", tokenizer="bpe", vocab_size=400, out="two", workers=2)
    )
    assert pooled.hash == plain.hash
    assert (pooled.path / "corpus.json").read_text() == (plain.path / "corpus.json").read_text()


def test_wikitext_counts_stand_for_the_source(tmp_path: Path) -> None:
    (tmp_path / "w.tokens").write_text(ARTICLES)
    given = {"form": "wikitext", "split_files": {"test": (str(tmp_path / "w.tokens"),)}}
    plain, _ = prepare(request(tmp_path, tmp_path / "w.tokens", **given))
    words = len(ARTICLES.split()) + ARTICLES.count("\n")
    assert plain.split("test")["words"] == words == plain.split("train")["words"] + plain.split("val")["words"]
    assert plain.split("test")["bytes"] == len(ARTICLES.encode()) and plain.split("test")["documents"] == 2
    assert "".join(texts(plain, "test")).replace(END_OF_TEXT, "") == ARTICLES
    rewritten, _ = prepare(request(tmp_path, tmp_path / "w.tokens", **given, detokenize=True, out="d"))
    assert rewritten.split("test")["words"] == words  # still WikiText's own count
    assert rewritten.split("test")["tokens"] < plain.split("test")["tokens"]
    assert rewritten.manifest["detokenizer"] == "wikitext" and rewritten.hash != plain.hash


def test_the_report_sees_what_is_wrong(tmp_path: Path) -> None:
    good = list(write_fables(60, 0))
    documents = [*good, good[3], good[4], "x", "bad \ufffd\ufffd text, and long enough", "  ", good[5]]
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps({"text": d}) for d in documents))
    corpus, _ = prepare(request(tmp_path, tmp_path / "d.jsonl", tokenizer="char", val_fraction=0.03))
    report = json.loads((corpus.path / "corpus.json").read_text())
    text = report["text"]["input"]
    assert text["documents"] == 65 and text["blank_documents"] == 1
    assert text["duplicate_share"] == pytest.approx(3 / 65)
    assert text["replacement_characters"] == 2
    assert text["shortest_document"] == {"number": 62, "bytes": 1}
    sizes = [len(d.encode()) for d in documents if d.strip()]
    assert text["bytes"] == sum(sizes) and text["longest_document"]["bytes"] == max(sizes)
    warnings = " ".join(report["warnings"])
    for part in (
        "not UTF-8",
        "repeat an earlier one",
        "blank documents",
        "fewer than 20",
        "val: 1 of 2 documents are also",
    ):
        assert part in warnings, part


FILTERS = {
    "min_characters": ({"min_characters": 5}, [0, 1, 3, 4, 5], {"too short": 1, "as they were": 5}),
    "max_characters": ({"max_characters": 20}, [1, 2, 3, 4, 5], {"too long": 1, "as they were": 5}),
    "duplicates": ({"without_duplicates": True}, [0, 1, 2, 4], {"duplicates": 2, "as they were": 4}),
    "lower case": (
        {"lower_case": True, "without_duplicates": True}, [0, 1, 2],
        {"duplicates": 3, "lower-cased": 1, "as they were": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
def test_filters_leave_out_and_change_what_is_asked_for_and_count_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    changes, kept, counts = FILTERS[name]
    documents = [
        "a long document\n\nin two parts",
        "the hare ran",
        "Fox",
        "the hare ran",
        "The Hare ran",
        "the hare ran",
    ]
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, document in enumerate([*documents, " "]):
        (folder / f"{i}.txt").write_text(document)
    plain, _ = prepare(request(tmp_path, folder, out="plain"))
    monkeypatch.setattr(pieces, "CHUNK_BYTES", 4)  # documents come in several pieces
    asked = request(tmp_path, folder, filters=pieces.Filters(**changes))
    corpus, _ = prepare(asked)
    expected = [documents[i].lower() if "lower_case" in changes else documents[i] for i in kept]
    assert [text.removesuffix(END_OF_TEXT) for split in ("train", "val") for text in texts(corpus, split)] == expected
    report = json.loads((corpus.path / "corpus.json").read_text())["text"]["input"]
    assert report["filtered"] == counts | {"as they were": counts["as they were"] + 1}, "the blank one is as it was"
    assert (report["documents"], report["blank_documents"]) == (len(kept), 1)
    assert (
        ", ".join(f"{n:,} {what}" for what, n in report["filtered"].items()) in (corpus.path / "corpus.md").read_text()
    )
    assert prepare(asked)[1] and prepare(request(tmp_path, folder, out="plain"))[1], "nothing is made twice"
    assert corpus.hash != plain.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_fraction": 0.0}, "leaves no validation split"),
        ({"tokenizer": "nope"}, "--tokenizer nope: expected char, byte, bpe, gpt2, or a tokenizer.json that exists"),
        ({"detokenize": True}, "--detokenize is for wikitext"),
        ({"tokenizer": "bpe", "vocab_size": 99}, "at least 257"),
    ],
)
def test_impossible_requests_change_nothing(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "t.txt").write_text("some text\n" * 20)
    with pytest.raises(DataError, match=message):
        prepare(request(tmp_path, tmp_path / "t.txt", **change))
    assert [p.name for p in tmp_path.iterdir()] == ["t.txt"]


def test_a_killed_preparation_leaves_the_old_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("first text\n" * 30)
    old, _ = prepare(request(tmp_path, tmp_path / "t.txt"))
    (tmp_path / "t.txt").write_text("second text\n" * 30)

    def killed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(preparation.Preparation, "_encode", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(request(tmp_path, tmp_path / "t.txt"))
    assert open_corpus(tmp_path / "out").hash == old.hash
    (tmp_path / f".out.tmp-{host_in_names()}+999999999+1+0123abcd").mkdir()  # of a process that is no more
    (tmp_path / ".out.tmp-old-0123abcd").mkdir()  # of one that was putting the new corpus in place
    monkeypatch.undo()
    assert prepare(request(tmp_path, tmp_path / "t.txt"))[0].hash != old.hash
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "t.txt"]


def test_an_open_corpus_refuses_what_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a small text\n" * 30)
    corpus, _ = prepare(request(tmp_path, tmp_path / "t.txt"))

    def damaged(change: Callable[[Path], object]) -> Path:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(corpus.path, copy)
        change(copy)
        return copy

    cut = damaged(lambda p: (p / "train.bin").write_bytes((p / "train.bin").read_bytes()[:-4]))
    with pytest.raises(DataError, match=r"train\.bin is truncated: 698 bytes, the manifest says 702"):
        open_corpus(cut)
    with pytest.raises(DataError, match=r"val\.docs cannot be read: run `grok prepare` again \(No such file"):
        open_corpus(damaged(lambda p: (p / "val.docs").unlink()))
    with pytest.raises(DataError, match="is not the tokeniser that these tokens were made with"):
        open_corpus(damaged(lambda p: (p / "tokenizer.json").write_text(
            '{"format": "grok-tokenizer", "kind": "char", "characters": "abc", "end_of_text": false}')))  # fmt: skip
    with pytest.raises(DataError, match="has version 99"):
        open_corpus(damaged(lambda p: (p / "manifest.json").write_text('{"version": 99}')))
    with pytest.raises(DataError, match="is not a corpus manifest"):
        open_corpus(damaged(lambda p: (p / "manifest.json").write_text("{")))
    with pytest.raises(DataError, match="no prepared corpus"):
        open_corpus(tmp_path)
    flipped = damaged(lambda p: (p / "train.bin").write_bytes(b"\1" + (p / "train.bin").read_bytes()[1:]))
    with pytest.raises(DataError, match="was changed after it was written"):
        open_corpus(flipped).verify()
    with pytest.raises(DataError, match="no split 'test': it has train, val"):
        corpus.tokens("test")
    with pytest.raises(DataError, match="the model has 100 ids"):
        check_vocabulary(corpus, 100)
    check_vocabulary(corpus, 257)


def test_a_vocabulary_beyond_65536_ids_is_stored_in_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("one two three four five six seven\n" * 40)
    small, _ = prepare(request(tmp_path, tmp_path / "t.txt", tokenizer="bpe", vocab_size=280, out="small"))
    definition = json.loads(small.tokenizer.to_json())
    vocab = definition["model"]["vocab"]
    definition["model"]["vocab"] = {t: i + 70_000 if i > 0 else i for t, i in vocab.items()}
    (tmp_path / "large.json").write_text(json.dumps(definition))
    large, _ = prepare(request(tmp_path, tmp_path / "t.txt", tokenizer=str(tmp_path / "large.json"), out="large"))
    ids = large.tokens("train")
    assert ids.dtype == np.uint32 and int(ids.min()) > 2**16 and large.vocab_size == 70_000 + small.vocab_size
    assert (ids - 70_000).tolist() == small.tokens("train").tolist()
    assert texts(large, "train") == texts(small, "train")
    assert gather(ids, np.zeros(1, dtype=np.int64), 8)[0].tolist() == [ids[:8].tolist()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc, which is Linux's")
def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    text = f"\n{END_OF_TEXT}\n".join(write_fables(2000, 0)) + f"\n{END_OF_TEXT}\n"
    peaks = []
    for megabytes in (30, 90):
        file = tmp_path / f"{megabytes}.txt"
        file.write_text(text * (megabytes * 10**6 // len(text)))
        code = (  # VmHWM: this process alone; ru_maxrss would hold its parent's size at the fork
            "import sys; from grok import prepare; status = prepare.main(sys.argv[1:]);"
            "print(next(x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM'))); sys.exit(status)"
        )
        argv = ["tinystories", "--input", str(file), "--tokenizer", "char", "--workers", "1", "--out", f"{file}.out"]
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.splitlines()[-1]) / 1000)
    assert peaks[1] < 400 and peaks[1] - peaks[0] < 30, peaks


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
    (a := tmp_path / "a").mkdir()
    try:
        files.exchange(a, a)
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

    def refuse(a: Path, b: Path) -> None:
        raise OSError(22, "Invalid argument")

    for name, replaced, fraction in ((Path, "rename"), checked, 0.5), ((files, "_swap"), refuse, 0.2):
        with monkeypatch.context() as patch:  # where folders cannot be swapped, two renames replace
            patch.setattr(*name, replaced)
            new, _ = prepare(request(tmp_path, tmp_path / "t.txt", val_fraction=fraction))
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


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return prepare_text(tmp_path, "a cat sat on a mat\n" * 200, tokenizer="byte")


def test_an_open_corpus_keeps_its_tokens_when_another_takes_its_place(corpus: Corpus, tmp_path: Path) -> None:
    before = corpus.tokens("val")[:50].tolist()
    other = prepare_text(tmp_path, "the dog ran in the fog\n" * 200, tokenizer="byte")
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer.vocab_size", 259),
        ("tokenizer.eot_id", None),
        ("splits.train.sha256", "0" * 64),
        ("hash", "0" * 64),
        ("splits.val.words", 7),
        ("detokenizer", "wikitext"),
    ],
)
def test_a_changed_manifest_is_refused_before_anything_is_named_after_it(corpus: Corpus, name: str, value: Any) -> None:
    file = corpus.path / "manifest.json"
    file.write_text(json.dumps(apply(json.loads(file.read_text()), {name: value})))
    with pytest.raises(DataError, match=r"manifest\.json was changed after it was written: run `grok prepare` again"):
        open_corpus(corpus.path)
