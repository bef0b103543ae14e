"""Documents out of every published form, in a fixed order; ruined corpora are said to be."""

import functools
import gzip
import itertools
import json
import lzma
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grok.errors import DataError
from grok.text import documents
from grok.text.documents import Source
from grok.text.quality import EVERY, Quality
from grok.text.tokenizers import END_OF_TEXT, SubwordTokenizer, train_bpe
from tests.gpt.conftest import prepare_text
from tests.text.conftest import ARTICLES


def read(form: str, *inputs: Path | str, field: str | None = None) -> list[str]:
    found, open_parts = [], ""
    for piece in documents.without_blank_documents(Source(form, tuple(map(str, inputs)), field).pieces()):
        open_parts += piece.text
        if piece.ends_document:
            found.append(open_parts)
            open_parts = ""
    assert not open_parts
    return found


def chunked(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted({c for c in cuts if c < len(text)}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def test_one_story_list_from_every_form(tmp_path: Path) -> None:
    stories = list(documents.write_fables(30, 4))
    (tmp_path / "v1.txt").write_text(f"\n{END_OF_TEXT}\n".join(stories) + f"\n{END_OF_TEXT}\n")
    (tmp_path / "v2.txt.GZ").write_bytes(gzip.compress(f" \n{END_OF_TEXT}".join(stories).encode()))
    (tmp_path / "v3.txt.xz").write_bytes(lzma.compress(END_OF_TEXT.join(stories).encode()))
    pq.write_table(pa.table({"text": stories}), tmp_path / "s.parquet", row_group_size=7)
    lines = "\n".join(json.dumps({"story": s, "summary": "x"}) for s in stories)
    (tmp_path / "s.JSONL").write_text(lines)
    (tmp_path / "s.Jsonl.XZ").write_bytes(lzma.compress(lines.encode()))
    shards = tmp_path / "shards"
    shards.mkdir()
    for i in range(12):  # natural order: data2 before data10
        part = stories[i * 3 : i * 3 + 3] if i < 10 else []
        (shards / f"data{i}.json").write_text(json.dumps([{"story": s, "source": "here"} for s in part], indent=2))
    for name in ("v1.txt", "v2.txt.GZ", "v3.txt.xz", "s.parquet", "s.JSONL", "s.Jsonl.XZ", "shards"):
        assert read("tinystories", tmp_path / name) == stories, name
    assert read("tinystories", tmp_path / "v1.txt", tmp_path / "s.parquet") == stories * 2
    assert read("openwebtext", tmp_path / "s.parquet") == stories
    assert read("text", tmp_path / "s.JSONL", field="summary") == ["x"] * 30


def test_a_row_with_an_end_in_it_is_two_documents(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"one{END_OF_TEXT}two", "three"]}), tmp_path / "r.parquet")
    assert read("text", tmp_path / "r.parquet") == ["one", "two", "three"]


def test_a_folder_is_one_document_per_file_in_natural_order(tmp_path: Path) -> None:
    for name in ("b/file10.txt", "b/file9.txt", "a.txt", ".hidden/x.txt", "b/.skip"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read("openwebtext", tmp_path) == ["a.txt", "b/file9.txt", "b/file10.txt"]
    names = ["x10", "x9", "9", "x", "x1²2"]
    assert sorted(names, key=documents.natural_key) == ["9", "x", "x1²2", "x9", "x10"]


def test_text_is_kept_to_the_letter(tmp_path: Path) -> None:
    text = "\r\nline one\r\n\r\n\ttwo \u2028 \x85 three \n"
    (tmp_path / "t.txt").write_bytes(text.encode())
    assert read("text", tmp_path / "t.txt") == [text]
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbfabc")
    assert read("text", tmp_path / "bom.txt") == ["abc"]
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9 ok")
    assert read("text", tmp_path / "bad.txt") == ["caf\ufffd ok"]


def test_wikitext_articles_and_words() -> None:
    found = [p.text for p in documents.articles(documents.lines_of([ARTICLES]))]
    assert "".join(found) == ARTICLES
    assert [f.split("=")[1].strip() for f in found] == ["Moss", "The ( odd ) Owl"]
    by_hand = sum(1 for _ in ARTICLES.replace("\n", " <eos> ").split(" ") if _)
    assert documents.word_count(ARTICLES) == by_hand == sum(documents.word_count(f) for f in found)
    chunks = chunked(ARTICLES, list(range(0, 400, 11)))
    assert [p.text for p in documents.articles(documents.lines_of(chunks))] == found


def test_an_article_goes_on_in_the_next_part_of_a_table(tmp_path: Path) -> None:
    """WikiText-103 is published as two parquet files, cut by rows. Text files are whole."""
    lines = ARTICLES.splitlines(keepends=True)
    rows = ["" if line == " \n" else line for line in lines]
    whole = [p.text for p in documents.articles(documents.lines_of([ARTICLES]))]
    for cut in range(1, len(rows)):
        assert [
            p.text for p in documents.articles(documents.lines_of_rows(rows[:cut]), documents.lines_of_rows(rows[cut:]))
        ] == whole
    (folder := tmp_path / "w").mkdir()
    for name, part in (("a", rows[:5]), ("b", rows[5:])):
        pq.write_table(pa.table({"text": part}), folder / f"{name}.parquet")
    assert read("wikitext", folder) == read("wikitext", folder / "a.parquet", folder / "b.parquet") == whole
    untitled = "".join(lines[3:])
    (tmp_path / "1.txt").write_text(ARTICLES)
    (tmp_path / "2.txt").write_text(untitled)
    texts = read("wikitext", tmp_path / "1.txt", tmp_path / "2.txt")
    assert texts == [*whole, untitled.removesuffix(whole[1]), whole[1]]


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=6),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    lines=st.booleans(),
)
def test_json_arrays_and_lines_stream(values: list[dict[str, str]], cuts: list[int], lines: bool) -> None:
    text = "\n".join(map(json.dumps, values)) if lines else json.dumps(values, indent=1)
    assert list(documents.json_values(chunked(text, cuts), Path("x.json"))) == values


@pytest.mark.parametrize("form", ["text", "wikitext"])
def test_a_text_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_VALUE", 3 << 20)
    (tmp_path / "zeros.txt.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(DataError, match="without a line end"):
        read(form, tmp_path / "zeros.txt.gz")


def test_a_text_that_stands_once_and_many_times_in_the_rows_is_in_memory_once(tmp_path: Path) -> None:
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 600, pa.int32()), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"text": rows}), tmp_path / "x.parquet", store_schema=False)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert sum(len(text) for text in documents.rows(tmp_path / "x.parquet", ("text",))) == 600 << 20
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 100 << 20


def test_damaged_inputs_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('[{"text": "a"}, {"text": "b')
    with pytest.raises(DataError, match=r"cut\.json: not JSON, or truncated, at character 16"):
        read("text", tmp_path / "cut.json")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(np.random.Philox(key=1).random_raw(999).tobytes())[:-50])
    with pytest.raises(DataError, match=r"cut\.txt\.gz cannot be read"):
        read("text", tmp_path / "cut.txt.gz")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read("text", tmp_path / "x.parquet")
    pq.write_table(pa.table({"body": ["a"], "id": [1]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match=r"no field 'text' or 'story'; it has body, id; name one with --field"):
        read("tinystories", tmp_path / "y.parquet")
    assert read("tinystories", tmp_path / "y.parquet", field="body") == ["a"]
    with pytest.raises(DataError, match="has no text: 1"):
        read("text", tmp_path / "y.parquet", field="id")
    for value, reason in (('{"text": "a", "n": ' + "9" * 5000 + "}", "digits"), ('{"a":' * 100_000, "recursion")):
        (tmp_path / "odd.json").write_text(value)
        with pytest.raises(DataError, match=rf"odd\.json: a value of this JSON cannot be read \(.*{reason}"):
            read("text", tmp_path / "odd.json")
    with pytest.raises(DataError, match="no such file or folder"):
        Source("text", (str(tmp_path / "none.txt"),))
    for name in ("all.tar.gz", "all.tgz", "ALL.ZIP", "text.txt.zst"):  # taken for text it would be trained on
        (tmp_path / name).write_bytes(b"packed")
        with pytest.raises(DataError, match="is an archive: unpack it"):
            Source("tinystories", (str(tmp_path / name),))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no files"):
        Source("text", (str(tmp_path / "empty"),))


def test_half_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"text": "a\\ud83d b"}\n{"text": "\\ud83d\\ude00"}')
    assert read("text", tmp_path / "s.jsonl") == ["a\ufffd b", "😀"]


WORDS = [
    "cat", "don't", "1,000", "naïve", "猫", "。", "!", " ", "  ", "\n", "\r\n", "\n\n", "'s", "<", "e\u0301", "x_y",
]  # fmt: skip


@functools.cache
def bpe() -> SubwordTokenizer:
    return train_bpe(["the cat's 1,000 naïve don't 猫。犬 x_y\r\n!\n\n" * 20], 320)


def of(text: str, size: int, *, strip: bool = False) -> list[documents.Piece]:
    return list(documents.documents_of(chunked(text, list(range(size, len(text), size))), strip=strip))


def joined(cut: list[documents.Piece]) -> list[str]:
    documents = [""]
    for piece in cut:
        documents[-1] += piece.text
        if piece.ends_document:
            documents.append("")
    return documents[:-1]


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", 24)


@pytest.mark.usefixtures("short_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*WORDS, "<|endoftext|>"]), max_size=60), st.integers(1, 40), st.booleans())
def test_the_pieces_of_a_document_are_the_document(words: list[str], size: int, strip: bool) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as whole:
        whole.setattr(documents, "PIECE_CHARACTERS", 10**9)
        expected = [piece.text for piece in of(text, 10**9, strip=strip)]
    assert joined(of(text, size, strip=strip)) == expected


@pytest.mark.usefixtures("short_pieces")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=60), st.integers(17, 40))
def test_the_ids_of_the_pieces_are_the_ids_of_the_whole(words: list[str], size: int) -> None:
    text = "".join(words)
    cut = of(text, size)
    ids = [i for piece in cut for i in bpe().encode_plain([piece.text])[0].tolist()]
    assert ids == bpe().encode_plain([text])[0].tolist()
    assert sum(len(piece.text.split()) for piece in cut) == len(text.split())


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("unit", ["a b", "a\r\nb", "a\nb"])
def test_a_long_document_is_cut_at_any_kind_of_word_end(unit: str) -> None:
    assert max(len(piece.text) for piece in of(unit * 200, 50)) <= 50


@pytest.mark.usefixtures("short_pieces")
def test_a_text_that_cannot_be_cut_is_read_in_linear_time() -> None:
    def seconds(n: int) -> float:
        began = time.process_time()
        (piece,) = of("x" * n, 1000)
        assert len(piece.text) == n
        return time.process_time() - began

    seconds(10_000)
    assert seconds(2_000_000) < 40 * max(seconds(200_000), 1e-3)  # ten times the text; quadratic would be a hundred


DRAW = random.Random(0)
GOOD = list(documents.write_fables(120, 0))
RANDOM = ["".join(DRAW.choices("abcdefghijklmnopqrstuvwxyz     ", k=900)) for _ in range(360)]
SPAM = [f"Buy cheap watches at shop number {i} today and save a lot of money on it! " * 12 for i in range(360)]
HTML = [f'<div class="c{i}"><a href="/p/{i}">{text[:120]}</a><br/></div>' * 4 for i, text in enumerate(GOOD * 3)]


def report_of(tmp_path: Path, documents: list[str]) -> str:
    corpus = prepare_text(tmp_path, "\n<|endoftext|>\n".join(documents), tokenizer="byte")
    return (corpus.path / "corpus.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (RANDOM, "looks like random letters"),
        (SPAM, "repeats sequences of five words"),
        (HTML, "is markup"),
    ],
    ids=["random letters", "spam", "html"],
)
def test_a_corpus_three_quarters_ruined_is_said_to_be(bad: list[str], words: str, tmp_path: Path) -> None:
    mixed = GOOD + bad
    random.Random(1).shuffle(mixed)
    page = report_of(tmp_path, mixed)
    warnings = page.partition("## Warnings")[2].partition("## Splits")[0]
    assert words in warnings and "## Worst samples of input" in page


@pytest.mark.parametrize("size", [100, 8192, 50_000, 10**6])
def test_the_windows_are_the_same_however_the_text_comes(size: int) -> None:
    text = " ".join(GOOD) * 6
    seen = Quality()
    for i in range(0, len(text), size):
        seen.read(text[i : i + size])
    seen.finish()
    whole = Quality()
    whole.read(text)
    whole.finish()
    assert whole.windows == -(-len(text) // EVERY) and seen.describe() == whole.describe()
