"""Same seed, same text; draws follow the distribution they should; a cache changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grok.errors import DataError
from grok.gpt.generate import Sampler, generate
from grok.streams import Stream
from tests.text.test_evaluate import small_model

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
