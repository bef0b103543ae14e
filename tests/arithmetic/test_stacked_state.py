"""What a stack holds for every lane: its order, rates, decay and dropout; and sums of rows."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.exc
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grok.arithmetic.gpu.lanes import StackedLanes
from grok.arithmetic.gpu.optimizer import Coefficients
from grok.arithmetic.gpu.state import GOLDEN, LaneState, dropout, keys_of, mixed, places
from grok.arithmetic.gpu.step import TrainingStep
from grok.arithmetic.optimizer import learning_rate
from grok.arithmetic.run import ArithmeticRun
from grok.arithmetic.task import FIRST_NUMBER
from grok.streams import Stream
from tests.arithmetic.cases import jobs, tiny


@pytest.mark.parametrize("seeds", [{}, {"order": 7}])
def test_the_device_finds_the_batches_of_the_order(seeds: dict[str, int]) -> None:
    config = tiny(seeds=seeds)
    run = ArithmeticRun(jobs(config)[0])
    state = LaneState(config, 2, torch.device("cpu"))
    step = TrainingStep(state, compile=False)
    generator = torch.Generator().manual_seed(0)
    state.train_set.copy_(torch.randint(FIRST_NUMBER, FIRST_NUMBER + 11, state.train_set.shape, generator=generator))
    for k in range(1, 10):  # three epochs of 25, 25 and 10 examples
        if (k - 1) % run.order.batches_per_epoch == 0:
            state.shuffle([(1, run.order.stream(*run.order.place(k)))])
        index, size = run.order.padded_batch(k)
        batch = step.batch()
        expected = state.train_set[:, 1, torch.from_numpy(index)]
        assert torch.equal(torch.stack([batch.a[1], batch.b[1], batch.answer[1]])[:, :size], expected[:, :size])
        assert batch.share[1].tolist() == pytest.approx([1 / size] * size + [0] * (25 - size))
        state.step += 1


def test_long_orders_are_sorted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grok.arithmetic.gpu.state.SORTED_AT_ONCE", 130)  # two lanes of 60 at a time
    state = LaneState(tiny(), 5, torch.device("cpu"))
    streams = [Stream("order", s).at(3) for s in range(5)]
    state.shuffle(list(enumerate(streams)))
    for lane, stream in enumerate(streams):
        assert state.order[lane].tolist() == stream.permutation(60).tolist()


def test_the_learning_rate_follows_each_lanes_own_step() -> None:
    configs = [tiny(optim={"lr": 3e-4, "warmup_steps": w}) for w in (0, 1, 7, 10)]
    state = LaneState(tiny(precision="float64"), 4, torch.device("cpu"))
    for lane, config in enumerate(configs):
        state.instruct(lane, config.optim)
    for k in range(1, 13):
        state.step.fill_(k - 1)
        found = Coefficients.of(state).lr.tolist()
        assert found == [learning_rate(config.optim, k) for config in configs]


def test_decay_is_each_lanes_own() -> None:
    state = LaneState(tiny(), 2, torch.device("cpu"))
    state.instruct(0, tiny(optim={"weight_decay": 0.3}).optim)
    state.instruct(1, tiny(optim={"weight_decay": 0.2, "decay": "matrices"}).optim)
    decay = dict(zip(state.names, state.decay().T.tolist()[0], strict=True))
    matrices = dict(zip(state.names, state.decay().T.tolist()[1], strict=True))
    assert set(decay.values()) == {0.3}
    assert matrices["head.weight"] == 0.2 and matrices["head.bias"] == 0.0


@given(
    lanes=st.integers(1, 4),
    rows=st.integers(1, 9),
    examples=st.integers(1, 17),
    width=st.integers(1, 5),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_rows_that_were_taken_often_get_the_sum_in_order(
    lanes: int, rows: int, examples: int, width: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(rows, (lanes, examples), generator=generator)
    grad = torch.randn(lanes, examples, width, generator=generator, dtype=torch.float64).to(dtype)
    x = torch.randn(lanes, rows, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    taken = StackedLanes().take(x, index)
    (found,) = torch.autograd.grad(taken, [x], grad)
    whole = torch.float64 if dtype == torch.float64 else torch.float32
    expected = torch.zeros(lanes, rows, width, dtype=whole)
    for lane in range(lanes):
        for i, row in enumerate(index[lane].tolist()):
            assert torch.equal(taken[lane, i], x[lane, row])
            expected[lane, row] += grad[lane, i]
    assert torch.equal(found, expected.to(dtype))


def test_dropout_words_are_those_of_splitmix64() -> None:
    words = mixed(torch.arange(1, 4) * GOLDEN)
    # the generator's first three words from state 0, as its authors publish them
    assert [word % 2**64 for word in words.tolist()] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_dropout_keeps_its_share_and_differs_by_lane_place_and_step() -> None:
    model = tiny(model={"dropout": 0.3}).model
    keys = torch.tensor([keys_of(model, seed) for seed in (0, 1)]).T
    ones = torch.ones(2, 40, 250, dtype=torch.float64)

    def kept(place: str, step: int) -> Tensor:
        found = dropout(model, keys, torch.tensor([step, step]))(place, ones)
        assert set(found.unique().tolist()) == {0.0, 1 / 0.7}
        return (found > 0).flatten(1).double()

    seen = [kept(place, step)[lane] for place in places(model) for step in (0, 1, 2999) for lane in (0, 1)]
    assert len(seen) == 30
    for mask in seen:
        assert abs(mask.mean() - 0.7) < 5 * (0.7 * 0.3 / 10_000) ** 0.5
    alike = torch.corrcoef(torch.stack(seen)).fill_diagonal_(0).abs().max()
    assert alike < 5 / 10_000**0.5
    assert torch.equal(kept("embedding", 7), kept("embedding", 7))
