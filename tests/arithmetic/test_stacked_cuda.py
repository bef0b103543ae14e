"""What only a CUDA device can show: the same numbers captured or not, the same bits whatever is beside a lane."""

from typing import Any

import pytest
import torch

from grok.arithmetic.engine import never
from grok.arithmetic.gpu import train_stacked
from grok.arithmetic.gpu.engine import Stack
from grok.arithmetic.gpu.step import Captured
from grok.config import ArithmeticConfig
from grok.config.arithmetic import METRICS
from grok.records import Checkpoint, Job, RunResult
from tests.arithmetic.cases import curve, jobs, results, tiny

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

PATHS: dict[str, dict[str, Any]] = {
    "eager": {},
    "odd sizes": {"task": {"modulus": 12}, "model": {"d_model": 15, "heads": 3, "d_ff": 23}},
    "compiled": {"numerics": {"compile": True}},
    "fused": {"numerics": {"compile": True, "kernels": "fused"}},
    "fused tf32": {"numerics": {"compile": True, "kernels": "fused"}, "precision": "tf32"},
    "fused tf32x3": {"numerics": {"compile": True, "kernels": "fused"}, "precision": "tf32x3"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
}


def on_gpu(*configs: ArithmeticConfig, lanes: int = 8, graphs: bool = True) -> list[RunResult]:
    events = list(train_stacked(jobs(*configs), lanes=lanes, stop=never, graphs=graphs))
    found = {e.run_id: e for e in events if isinstance(e, RunResult)}
    return [found[f"run{i}"] for i in range(len(configs))]


def same_bits(one: RunResult, other: RunResult) -> bool:
    return one.weights_hash == other.weights_hash and one.curve == other.curve and one.numerics == other.numerics


@pytest.mark.parametrize("path", PATHS)
def test_neighbours_place_and_refilling_move_no_bit(path: str) -> None:
    config = tiny(seed=3, **PATHS[path])
    (alone,) = on_gpu(config)
    others = [tiny(seed=s, train={"steps": 3 + s}, optim={"lr": 1e-3 * s}, **PATHS[path]) for s in range(10, 30)]
    assert same_bits(on_gpu(*others[:19], config, *others[19:])[19], alone)
    assert same_bits(on_gpu(*others[:3], config)[3], alone)


@pytest.mark.parametrize("path", PATHS)
def test_a_second_run_has_the_bits_of_the_first(path: str) -> None:
    configs = [tiny(seed=s, **PATHS[path]) for s in range(8)]
    for one, other in zip(on_gpu(*configs), on_gpu(*configs), strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("path", PATHS)
def test_a_graph_replays_the_numbers_of_its_kernels(path: str) -> None:
    configs = [tiny(seed=s, train={"steps": 9 + 5 * s}, **PATHS[path]) for s in range(10)]
    for captured, queued in zip(on_gpu(*configs), on_gpu(*configs, graphs=False), strict=True):
        assert same_bits(captured, queued)


def test_measurements_on_the_device_are_those_of_a_processor() -> None:
    over = {"precision": "float64", "eval": {"every": 8, "metrics": list(METRICS)}}
    (found,), (expected,) = on_gpu(tiny(**over)), results(tiny(**over))
    for point, other in zip(found.curve, expected.curve, strict=True):
        assert point.metrics == pytest.approx(other.metrics, rel=1e-8)


def test_evaluation_cadence_moves_no_bit() -> None:
    found = [on_gpu(tiny(seed=5, eval={"every": every}))[0] for every in (1, 5, 24)]
    assert len({run.weights_hash for run in found}) == 1


def test_float64_on_the_device_is_the_reference() -> None:
    configs = [tiny(seed=s, precision="float64", save="final") for s in range(3)]
    for stacked, looped in zip(on_gpu(*configs), results(*configs), strict=True):
        for step, expected in curve(looped).items():
            assert curve(stacked)[step] == pytest.approx(expected, rel=1e-9)
        for name, expected in looped.tensors["final"].items():
            assert (stacked.tensors["final"][name] - expected).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("path", "tolerance"),
    [("eager", 1e-4), ("compiled", 1e-4), ("fused", 1e-4), ("fused tf32x3", 1e-4), ("tf32", 5e-2), ("bf16", 2e-1)],
)
def test_each_precision_is_as_near_the_reference_as_it_can_be(path: str, tolerance: float) -> None:
    (found,) = on_gpu(tiny(**PATHS[path]))
    (expected,) = results(tiny(precision="float64"))
    assert found.curve[-1].train_loss == pytest.approx(expected.curve[-1].train_loss, rel=tolerance)
    assert found.curve[-1].weight_norm == pytest.approx(expected.curve[-1].weight_norm, rel=tolerance)


def test_a_checkpoint_of_the_device_goes_on_with_the_same_bits() -> None:
    config = tiny(checkpoint={"every": 7})
    events = list(train_stacked(jobs(config), lanes=8, stop=never))
    (whole,) = [e for e in events if isinstance(e, RunResult)]
    for saved in [e for e in events if isinstance(e, Checkpoint)]:
        job = Job(run_id="run0", config=tiny(), resume=saved)
        (resumed,) = [e for e in train_stacked([job], lanes=8, stop=never) if isinstance(e, RunResult)]
        assert same_bits(resumed, whole)


def test_steps_are_queued_without_a_wait() -> None:
    stack = Stack(jobs(*[tiny(seed=s) for s in range(8)]), lanes=8, device=torch.device("cuda"), graphs=False)
    for lane in range(8):
        from grok.arithmetic.gpu.engine import Seat

        list(stack._seat(lane, Seat(stack.waiting.popleft())))
    stack._shuffle()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for further in range(7):  # with two epochs' ends
            stack._shuffle(further)
            stack._step()
        stack._pass()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert stack.state.fetch()[2] == [7] * 8


def test_steps_and_evaluations_keep_to_the_estimate_of_their_memory() -> None:
    from grok.arithmetic.gpu.engine import memory_of

    config = tiny(model={"d_model": 128, "d_ff": 512}, train={"batch_size": 60})
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    on_gpu(config, lanes=64)
    assert torch.cuda.max_memory_allocated() - before <= 1.25 * memory_of(config, 64).total + 2**26


def test_a_capture_replays_on_what_lies_in_the_buffers_now() -> None:
    x, y = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")

    def double() -> None:
        y.copy_(2 * x)

    captured = Captured(double, x.device)
    captured.prepare()
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    captured()
    assert y.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("path", ["eager", "compiled"])
def test_a_switch_inside_an_epoch_is_the_same_captured_or_not_alone_or_resumed(path: str) -> None:
    """Step 7 is the first of an epoch's three updates; the lanes beside it switch at other steps."""
    configs = [
        tiny(**PATHS[path], seed=s, eval={"every": 4, "steps": [0]}, checkpoint={"keep_steps": [7]},
             switch={"step": 7 - s, "order": 99, "ulps": s})
        for s in range(3)
    ]  # fmt: skip
    together = on_gpu(*configs)
    for found, config in zip(together, configs, strict=True):
        assert same_bits(found, on_gpu(config, graphs=path == "compiled")[0])
    saved = {e.step: e for e in train_stacked(jobs(configs[0]), lanes=8, stop=never) if isinstance(e, Checkpoint)}
    resumed = train_stacked([Job(run_id="run0", config=configs[0], resume=saved[7])], lanes=8, stop=never)
    (found,) = [e for e in resumed if isinstance(e, RunResult)]
    assert found.weights_hash == together[0].weights_hash
    trunk = on_gpu(tiny(**PATHS[path], seed=0, eval={"every": 4, "steps": [0]}))[0]
    before = [point.step for point, own in zip(trunk.curve, found.curve, strict=True) if repr(point) == repr(own)]
    assert before == [0, 4]
