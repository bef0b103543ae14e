"""Several corpora as one training set, further validation sets, and documents as texts of their own."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from grok.config import load_config
from grok.config.gpt import GptConfig
from grok.errors import ConfigError, DataError
from grok.execute.groups import prepare_runs
from grok.execute.refusals import refuse_unusable_data
from grok.gpt import parts
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.gpt.training.batches import open_data
from grok.store.provenance import overrides
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from grok.text.windows import BlockOrder, MixtureOrder, shares_by_hash
from tests.gpt.conftest import Build, differences, prepare_text, result_of, run, stopped, text_of, trainer_of


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    """Two texts with one tokeniser."""
    return {
        str(seed): prepare_text(tmp_path_factory.mktemp("words"), text_of(800 * seed, seed), tokenizer="byte")
        for seed in (1, 2)
    }


@pytest.fixture
def mixed(settings: Build, corpora: dict[str, Corpus]) -> Build:
    """Build settings of a mixture; the main corpus is the first."""

    def build(weights: dict[str, float], **changes: Any) -> GptConfig:
        folders = {"data__path": str(corpora["1"].path), "data__corpora": {"other": str(corpora["2"].path)}}
        return settings(**{**folders, "data__mixture": weights, "eval__sample_tokens": 0, **changes})

    return build


def named(config: GptConfig) -> GptConfig:
    (planned,) = prepare_runs([config])
    assert isinstance(planned.config, GptConfig)
    return planned.config


def run_id(config: GptConfig) -> str:
    return prepare_runs([config])[0].run_id


@hypothesis_settings(max_examples=20)
@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=4),
    st.none() | st.integers(1, 50),
    st.integers(0, 2**32),
    st.lists(st.integers(1, 3000), min_size=1, max_size=4),
)
def test_the_order_is_a_function_of_the_number_of_the_sequence(
    weights: list[float], batch: int | None, seed: int, cuts: list[int]
) -> None:
    shares = [w / sum(weights) for w in weights]
    fresh = lambda: MixtureOrder(  # noqa: E731
        [BlockOrder(5000 + 30 * i, 8, seed + i) for i in range(len(shares))], shares, seed, batch
    )
    corpora, starts = fresh().samples(0, 8000)  # a portion of 3,000 may begin at 4,999
    other, first = fresh(), 0
    for count in cuts:  # in any portions, and from anywhere
        parts = other.samples(first, count)
        assert (parts[0] == corpora[first : first + count]).all() and (parts[1] == starts[first : first + count]).all()
        first = (first + count) % 5000
    corpora, starts = corpora[:6000], starts[:6000]
    for i, order in enumerate(fresh().orders):
        own = starts[corpora == i]
        assert (own == order.samples(0, len(own))).all()  # each block once in an epoch of its corpus
        spread = (shares[i] * (1 - shares[i]) / 6000) ** 0.5
        assert abs(np.mean(corpora == i) - shares[i]) <= 6 * spread + 1e-9


@hypothesis_settings(max_examples=40)
@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=4), st.integers(1, 50), st.integers(0, 2**32))
def test_a_stratified_batch_has_each_corpus_share(weights: list[float], batch: int, seed: int) -> None:
    shares = [w / sum(weights) for w in weights]
    order = MixtureOrder([BlockOrder(5000, 8, seed + i) for i in range(len(shares))], shares, seed, batch)
    corpora, _ = order.samples(0, 200 * batch)
    counts = np.stack([(corpora.reshape(-1, batch) == i).sum(1) for i in range(len(shares))])
    assert (np.abs(counts - batch * np.array(shares)[:, None]) < 1 + 1e-9).all()
    spread = np.sqrt(0.25 / 200) / batch  # a count is one of two neighbours
    assert (np.abs(counts.mean(1) / batch - shares) <= 6 * spread).all()


def test_stratified_sequences_have_no_fixed_place_in_their_batch() -> None:
    order = MixtureOrder([BlockOrder(5000, 8, i) for i in range(2)], [0.7, 0.3], 3, 10)
    corpora, _ = order.samples(0, 10_000)
    by_place = (corpora.reshape(-1, 10) == 1).mean(0)
    assert (np.abs(by_place - 0.3) < 6 * np.sqrt(0.21 / 1000)).all()


def test_a_stratified_mixture_is_another_run_and_goes_on(mixed: Build) -> None:
    config = named(mixed({"main": 0.7, "other": 0.3}, data__sampling="stratified", train__batch_size=10))
    assert run_id(config) != run_id(mixed({"main": 0.7, "other": 0.3}, train__batch_size=10))
    half = stopped(config, 5)
    assert differences(result_of(run(config)), result_of(run(config, half))) == []
    with pytest.raises(ConfigError, match="no effect without"):
        mixed({}, data__sampling="stratified")


WEIGHTS = st.floats(0, 1e6, allow_subnormal=False)  # the smallest times a factor would be 0: another mixture


@given(st.dictionaries(st.sampled_from("abcd"), WEIGHTS, min_size=1), st.floats(0.01, 100))
def test_shares_add_up_to_one_whatever_the_unit(weights: dict[str, float], factor: float) -> None:
    if not any(weights.values()):
        return
    hashes = {"a": "11", "b": "22", "c": "33", "d": "33"}
    shares = shares_by_hash(weights, hashes)
    assert sum(shares.values()) == pytest.approx(1)
    scaled = shares_by_hash({name: w * factor for name, w in weights.items()}, hashes)
    assert scaled == pytest.approx(shares, abs=1e-11)
    assert list(shares) == sorted(shares)


def test_the_mixture_names_the_run_and_folders_do_not(mixed: Build, corpora: dict[str, Corpus], tmp_path: Path) -> None:
    config = mixed({"main": 1, "other": 3})
    assert run_id(config) == run_id(mixed({"main": 0.25, "other": 0.75}))
    assert run_id(config) != run_id(mixed({"main": 1, "other": 1}))
    hashes = sorted(((corpora["1"].hash[:20], 0.25), (corpora["2"].hash[:20], 0.75)))
    assert named(config).data.mixture_hashes == dict(hashes)
    copy = prepare_text(tmp_path, text_of(1600, 2), tokenizer="byte")
    assert run_id(mixed({"main": 1, "again": 3}, data__corpora={"again": str(copy.path)})) == run_id(config)
    assert {"data.mixture={main:1.0,other:3.0}"} <= set(overrides(named(config)))


def test_further_validation_sets_have_losses_of_their_own(
    mixed: Build, settings: Build, corpora: dict[str, Corpus], capsys: pytest.CaptureFixture[str]
) -> None:
    config = mixed({}, data__validation=["main", "other", "other@train"], log__quiet=False)
    points = result_of(run(config)).curve
    sets = {"main", "other", "other@train"}
    assert all(p.metrics.keys() == {f"val_{n}.{s}" for n in ("loss", "acc") for s in sets} for p in points)
    assert all(p.metrics["val_loss.main"] == p.val_loss and p.metrics["val_acc.main"] == p.val_acc for p in points)
    losses = {s: points[-1].metrics[f"val_loss.{s}"] for s in sets}
    assert len(set(losses.values())) == 3
    plain = settings(data__path=str(corpora["1"].path), eval__sample_tokens=0)
    assert result_of(run(plain)).weights_hash == result_of(run(config)).weights_hash
    (with_sets,), (without,) = prepare_runs([config]), prepare_runs([plain])
    assert with_sets.run_id != without.run_id
    assert with_sets.identity.trajectory_id == without.identity.trajectory_id
    assert with_sets.identity.config_id == without.identity.config_id


def test_another_test_split_is_another_run(settings: Build, tmp_path: Path) -> None:
    """The corpus keeps its hash, so runs that are validated on other splits keep their names."""
    (tmp_path / "a.txt").write_text(text_of(800))
    out = tmp_path / "corpus"

    def ids(seed: int) -> dict[str, str]:
        (tmp_path / "t.txt").write_text(text_of(300, seed))
        files: dict[str, tuple[str, ...]] = {"test": (str(tmp_path / "t.txt"),)}
        prepare(Request(form="text", inputs=(str(tmp_path / "a.txt"),), out=out, tokenizer="byte", split_files=files))
        sets = ("", "main", "main@train", "main@test")
        return {name: run_id(settings(data__path=str(out), data__validation=[name] if name else [])) for name in sets}

    first, second = ids(1), ids(2)
    assert {name for name in first if first[name] != second[name]} == {"main@test"}
    config = named(settings(data__path=str(out), data__validation=["main@test"]))
    assert config.data.validation_hashes["main@test"] != open_data(config).corpus.hash[:20]
    assert ids(1) == first
    with pytest.raises(DataError, match="main@test is not the corpus that this run was named after"):
        open_data(config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mixture": {"othr": 1}}, r"data\.mixture names the corpus 'othr'.*did you mean 'other'.*one of main, other"),
        ({"validation": ["no@test"]}, "data.validation names the corpus 'no'"),
        ({"mixture": {"main": 0}}, "expected a weight above 0"),
        ({"mixture": {"main": 1e308}}, "at most 1000000000000"),
        ({"mixture": {"main": -1}}, "out of range"),
        ({"corpora": {"main": "x"}}, "main is the corpus of data.path"),
        ({"corpora": {"a/b": "x"}}, "'a/b' is no name"),
        ({"validation": ["other@test"]}, "has no split 'test': it has train, val"),
        ({"validation": ["other@dev"]}, "has no split 'dev': it has train, val"),
        ({"mixture": {"main": 1, "other": 1}, "mixture_hashes": {"00": 1.0}}, "the corpora of data.mixture give"),
    ],
)
def test_what_cannot_be_mixed_is_refused(corpora: dict[str, Corpus], data: dict[str, Any], message: str) -> None:
    full = {"path": str(corpora["1"].path), "corpora": {"other": str(corpora["2"].path)}, **data}
    with pytest.raises((ConfigError, DataError), match=message):
        config = load_config({"mode": "gpt", "experiment": "gpt/small", "data": full, "model": {"context": 16}})
        refuse_unusable_data([run.config for run in prepare_runs([config])])


END, VOCABULARY = 0, 11


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Short documents, several to a block."""
    text = "<|endoftext|>".join(text_of(1 + n % 7, n) for n in range(300))
    return prepare_text(tmp_path_factory.mktemp("documents"), text, tokenizer="byte")


def batch() -> tuple[Tensor, Tensor]:
    """Return tokens and targets [4, 16] with document ends in many places: two in a row, at both edges, none."""
    tokens = torch.randint(1, VOCABULARY, (4, 17), generator=torch.Generator().manual_seed(3))
    for row, places in enumerate([(3, 4, 9), (0, 15), (16,), ()]):
        tokens[row, list(places)] = END
    return tokens[:, :-1], tokens[:, 1:]


def each_document_alone(model: GPT, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean loss where every document of every row is a sequence of its own."""
    nats, scored = [], 0
    for tokens, targets in zip(x, y, strict=True):
        bounds = [0, *((tokens == END).nonzero()[:, 0] + 1).tolist(), len(tokens)]
        for begin, stop in pairwise(bounds):
            own, next_ones = tokens[begin:stop], targets[begin:stop]
            if len(own) and own[-1] == END:  # what follows it is another document's
                next_ones = next_ones[:-1]
            logits = model(own[None])[0, : len(next_ones)] if len(own) else torch.zeros(0, VOCABULARY)
            nats.append(torch.nn.functional.cross_entropy(logits, next_ones, reduction="sum"))
            scored += len(next_ones)
    return torch.stack(nats).sum() / scored


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    "model_settings",
    [
        {},
        {"positions": "rotary", "norm_type": "rmsnorm", "bias": False},
        {"positions": "alibi"},
        {"softmax": "float32", "z_loss": 0.01},
        {"positions": "alibi", "softmax": "float32", "kv_heads": 1, "norm": "post"},
    ],
)
def test_the_loss_is_that_of_each_document_alone(
    settings: Build, monkeypatch: pytest.MonkeyPatch, model_settings: dict[str, Any], chunked: bool
) -> None:
    if chunked:
        monkeypatch.setitem(parts.CHUNK_ELEMENTS, "cpu", 5 * VOCABULARY)
    config = settings(**{f"model__{name}": value for name, value in model_settings.items()})
    cpu = torch.device("cpu")
    model = build_model(config, vocab_size=VOCABULARY, device=cpu, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)  # so that attention is far from uniform
    x, y = batch()
    gradients = []
    for end, loss in ((END, lambda: model.loss(x, y)), (None, lambda: each_document_alone(model, x, y))):
        model.document_end = end
        model.zero_grad()
        loss().backward()
        gradients.append((loss().item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (ours, own), (reference, plain) = gradients
    exact = config.model.positions == "learned"  # angles and distances are float32, and counted in the block
    assert ours == pytest.approx(reference, rel=1e-12 if exact else 1e-6)
    if not model_settings.get("z_loss"):
        for a, b in zip(own, plain, strict=True):
            assert (a - b).abs().max() <= (1e-12 if exact else 1e-5) * b.abs().max()
    model.document_end = END
    with torch.no_grad():
        losses, hits, scored = model.score(x, y)
    assert float(losses.sum() / scored) == pytest.approx(reference, rel=1e-6)
    assert int(scored) == int((x != END).sum()) and not hits[(x == END).flatten()].any()


def test_micro_batches_add_up_by_their_targets(settings: Build, documents: Corpus) -> None:
    made = {}
    for micro in (6, 4, 1):
        config = settings(
            data__path=str(documents.path), data__document_mask=True, train__micro_batch=micro, precision="float64"
        )
        trainer = trainer_of(config, documents)
        x, y = trainer.batch(1)
        loss = trainer.gradients(1, x, y)
        made[micro] = (float(loss), [p.grad.clone() for p in trainer.parameters])
    assert len({int(n) for n in (x != documents.eot_id).sum(1)}) > 1
    for micro in (4, 1):
        assert made[micro][0] == pytest.approx(made[6][0], rel=1e-12)
        assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(made[micro][1], made[6][1], strict=True))


@pytest.mark.parametrize("recompute", ["attention", "blocks"])
def test_masked_documents_train_alike_whatever_is_recomputed(
    settings: Build, documents: Corpus, recompute: str
) -> None:
    mask = {"data__path": str(documents.path), "data__document_mask": True, "model__dropout": 0.1}
    plain = result_of(run(settings(**mask)))
    assert plain.curve[-1].val_loss < plain.curve[0].val_loss
    assert differences(plain, result_of(run(settings(**mask, train__recompute=recompute)))) == []
    assert plain.weights_hash != result_of(run(settings(**{**mask, "data__document_mask": False}))).weights_hash
