"""Scores, samples, windows and plans equal what is counted by hand."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grok import plan as door
from grok.config.gpt import GptConfig, ModelConfig, TrainConfig
from grok.errors import ConfigError, DataError
from grok.gpt import costs as planner
from grok.gpt.evaluate import score_split
from grok.gpt.generate import Sampler, generate
from grok.gpt.initial import build_model
from grok.gpt.model import GPT, parameter_count
from grok.gpt.planning import published
from grok.streams import Stream
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from grok.text.windows import BlockOrder, gather, sliding_windows
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


def by_hand(model: GPT, ids: list[int], begin: Callable[[int], int]) -> float:
    """The sum of -ln p of each token ``k`` after those from ``begin(k)`` on, one plain forward pass a token."""
    found = ((k, model(torch.tensor([ids[begin(k) : k]]))[0, -1]) for k in range(1, len(ids)))
    return -sum(float(logits.log_softmax(0)[ids[k]]) for k, logits in found)


@torch.no_grad()
def test_fixed_windows_agree_with_a_count_by_hand(articles: Corpus) -> None:
    model = small_model(articles.vocab_size, multiple=64)
    assert articles.eot_id is not None
    ids = [articles.eot_id, *articles.tokens("test").tolist()]
    nats = by_hand(model, ids, lambda k: (k - 1) // 16 * 16)
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
    total = by_hand(model, ids, lambda k: max(0, k - 16))
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


logits_of = arrays(np.float64, st.integers(1, 12), elements=st.integers(-20, 20).map(lambda n: n / 4))


def text_of(seed: int = 42, **change: object) -> list[list[int]]:
    given: dict[str, object] = {"tokens": 12, "samples": 2, "sampler": Sampler(), "batch_size": 16} | change
    model = small_model(20, positions=str(given.pop("positions", "learned")), multiple=64)
    prompts = given.pop("prompts", [[1, 2, 3], [4], [5, 6, 7]])
    return [g.ids for g in generate(model, prompts, seed=seed, **given)]  # type: ignore[arg-type]


def test_same_seed_same_text(no_global_randomness: None) -> None:
    assert text_of() == text_of() != text_of(seed=43)
    assert text_of(batch_size=1) == text_of()
    more = text_of(samples=3)
    assert [more[i] for i in (0, 1, 3, 4, 6, 7)] == text_of()  # one sample more leaves the others alone
    assert text_of(prompts=[[1, 2, 3]]) == text_of()[:2]
    assert text_of(tokens=5) == [ids[:5] for ids in text_of()]
    assert len({tuple(ids) for ids in text_of()}) == 6


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@torch.no_grad()
def test_a_cache_changes_nothing(positions: str) -> None:
    """Against one plain forward pass a token, over more tokens than the context of 16 holds."""
    model = small_model(20, positions)
    sampler, tokens = Sampler(temperature=1.3, top_k=9, top_p=0.9), 30
    (found,) = generate(model, [[3, 1, 4]], tokens=tokens, sampler=sampler, seed=7)
    text = [3, 1, 4]
    for chance in Stream("sample", 7).at(0, 0).uniform(tokens):
        seen = text[-16:] if positions == "learned" else text
        text.append(sampler.choose(model(torch.tensor([seen]))[0, -1].float().numpy(), float(chance)))
    assert found.ids == text[3:] and not found.ended


def test_padded_logits_are_never_drawn() -> None:
    model = small_model(5, multiple=64)
    assert model.token_embedding.weight.shape[0] == 64
    with torch.no_grad():
        model.token_embedding.weight[5:] = 50.0  # a padded row that would win every draw
    drawn = generate(model, [[0]], tokens=15, samples=30, sampler=Sampler(temperature=5.0), seed=0)
    assert {i for g in drawn for i in g.ids} == set(range(5))
    (greedy,) = generate(model, [[0]], tokens=5, sampler=Sampler(temperature=0), seed=0)
    assert max(greedy.ids) < 5
    # a model that was given more ids than its tokeniser has: those are padding too
    drawn = generate(model, [[0]], tokens=15, samples=30, sampler=Sampler(temperature=5.0), seed=0, vocab_size=3)
    assert {i for g in drawn for i in g.ids} == set(range(3))


def test_a_text_ends_where_its_end_is_drawn() -> None:
    model = small_model(4)
    drawn = generate(model, [[1]], tokens=40, samples=20, sampler=Sampler(), seed=0, eot_id=2)
    plain = generate(model, [[1]], tokens=40, samples=20, sampler=Sampler(), seed=0)
    for g, p in zip(drawn, plain, strict=True):
        end = p.ids.index(2) if 2 in p.ids else None
        assert g.ids == p.ids[:end] and g.ended == (end is not None)
    assert any(g.ended for g in drawn)


@settings(max_examples=200, deadline=None)
@given(logits_of, st.floats(0.001, 0.999), st.floats(0.1, 5))
def test_the_draw_is_the_quantile(logits: np.ndarray, chance: float, temperature: float) -> None:
    p = np.exp(logits / temperature - (logits / temperature).max())
    p /= p.sum()
    token = Sampler(temperature=temperature).choose(logits, chance)
    below = p[:token].sum()
    assert below - 1e-9 <= chance <= below + p[token] + 1e-9
    assert Sampler(temperature=0).choose(logits, chance) == int(logits.argmax())


@settings(max_examples=200, deadline=None)
@given(logits_of, st.integers(1, 14), st.floats(0.01, 1), st.lists(st.floats(0.001, 0.999), min_size=20, max_size=20))
def test_top_k_and_top_p_keep_the_likeliest(logits: np.ndarray, k: int, p: float, chances: list[float]) -> None:
    order = np.argsort(-logits, kind="stable")
    drawn = {Sampler(top_k=k).choose(logits, c) for c in chances}
    assert drawn <= set(order[:k].tolist())
    weights = np.exp(logits - logits.max())[order]
    weights /= weights.sum()
    enough = int(np.searchsorted(weights.cumsum(), p - 1e-9)) + 2  # one more for rounding at the edge
    assert {Sampler(top_p=p).choose(logits, c) for c in chances} <= set(order[:enough].tolist())
    assert Sampler(top_k=1).choose(logits, chances[0]) == order[0]


@pytest.mark.parametrize("logits", [[0.0, np.nan], [0.0, np.inf], [-np.inf, -np.inf]])
def test_nothing_is_drawn_from_logits_that_are_not_finite(logits: list[float]) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(DataError, match="the model's logits are not finite"):
            Sampler(temperature=temperature).choose(np.array(logits), 0.5)


sizes = st.integers(1, 12).flatmap(lambda t: st.tuples(st.integers(t + 1, 200), st.just(t)))


@settings(max_examples=200, deadline=None)
@given(size=sizes, seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_every_target_at_most_once_an_epoch(size: tuple[int, int], seed: int, epoch: int) -> None:
    n, context = size
    order = BlockOrder(n, context, seed)
    blocks = order.blocks_per_epoch
    starts = order.samples(epoch * blocks, blocks)
    tokens = np.arange(n, dtype=np.uint16)
    x, y = gather(tokens, starts, context)
    assert x.shape == y.shape == (blocks, context) and x.dtype == y.dtype == np.int64
    assert (y == x + 1).all()  # a token's target is the next token: nothing is off by one
    seen = np.bincount(y.ravel(), minlength=n)
    assert seen.max() == 1 and seen[0] == 0
    assert n - 1 - seen.sum() == (n - 1) % context < context  # all but what fills no block
    left_out = np.flatnonzero(seen[1:] == 0)
    middle = np.flatnonzero(seen[1:])
    assert not ((left_out > middle[0]) & (left_out < middle[-1])).any()  # only at the two ends


@settings(max_examples=30, deadline=None)
@given(
    size=sizes,
    batch=st.integers(1, 70),
    steps=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    random=st.booleans(),
)
def test_a_batch_depends_on_its_step_alone(size: tuple[int, int], batch: int, steps: list[int], random: bool) -> None:
    n, context = size
    one_by_one = BlockOrder(n, context, 3, random)
    flat = np.concatenate([one_by_one.samples(step * batch, batch) for step in range(max(steps) + 1)])
    assert BlockOrder(n, context, 3, random).samples(0, len(flat)).tolist() == flat.tolist()  # in one batch
    for step in steps:  # any order, from a new object, as after a restart, and from the old one
        for order in (BlockOrder(n, context, 3, random), one_by_one):
            assert order.samples(step * batch, batch).tolist() == flat[step * batch : (step + 1) * batch].tolist()
    assert flat.min() >= 0 and flat.max() + context + 1 <= n


def test_epochs_and_seeds_differ_and_no_token_is_always_left_out(no_global_randomness: None) -> None:
    order = BlockOrder(103, 10, seed=0)
    epochs = [order.samples(e * 10, 10) for e in range(40)]
    assert len({tuple(e.tolist()) for e in epochs}) == 40
    assert BlockOrder(103, 10, seed=1).samples(0, 10).tolist() != epochs[0].tolist()
    seen = np.zeros(103, dtype=int)
    for starts in epochs:
        seen[gather(np.arange(103, dtype=np.uint16), starts, 10)[1].ravel()] += 1
    assert (seen[1:] > 0).all() and seen[0] == 0
    BlockOrder(103, 10, seed=0, random=True).samples(12, 4)


def test_a_text_shorter_than_a_block_is_refused() -> None:
    with pytest.raises(DataError, match=r"the text has 8 tokens, a block needs 9 \(context 8"):
        BlockOrder(8, 8, 0)


def scored_once(windows: np.recarray, n: int) -> None:
    targets: list[int] = []
    for start, length, skipped in zip(windows.starts, windows.lengths, windows.skipped, strict=True):
        assert start >= 0 and length >= 1 and 0 <= skipped < length
        targets += range(start + skipped + 1, start + length + 1)
    assert sorted(targets) == list(range(1, n))


@settings(max_examples=300, deadline=None)
@given(n=st.integers(2, 120), context=st.integers(1, 20), data=st.data())
def test_evaluation_scores_every_target_once(n: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    fixed, sliding = sliding_windows(n, context, context), sliding_windows(n, context, stride)
    scored_once(fixed, n)
    scored_once(sliding, n)
    assert (fixed.skipped == 0).all() and (fixed.lengths[:-1] == context).all()
    assert (sliding.lengths <= context).all()
    assert (sliding.skipped[1:] >= context - stride).all()  # each later target has that much before it
    if n - 1 >= context and stride < context:
        assert (sliding.lengths == context).all()


models = st.builds(
    ModelConfig,
    layers=st.integers(1, 3),
    d_model=st.sampled_from([8, 12, 32]),
    heads=st.sampled_from([1, 2]),
    d_ff=st.none() | st.integers(1, 50),
    context=st.integers(1, 40),
    vocab_multiple=st.sampled_from([1, 64]),
    norm=st.sampled_from(["pre", "post"]),
    norm_type=st.sampled_from(["layernorm", "rmsnorm"]),
    positions=st.sampled_from(["learned", "rotary", "alibi"]),
    bias=st.booleans(),
    tied=st.booleans(),
    qk_norm=st.booleans(),
    activation=st.sampled_from(["gelu", "swiglu"]),
    kv_heads=st.sampled_from([None, 1]),
)


@settings(max_examples=200, deadline=None)
@given(models, st.integers(2, 300))
def test_parameters_are_counted_as_the_model_counts_them(model: ModelConfig, vocab_size: int) -> None:
    assert planner.count_parameters(model, vocab_size).total == parameter_count(model, vocab_size=vocab_size)


@torch.no_grad()
def test_flops_are_those_of_the_matrix_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for model in (
        ModelConfig(layers=2, d_model=32, heads=2, context=48, softmax="float32", bias=False),
        ModelConfig(layers=3, d_model=24, heads=2, context=16, softmax="float32", bias=False, tied=False, d_ff=50),
    ):
        config = GptConfig(mode="gpt", experiment="gpt/shakespeare_char", model=model)
        built = build_model(config, vocab_size=70, device=torch.device("cpu"), dtype=torch.float32)
        with FlopCounterMode(display=False) as counter:
            built(torch.zeros(3, model.context, dtype=torch.long))
        expected = planner.train_flops_per_token(model, planner.count_parameters(model, 70)) / 3 * 3 * model.context
        norms = 0.01  # they multiply element by element, which is no matrix product
        assert counter.get_total_flops() == pytest.approx(expected, rel=norms)


def test_a_plan_adds_up() -> None:
    config = GptConfig(
        mode="gpt",
        experiment="gpt/gpt2_117m",
        precision="bf16",
        train=TrainConfig(steps=1000, batch_size=512, micro_batch=16),
    )
    one = planner.Plan(config, 50_257, planner.MACHINES["A100"], corpus_tokens=10**8)
    assert one.tokens == 1000 * 512 * 1024 and one.epochs == pytest.approx(5.24288)
    assert one.six_n == 6 * 124_439_808 * one.tokens
    assert one.flops == pytest.approx(one.tokens * (6 * (124_439_808 - 1024 * 768) + 12 * 12 * 1024 * 768))
    assert one.seconds == pytest.approx(one.flops / (0.4 * 312e12))
    assert one.chinchilla_tokens == 20 * 124_439_808
    eight = planner.Plan(config, 50_257, planner.MACHINES["A100"], devices=8)
    assert eight.seconds * 8 == pytest.approx(one.seconds) and eight.device_hours == pytest.approx(one.device_hours)
    assert eight.epochs is None
    with pytest.raises(ConfigError, match="expected"):
        planner.machine("A1000")


def test_the_diarys_corrections() -> None:
    found = {(f.about, f.says): f for f in published.figures()}
    differs = {key for key, f in found.items() if not f.agrees}
    for about, says, value in (
        ("job that was killed", "335hr = 14.6 days", 13.96),
        ("WikiText-103 model", "315M", 353_551_360),
        ('"1B" model', "1B param model", 1_160_745_600),
        ('step of the "1B" model', "~150TF", 114.1e12),
        ("Chinchilla tokens of that model", "3.3B tokens suggested by Chinchilla", 7.07e9),
        ("OpenWebText run, tokens", "30.7B tokens for training", 245.8e9),
    ):
        assert (about, says) in differs
        assert found[about, says].computed == pytest.approx(value, rel=1e-3)
    agrees = {key for key, f in found.items() if f.agrees}
    assert ("WikiText-103 model", "Model (353M)") in agrees
    assert ("compute of 117M on 3.3B tokens", "flops is 2.4E+18") in agrees
    assert ("tokens of the WikiText-103 run", "2.1B tokens") in agrees


def test_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["experiment=gpt/gpt2_117m", "--price", "2", "--device", "H200", "--devices", "8"]) == 0
    page = capsys.readouterr().out
    for part in (
        "(the preset: 124,439,808 at 50,257 ids)",
        "(exact)",
        "2.49e+09",
        "8 x H200",
        "262,144,000,000",
    ):
        assert part in page, part
    assert door.main(["--diary"]) == 0
    assert "335hr = 14.6 days" in capsys.readouterr().out
    for argv, message in (
        (["experiment=gpt/gpt2_117b"], "did you mean 'gpt/gpt2_117m'"),
        (["experiment=gpt/gpt2_117m", "model.heads=5"], "does not divide"),
        (["experiment=gpt/gpt2_117m", "--device", "Z80"], "--device Z80 is not known"),
        (["experiment=gpt/gpt2_117m", "data.path=nowhere"], "no prepared corpus"),
        (["experiment=quickstart"], "task belongs to mode=arithmetic"),
        (["experiment=gpt/gpt2_117m", "--mfu", "1.5"], "--mfu 1.5: expected a number, above 0 and at most 1"),
        (["experiment=gpt/gpt2_117m", "train.tokens=1e30"], "train.tokens=1e+30 is out of range"),
        (["experiment=gpt/gpt2_117m", "train.epochs=2"], "train.epochs=2 is a length in passes over the data"),
    ):
        assert door.main(argv) == 2, argv
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
