"""Long documents come in pieces that have the ids of the whole, wherever the chunks of the file happen to end."""

import functools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grok.text.sources import documents as pieces
from grok.text.sources.documents import Piece, documents_of
from grok.text.tokenizers import SubwordTokenizer, train_bpe

WORDS = [
    "cat",
    "don't",
    "1,000",
    "naïve",
    "猫",
    "。",
    "!",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\n\n",
    "\t",
    "'s",
    "<",
    "e\u0301",
    "x_y",
]
LONG = ["a b", "a\r\nb", "a\nb"]


@functools.cache
def bpe() -> SubwordTokenizer:
    return train_bpe(["the cat's 1,000 naïve don't 猫。犬 x_y\r\n!\n\n" * 20], 320)


def in_chunks(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def of(text: str, size: int, *, strip: bool = False) -> list[Piece]:
    return list(documents_of(in_chunks(text, size), strip=strip))


def joined(cut: list[Piece]) -> list[str]:
    documents = [""]
    for piece in cut:
        documents[-1] += piece.text
        if piece.ends_document:
            documents.append("")
    return documents[:-1]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 24)


@given(st.lists(st.sampled_from([*WORDS, "<|endoftext|>"]), max_size=60), st.integers(1, 40), st.booleans())
def test_the_pieces_of_a_document_are_the_document(words: list[str], size: int, strip: bool) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as whole:
        whole.setattr(pieces, "PIECE_CHARACTERS", 10**9)
        expected = [piece.text for piece in of(text, 10**9, strip=strip)]
    assert joined(of(text, size, strip=strip)) == expected


@given(st.lists(st.sampled_from(WORDS), max_size=60), st.integers(17, 40))
def test_the_ids_of_the_pieces_are_the_ids_of_the_whole(words: list[str], size: int) -> None:
    text = "".join(words)
    cut = of(text, size)
    ids = [i for piece in cut for i in bpe().encode_plain([piece.text])[0].tolist()]
    assert ids == bpe().encode_plain([text])[0].tolist()
    assert sum(len(piece.text.split()) for piece in cut) == len(text.split())


@pytest.mark.parametrize("unit", LONG)
def test_a_long_document_is_cut_at_any_kind_of_word_end(unit: str) -> None:
    assert max(len(piece.text) for piece in of(unit * 200, 50)) <= 50


def test_a_text_that_cannot_be_cut_is_read_in_linear_time() -> None:
    def seconds(n: int) -> float:
        began = time.process_time()
        (piece,) = of("x" * n, 1000)
        assert len(piece.text) == n
        return time.process_time() - began

    seconds(10_000)
    assert seconds(2_000_000) < 40 * max(seconds(200_000), 1e-3)  # ten times the text; quadratic would be a hundred
