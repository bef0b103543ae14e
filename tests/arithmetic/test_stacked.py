"""Stacked lanes: the runs of looped ones up to rounding, the same bits whatever is beside them, and their memory."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo.exc
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import profile

from grok.arithmetic.engine import never
from grok.arithmetic.gpu.engine import Stack, memory_of, width_on
from grok.arithmetic.gpu.lanes import StackedLanes
from grok.arithmetic.gpu.state import GOLDEN, LaneState, dropout, keys_of, mixed, places
from grok.arithmetic.gpu.step import EvaluationPass, TrainingStep
from grok.arithmetic.program import Program
from grok.arithmetic.run import ArithmeticRun
from grok.arithmetic.task import FIRST_NUMBER, split
from grok.arithmetic.weights import initial_parameters
from grok.config import identify
from grok.config.arithmetic import METRICS
from grok.records import RunResult
from grok.store.schema import MEASUREMENTS
from grok.streams import Stream
from tests.arithmetic import cases
from tests.arithmetic.cases import (
    ENGINES,
    FEW,
    VARIANTS,
    Engine,
    checkpoints,
    curve,
    default_config,
    jobs,
    merge,
    results,
    resumed,
    stacked,
)
from tests.arithmetic.cases import one_layer as tiny

run_stacked, saved_in_stack = (partial(call, engine=stacked) for call in (results, checkpoints))
resumed_in_stack = partial(resumed, engine=stacked)


def test_stacked_lanes_equal_the_looped_ones_in_float64() -> None:
    configs = [
        cases.tiny(
            seed=s,
            precision="float64",
            save="final",
            train={"steps": 14 + s},
            optim={"lr": 1e-3 * (1 + s), "warmup_steps": 3 * s, "weight_decay": 0.2 * s, "decay": decay},
        )
        for s, decay in enumerate(["all", "matrices", "all", "matrices", "matrices"])
    ]
    for expected, found in zip(results(*configs), run_stacked(*configs, lanes=2), strict=True):
        assert curve(found).keys() == curve(expected).keys()
        for step, point in curve(expected).items():
            assert curve(found)[step] == pytest.approx(point, rel=1e-9)
        for name, weights in expected.tensors["final"].items():
            assert (found.tensors["final"][name] - weights).abs().max() < 1e-9


def test_stacks_serve_every_operation_with_lanes_to_spare() -> None:
    """Division has no right operand 0: a lane at rest must not look one up."""
    config = tiny(task={"operation": "x/y", "modulus": 7}, train={"batch_size": 10}, precision="float64")
    (expected,), (found,) = results(config), run_stacked(config, lanes=3)
    for step, point in curve(expected).items():
        assert curve(found)[step] == pytest.approx(point, rel=1e-9)


@ENGINES
@pytest.mark.parametrize(
    ("how", "steps"), [({"keep_every": 5}, [5, 10, 15, 20]), ({"every": 7, "keep": True}, [7, 14, 21, 24])]
)
def test_checkpoints_are_made_when_they_are_due(engine: Engine, how: dict[str, Any], steps: list[int]) -> None:
    assert [c.step for c in checkpoints(tiny(checkpoint=how), engine=engine)] == steps


def test_only_lanes_that_are_due_are_evaluated() -> None:
    often, seldom = tiny(seed=1, eval={"every": 2}), [tiny(seed=s, eval={"every": 24}) for s in range(2, 9)]
    stack = Stack(jobs(often, *seldom), lanes=8, device=torch.device("cpu"))
    evaluated: list[int] = []
    evaluate = stack._evaluate

    def counted(lanes: Sequence[int]) -> dict[int, tuple[float, float]]:
        evaluated.append(len(lanes))
        return evaluate(lanes)

    stack._evaluate = counted  # type: ignore[method-assign]
    found = {e.run_id: e for e in stack.train(never) if isinstance(e, RunResult)}
    assert evaluated == [1] * 11 + [8]
    assert stack.evaluation.lanes == 3  # 8 lanes are evaluated in passes of 3, 3 and 2
    for run_id, config in (("run0", often), ("run7", seldom[-1])):
        (alone,) = run_stacked(config, lanes=8)
        assert found[run_id].curve == alone.curve


@ENGINES
def test_dense_evaluations_at_the_start_move_no_bit(engine: Engine) -> None:
    """Step 0 is the initial weights: no mini-batch, no update. Steps beyond the end wait for a longer run."""
    steps = ({}, {"steps": [5, 0, 1, 30, 1]}, {"steps": [0]})
    configs = [tiny(seed=seed, eval={"every": 8, **more}) for seed, more in zip((0, 0, 2), steps, strict=True)]
    plain, dense, beside = results(*configs, engine=engine, lanes=2)
    assert dense.weights_hash == plain.weights_hash
    assert list(curve(plain)) == [8, 16, 24] and list(curve(dense)) == [0, 1, 5, 8, 16, 24]
    assert {step: curve(dense)[step] for step in curve(plain)} == curve(plain)
    start, first = dense.curve[:2]
    initial = initial_parameters(tiny())
    norm = torch.cat([p.flatten() for p in initial.values()]).double().norm().item()
    assert start.weight_norm_all == pytest.approx(norm, rel=1e-12)
    assert math.isfinite(start.val_loss) and math.isnan(start.train_loss) and math.isnan(start.lr)
    assert first.lr > 0 and beside.curve[0].val_loss != start.val_loss
    val_loss, val_acc = Program(tiny()).evaluate(initial, split(tiny().task, tiny().stream_seeds().split)[1])
    assert (start.val_loss, start.val_acc) == (pytest.approx(val_loss, rel=1e-6), val_acc)


@ENGINES
def test_a_run_with_dense_evaluations_is_extended_and_resumed(engine: Engine) -> None:
    over: dict[str, Any] = {"eval": {"every": 8, "steps": [0, 3, 26]}, "checkpoint": {"keep": True, "every": 2}}
    short, whole = tiny(**over), tiny(**over, train={"steps": 30})
    saved, (expected,) = checkpoints(short, engine=engine), results(whole, engine=engine)
    assert list(curve(expected)) == [0, 3, 8, 16, 24, 26, 30]
    for checkpoint in (saved[0], saved[-1]):
        found = resumed(whole, checkpoint, engine=engine)
        assert repr(found.curve) == repr(expected.curve) and found.weights_hash == expected.weights_hash


def test_measurements_are_those_of_looped_lanes_and_change_no_bit() -> None:
    over: dict[str, Any] = {"precision": "float64", "eval": {"every": 8, "steps": [0], "metrics": list(METRICS)}}
    configs = [tiny(seed=seed, **over) for seed in (0, 1)]
    configs.append(tiny(**merge(over, {"eval": {"metrics": []}})))
    assert identify(configs[0]).run_id == identify(configs[2]).run_id
    always = {name.replace("BLOCK", "0") for name in MEASUREMENTS if not name.startswith("final_")}
    always -= {f"neurons_0_{name}" for name in ("at_K", "symmetry", "alignment")}  # no neuron is tuned yet
    found, expected = run_stacked(*configs, lanes=2), results(*configs)
    for one, other in zip(found, expected, strict=True):
        for point, theirs in zip(one.curve, other.curve, strict=True):
            assert point.metrics == pytest.approx(theirs.metrics, rel=1e-9)
    for measured, _, without in (found, expected):
        assert measured.weights_hash == without.weights_hash and not any(point.metrics for point in without.curve)
        assert set(measured.curve[0].metrics) == always - {"gradient_norm"}, "no gradient at step 0"
        assert all(set(point.metrics) == always for point in measured.curve[1:])


def test_dropout_is_a_runs_own() -> None:
    over: dict[str, Any] = {"model": {"dropout": 0.2}, "checkpoint": {"every": 7}}
    (alone,) = run_stacked(tiny(**over), lanes=3)
    crowd = [tiny(seed=s, train={"steps": 5 + s}, **over) for s in (1, 2, 3, 4)]
    crowded = run_stacked(*crowd, tiny(**over), lanes=3)[4]
    assert crowded.weights_hash == alone.weights_hash and crowded.curve == alone.curve
    (other,) = run_stacked(tiny(seeds={"dropout": 1}, **over), lanes=3)
    (without,) = run_stacked(tiny(), lanes=3)
    assert len({alone.weights_hash, other.weights_hash, without.weights_hash}) == 3
    assert "rows=plain" in alone.numerics and "rows=shared" in without.numerics
    assert (
        resumed_in_stack(tiny(**over), saved_in_stack(tiny(**over), lanes=3)[1], lanes=3).weights_hash
        == alone.weights_hash
    )


CHANGES: dict[str, dict[str, Any]] = {
    "stablemax": {"train": {"loss": "stablemax"}},
    "grokfast": {"optim": {"grokfast": "ema", "grokfast_lamb": 3.0}},
    # without biases: a key's moves no output, so its gradient is rounding noise, which a projection brings to size
    "orthogonal": {"optim": {"orthogonal_gradient": True}, "model": {"bias": False}},
    "clamp": {"optim": {"norm_clamp": 0.7}},
    "all": {
        "optim": {"grokfast": "ema", "orthogonal_gradient": True, "norm_clamp": 1.1},
        "model": {"bias": False},
    },
}


@pytest.mark.parametrize("change", ["all", *(pytest.param(c, marks=pytest.mark.slow) for c in CHANGES if c != "all")])
def test_changes_to_the_training_rule_are_those_of_looped_lanes(change: str) -> None:
    plain = [{"seed": s, "precision": "float64", "train": {"steps": 9 + s}} for s in (0, 1)]
    configs = [tiny(**over) for over in plain]
    changed = [tiny(**merge(over, CHANGES[change])) for over in plain]
    stacked = run_stacked(*configs, *changed, lanes=3)  # what differs in its rule is in a stack of its own
    for looped, found in zip(results(*configs, *changed), stacked, strict=True):
        assert curve(found).keys() == curve(looped).keys()
        for step, expected in curve(looped).items():
            assert curve(found)[step] == pytest.approx(expected, rel=1e-8)
    assert curve(stacked[0]) != curve(stacked[2])


@pytest.mark.parametrize("change", ["clamp", pytest.param("grokfast", marks=pytest.mark.slow)])
def test_a_changed_rule_goes_on_from_its_checkpoint_on_either_path(change: str) -> None:
    over = merge({"precision": "float64", "checkpoint": {"every": 7}}, CHANGES[change])
    (whole,) = run_stacked(tiny(**over), lanes=2)
    for saved in (saved_in_stack(tiny(**over), lanes=2)[0], checkpoints(tiny(**over))[0]):
        assert curve(resumed_in_stack(tiny(**over), saved, lanes=2))[24] == pytest.approx(curve(whole)[24], rel=1e-8)


@given(
    steps=st.integers(1, 90),
    every=st.integers(1, 100),
    schedule=st.sampled_from(["every", "log"]),
    stop_every=st.one_of(st.none(), st.integers(1, 40)),
    checkpoint_every=st.integers(0, 40),
)
@settings(max_examples=40, deadline=None)
def test_the_next_due_step_is_the_first_at_which_anything_is_due(
    steps: int, every: int, schedule: str, stop_every: int | None, checkpoint_every: int
) -> None:
    stop = {} if stop_every is None else {"stop_when_generalised": True, "stop_every": stop_every}
    config = tiny(
        train={"steps": steps, **stop},
        eval={"every": every, "schedule": schedule},
        checkpoint={"every": checkpoint_every, "minutes": 0},
    )
    run = ArithmeticRun(jobs(config)[0])
    while run.step < steps:
        expected = run.next_due()
        for run.step in range(run.step + 1, expected + 1):  # noqa: B020
            due = run.evaluation_due() or run.decision_due() or run.checkpoint_due(run.step)
            assert (due or run.step == steps) == (run.step == expected)


@pytest.mark.slow
def test_a_compiled_stack_equals_an_uncompiled_one_to_rounding_and_itself_to_the_bit() -> None:
    compiled: dict[str, Any] = {"numerics": {"compile": True}}
    (expected,) = run_stacked(tiny(), lanes=3)
    (alone,) = run_stacked(tiny(**compiled), lanes=3)
    others = [tiny(seed=s, train={"steps": 9 + s}, **compiled) for s in (4, 5, 6)]
    crowded = run_stacked(*others, tiny(**compiled), lanes=3)[3]
    for step, values in curve(expected).items():
        assert curve(alone)[step] == pytest.approx(values, rel=1e-4)
    assert alone.weights_hash == crowded.weights_hash and alone.curve == crowded.curve
    assert "compiled=whole" in alone.numerics


@pytest.mark.slow
def test_the_width_follows_the_model_of_the_device_and_the_size_of_the_run() -> None:
    h200 = 141 * 10**9
    default = default_config()
    assert width_on(default, "NVIDIA H200", h200) == 264
    assert width_on(default, "NVIDIA H200 NVL", h200) == 264
    assert width_on(default, "NVIDIA GH200 480GB", 96 * 10**9) == 264
    assert width_on(default, "Some other device", h200) == 64
    wider = width_on(default_config(model={"d_model": 64, "d_ff": 256}), "NVIDIA H200", h200)
    narrower = width_on(default_config(model={"d_model": 256, "d_ff": 1024}), "NVIDIA H200", h200)
    assert narrower < 264 < wider <= 1056
    assert width_on(default, "NVIDIA H200", h200, 3) == 3


@pytest.mark.parametrize("variant", FEW)
def test_the_memory_estimate_is_what_a_step_takes(variant: str) -> None:
    config = cases.tiny(**{**VARIANTS[variant], "precision": "float32"})
    expected = memory_of(config, 8)
    state = LaneState(config, 8, torch.device("cpu"))
    assert expected.state == sum(t.untyped_storage().nbytes() for _, t in state.tensors())
    for function, estimate in (
        (TrainingStep(state, compile=False), expected.step),
        (EvaluationPass(state, compile=False), expected.evaluation),
    ):
        function()
        with profile(profile_memory=True) as taken:
            function()
        live = peak = 0
        for event in taken.profiler.kineto_results.events():  # type: ignore[union-attr]
            if event.name() == "[memory]":
                live += event.nbytes()
                peak = max(peak, live)
        # what an operation takes inside itself is not seen by the estimate
        assert estimate <= peak * 1.01 + 4096 and peak <= 1.25 * estimate + 65536


@pytest.mark.parametrize("seeds", [{}, {"order": 7}])
def test_the_device_finds_the_batches_of_the_order(seeds: dict[str, int]) -> None:
    config = cases.tiny(seeds=seeds)
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
    state = LaneState(cases.tiny(), 5, torch.device("cpu"))
    streams = [Stream("order", s).at(3) for s in range(5)]
    state.shuffle(list(enumerate(streams)))
    for lane, stream in enumerate(streams):
        assert state.order[lane].tolist() == stream.permutation(60).tolist()


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
    model = cases.tiny(model={"dropout": 0.3}).model
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
