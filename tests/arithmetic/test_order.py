from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from grok.arithmetic.task import BatchOrder


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_an_epoch_sees_every_example_once(n: int, batch_size: int, seed: int, epoch: int) -> None:
    batch_size = min(batch_size, n)
    order = BatchOrder(n, batch_size, seed=seed)
    per_epoch = -(-n // batch_size)
    batches = [order.batch(epoch * per_epoch + i + 1).tolist() for i in range(per_epoch)]
    assert sorted(itertools.chain(*batches)) == list(range(n))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (per_epoch - 1)
    for step in range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1):
        padded, size = order.padded_batch(step)
        assert len(padded) == batch_size and padded[:size].tolist() == batches[(step - 1) % per_epoch]


@given(st.lists(st.integers(1, 500), max_size=20), st.integers(1, 500))
def test_asking_moves_nothing(asked: list[int], step: int) -> None:
    busy, fresh = BatchOrder(40, 16, seed=3), BatchOrder(40, 16, seed=3)
    for other in asked:
        busy.batch(other)
    assert busy.batch(step).tolist() == fresh.batch(step).tolist()
