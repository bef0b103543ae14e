"""A corpus that is ruined is said to be; real ones are not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from grok.text.preparation import Request, prepare
from grok.text.quality import BANDS, EVERY, Quality, measure, near_duplicates, signature
from grok.text.sources.documents import write_fables

DRAW = random.Random(0)
GOOD = list(write_fables(120, 0))
RANDOM = ["".join(DRAW.choices("abcdefghijklmnopqrstuvwxyz     ", k=900)) for _ in range(360)]
SPAM = [f"Buy cheap watches at shop number {i} today and save a lot of money on it! " * 12 for i in range(360)]
HTML = [f'<div class="c{i}"><a href="/p/{i}">{text[:120]}</a><br/></div>' * 4 for i, text in enumerate(GOOD * 3)]


def report_of(tmp_path: Path, documents: list[str]) -> str:
    source = tmp_path / "t.txt"
    source.write_text("\n<|endoftext|>\n".join(documents), encoding="utf-8")
    request = Request(form="text", inputs=(str(source),), out=tmp_path / "out", tokenizer="byte")
    return (prepare(request)[0].path / "corpus.md").read_text(encoding="utf-8")


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


def test_near_duplicates_are_counted() -> None:
    documents = [" ".join(f"w{DRAW.randrange(10**6)}" for _ in range(200)) for _ in range(50)]
    copies = [text.replace(text.split()[100], "changed") for text in documents[:10]]
    bands = np.array([signature(text) for text in documents + copies], np.uint64)
    assert bands.shape == (60, BANDS + 1)
    assert near_duplicates(bands) == pytest.approx(10 / 60, abs=1 / 60)
    exact = np.array([signature(text) for text in documents + documents[:10]], np.uint64)
    assert near_duplicates(exact) == 0.0  # those are counted word for word elsewhere


@pytest.mark.parametrize("size", [100, 8192, 50_000, 10**6])
def test_the_windows_are_the_same_however_the_text_comes(size: int) -> None:
    text = " ".join(GOOD) * 6
    seen = Quality()  # the signature is of a document's beginning, which comes in one piece
    for i in range(0, len(text), size):
        seen.read(text[i : i + size], begins=i == 0)
    seen.finish()
    whole = Quality()
    whole.read(text, begins=True)
    whole.finish()
    assert whole.windows == -(-len(text) // EVERY) and seen.describe() == whole.describe()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("the cat is on the mat and that was it ", "English"),
        ("der Hund ist nicht auf dem Dach und die Katze auch nicht ", "German"),
        ("猫は畳の上にいます。", "Japanese"),
        ("qwx zzv kpl ", "unknown"),
    ],
)
def test_languages(text: str, name: str) -> None:
    assert measure(text * 40).language == name
