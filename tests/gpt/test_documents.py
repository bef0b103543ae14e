"""``data.document_mask``: a block's documents are texts of their own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grok.config.gpt import GptConfig
from grok.gpt import parts
from grok.gpt.initial import build_model
from grok.gpt.model import GPT
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.trainer import Trainer
from grok.text.corpus import Corpus
from tests.gpt.conftest import differences, prepare_text, result_of, run, text_of

Build = Callable[..., GptConfig]
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


def test_nothing_of_another_document_moves_a_loss(settings: Build) -> None:
    model = build_model(settings(), vocab_size=VOCABULARY, device=torch.device("cpu"), dtype=torch.float64)
    model.document_end = END
    x, y = batch()
    before = model.score(x, y)[0].view_as(y)
    changed = x.clone()
    changed[0, :3] = 1  # the first document of the first row, its end left
    after = model.score(changed, y)[0].view_as(y)
    assert torch.equal(after[0, 4:], before[0, 4:]) and not torch.equal(after[0, :3], before[0, :3])
    model.document_end = None
    assert not torch.equal(model.score(changed, y)[0].view_as(y)[0, 4:], model.score(x, y)[0].view_as(y)[0, 4:])


def test_micro_batches_add_up_by_their_targets(settings: Build, documents: Corpus) -> None:
    """The mean is over the targets of the whole batch, however they are spread over micro-batches."""
    made = {}
    for micro in (6, 4, 1):
        config = settings(
            data__path=str(documents.path), data__document_mask=True, train__micro_batch=micro, precision="float64"
        )
        trainer = Trainer(config, documents, Numerics.of(config, "cpu"))
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


def test_documents_of_one_block_need_no_mask(settings: Build, tmp_path: Path) -> None:
    """Where no document ends inside a block the mask changes nothing but rounding."""
    text = "<|endoftext|>".join(text_of(400, n) for n in range(2))
    corpus = prepare_text(tmp_path, text, tokenizer="byte")
    config = settings(data__path=str(corpus.path), train__steps=1)
    masked = settings(data__path=str(corpus.path), train__steps=1, data__document_mask=True)
    ours, theirs = result_of(run(masked)).step_log[0], result_of(run(config)).step_log[0]
    assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-6)
