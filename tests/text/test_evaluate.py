"""Scores equal what is counted by hand; windows change only what each token is predicted from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from grok.config.gpt import GptConfig, ModelConfig
from grok.errors import DataError
from grok.gpt.evaluate import score_split
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from tests.text.conftest import ARTICLES


def small_model(vocab_size: int, positions: str = "learned", context: int = 16, multiple: int = 1) -> GPT:
    model = ModelConfig(
        layers=2, d_model=16, heads=2, context=context, positions=positions, init="small", vocab_multiple=multiple
    )
    config = GptConfig(mode="gpt", experiment="gpt/shakespeare_char", seed=3, model=model)
    return build_model(config, vocab_size=vocab_size, device=torch.device("cpu"), dtype=torch.float64)


@pytest.fixture(scope="module")
def articles(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("articles")
    (folder / "w.tokens").write_text(ARTICLES)
    given = (str(folder / "w.tokens"),)
    request = Request(form="wikitext", inputs=given, split_files={"test": given}, out=folder / "out", tokenizer="byte")
    return prepare(request)[0]


def by_hand(model: GPT, ids: list[int], context: int) -> float:
    """The sum of -ln p of each token after those before it in its window, one plain forward pass a token."""
    total = 0.0
    for k in range(1, len(ids)):
        begin = (k - 1) // context * context
        logits = model(torch.tensor([ids[begin:k]]))[0, -1]
        total -= float(logits.log_softmax(0)[ids[k]])
    return total


@torch.no_grad()
def test_fixed_windows_agree_with_a_count_by_hand(articles: Corpus) -> None:
    model = small_model(articles.vocab_size, multiple=64)
    assert articles.eot_id is not None
    ids = [articles.eot_id, *articles.tokens("test").tolist()]
    nats = by_hand(model, ids, 16)
    score = score_split(model, articles, "test", batch_size=3)
    assert score.scored == len(ids) - 1 == articles.split("test")["tokens"]
    assert score.nats == pytest.approx(nats, rel=1e-9)
    words = len(ARTICLES.split()) + ARTICLES.count("\n")
    assert score.words == words and score.bytes == len(ARTICLES.encode())
    assert score.loss == pytest.approx(nats / len(ids[1:]))
    assert score.perplexity == pytest.approx(math.exp(nats / len(ids[1:])))
    assert score.word_perplexity == pytest.approx(math.exp(nats / words))
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / len(ARTICLES.encode()))
    assert 0 <= score.accuracy < 1


@torch.no_grad()
def test_a_full_stride_is_fixed_and_stride_one_sees_all(articles: Corpus) -> None:
    model = small_model(articles.vocab_size)
    fixed = score_split(model, articles, "val", batch_size=2)
    assert score_split(model, articles, "val", stride=16, batch_size=5).nats == pytest.approx(fixed.nats, rel=1e-12)
    assert articles.eot_id is not None
    ids = [articles.eot_id, *articles.tokens("val").tolist()]
    total = 0.0
    for k in range(1, len(ids)):  # stride 1: each token from the 16 before it
        logits = model(torch.tensor([ids[max(0, k - 16) : k]]))[0, -1]
        total -= float(logits.log_softmax(0)[ids[k]])
    assert score_split(model, articles, "val", stride=1).nats == pytest.approx(total, rel=1e-9)


def test_without_an_end_token_the_first_token_is_not_scored(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abcd" * 50)
    corpus, _ = prepare(Request(form="text", inputs=(str(tmp_path / "t.txt"),), out=tmp_path / "o", tokenizer="char"))
    score = score_split(small_model(4), corpus, "val", batch_size=4)
    assert score.scored == corpus.split("val")["tokens"] - 1
    # bytes have an id for the end of a document, but no model of this text was trained on it
    corpus, _ = prepare(Request(form="text", inputs=(str(tmp_path / "t.txt"),), out=tmp_path / "b", tokenizer="byte"))
    score = score_split(small_model(257), corpus, "val", batch_size=4)
    assert score.scored == corpus.split("val")["tokens"] - 1


def test_an_alibi_model_looks_further_than_it_was_trained(articles: Corpus) -> None:
    """Evaluation at twice the context; learned positions refuse with what would do."""
    for positions in ("alibi", "rotary"):
        model = small_model(articles.vocab_size, positions)
        twice = score_split(model, articles, "test", context=32)
        assert twice.scored == articles.split("test")["tokens"]
        assert twice.nats != score_split(model, articles, "test").nats
    with pytest.raises(DataError, match="learned positions for 16 tokens"):
        score_split(small_model(articles.vocab_size), articles, "test", context=32)
    with pytest.raises(DataError, match="the model has 50 ids"):
        score_split(small_model(50), articles, "test")


def test_a_part_is_measured_by_its_own_words_and_bytes(articles: Corpus) -> None:
    model = small_model(articles.vocab_size)
    part = score_split(model, articles, "test", limit=40)
    text = ARTICLES.encode()[:40].decode()
    assert part.scored == 40 and part.bytes == 40
    assert part.words == len(text.split()) + text.count("\n")
    assert score_split(model, articles, "test", limit=10**9).nats == score_split(model, articles, "test").nats


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(articles: Corpus) -> None:
    model = small_model(257)
    with torch.no_grad():
        model.head.weight.zero_()
    score = score_split(model, articles, "test")
    tokens = len(ARTICLES.encode()) + 2
    assert score.perplexity == pytest.approx(257)
    assert score.bits_per_byte == pytest.approx(tokens * math.log2(257) / len(ARTICLES.encode()))
    assert score.word_perplexity == pytest.approx(257 ** (tokens / (len(ARTICLES.split()) + ARTICLES.count("\n"))))
