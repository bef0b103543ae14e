"""Every token once an epoch, blocks that do not overlap, targets one further; and every target scored once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.errors import DataError
from grok.text.windows import BlockOrder, EvaluationWindows, fixed_windows, gather, sliding_windows

sizes = st.integers(1, 12).flatmap(lambda t: st.tuples(st.integers(t + 1, 200), st.just(t)))


@settings(max_examples=200, deadline=None)
@given(size=sizes, batch=st.integers(1, 9), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_every_target_at_most_once_an_epoch(size: tuple[int, int], batch: int, seed: int, epoch: int) -> None:
    n, context = size
    order = BlockOrder(n, context, batch, seed)
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
    sampling=st.sampled_from(["blocks", "random"]),
)
def test_a_batch_depends_on_its_step_alone(size: tuple[int, int], batch: int, steps: list[int], sampling: str) -> None:
    n, context = size
    one_by_one = BlockOrder(n, context, batch, 3, sampling)  # type: ignore[arg-type]
    walked = [one_by_one.batch(step) for step in range(max(steps) + 1)]
    for step in steps:  # any order, each from a new object: as after a restart
        fresh = BlockOrder(n, context, batch, 3, sampling)  # type: ignore[arg-type]
        assert fresh.batch(step).tolist() == walked[step].tolist()
        assert one_by_one.batch(step).tolist() == walked[step].tolist()
        assert len(walked[step]) == batch
    flat = np.concatenate(walked)
    regrown = BlockOrder(n, context, 1, 3, sampling)  # type: ignore[arg-type]
    assert regrown.samples(0, len(flat)).tolist() == flat.tolist()  # batches of another size read the same samples
    assert flat.min() >= 0 and flat.max() + context + 1 <= n


def test_epochs_and_seeds_differ_and_no_token_is_always_left_out() -> None:
    order = BlockOrder(103, 10, 4, seed=0)
    epochs = [order.samples(e * 10, 10) for e in range(40)]
    assert len({tuple(e.tolist()) for e in epochs}) == 40
    assert BlockOrder(103, 10, 4, seed=1).samples(0, 10).tolist() != epochs[0].tolist()
    seen = np.zeros(103, dtype=int)
    for starts in epochs:
        seen[gather(np.arange(103, dtype=np.uint16), starts, 10)[1].ravel()] += 1
    assert (seen[1:] > 0).all() and seen[0] == 0
    assert order.blocks_per_epoch / order.batch_size == 2.5


def test_no_global_generator_is_used(no_global_randomness: None) -> None:
    for sampling in ("blocks", "random"):
        BlockOrder(100, 7, 4, seed=0, sampling=sampling).batch(3)  # type: ignore[arg-type]


def test_a_text_shorter_than_a_block_is_refused() -> None:
    with pytest.raises(DataError, match=r"the text has 8 tokens, a block needs 9 \(context 8"):
        BlockOrder(8, 8, 1, 0)


def scored_once(windows: EvaluationWindows, n: int) -> None:
    targets: list[int] = []
    for start, length, skipped in zip(windows.starts, windows.lengths, windows.skipped, strict=True):
        assert start >= 0 and length >= 1 and 0 <= skipped < length
        targets += range(start + skipped + 1, start + length + 1)
    assert sorted(targets) == list(range(1, n))


@settings(max_examples=300, deadline=None)
@given(n=st.integers(2, 120), context=st.integers(1, 20), data=st.data())
def test_evaluation_scores_every_target_once(n: int, context: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    fixed, sliding = fixed_windows(n, context), sliding_windows(n, context, stride)
    scored_once(fixed, n)
    scored_once(sliding, n)
    assert (fixed.skipped == 0).all() and (fixed.lengths[:-1] == context).all()
    assert (sliding.lengths <= context).all()
    assert (sliding.skipped[1:] >= context - stride).all()  # each later target has that much before it
    if n - 1 >= context and stride < context:
        assert (sliding.lengths == context).all()
