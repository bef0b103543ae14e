"""What a captured graph asks of a step, held on every device: buffers in, buffers out, not a word with the host."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.exc
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from grok.arithmetic.gpu.engine import Seat, Stack
from grok.arithmetic.gpu.lanes import group_rows, sum_grouped_rows
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import Captured, EvaluationPass, TrainingStep, model_of, without_limit
from grok.arithmetic.program import Program
from grok.arithmetic.task import split
from grok.config import ArithmeticConfig
from tests.arithmetic.cases import FEW, VARIANTS, jobs, tiny

WAITS = set(
    """
    _local_scalar_dense is_nonzero equal nonzero masked_select _unique2 unique_consecutive unique_dim bincount
    repeat_interleave lift_fresh lift_fresh_copy item
    """.split()
)
"""Operations that ask the device for a number or a shape, or that copy a number of the host's to it."""
ATOMIC = set(
    """
    index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ scatter scatter_ index_put
    index_put_ _index_put_impl_ _unsafe_index_put put_ index_reduce embedding_dense_backward embedding_backward
    bincount histc
    """.split()
)
"""Operations that add up on CUDA in no fixed order."""
RANDOM = {"bernoulli", "bernoulli_", "native_dropout", "rand", "randn", "randint", "uniform_", "normal_", "random_"}


class Recorder(TorchDispatchMode):
    """Notes every operation and every device; goes into this project's own operations too."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, name = func.name().split("::")
        self.names.append(name.split(".")[0])
        own = {"group_rows": group_rows, "sum_grouped_rows": sum_grouped_rows}
        if namespace == "grok" and not any(t.is_meta for t in tree_iter(args) if isinstance(t, Tensor)):
            with self:
                result = own[name]._init_fn(*args, **(kwargs or {}))  # type: ignore[attr-defined]
        else:
            result = func(*args, **(kwargs or {}))
        self.devices |= {t.device.type for t in tree_iter((args, kwargs, result)) if isinstance(t, Tensor)}
        return result


def parts(config: ArithmeticConfig, device: str, width: int = 3) -> list[Callable[[], None]]:
    state = LaneState(config, width, torch.device(device))
    return [TrainingStep(state, compile=False), EvaluationPass(state, compile=False)]


@pytest.mark.parametrize("variant", FEW)
def test_a_step_never_speaks_to_the_host(variant: str) -> None:
    """On tensors without data an operation that needs a number raises, and one that mixes devices shows."""
    for function in parts(tiny(**VARIANTS[variant]), "meta"):
        with Recorder() as seen:
            function()
        assert seen.devices == {"meta"}
        assert not WAITS & set(seen.names)


@pytest.mark.parametrize("variant", FEW)
def test_no_sum_is_atomic_nothing_is_drawn_and_nothing_waits(variant: str) -> None:
    functions = parts(tiny(**VARIANTS[variant]), "cpu")
    with Recorder() as seen:
        for function in functions:
            function()
    assert not (ATOMIC | RANDOM | WAITS) & set(seen.names)
    assert {"group_rows", "sum_grouped_rows", "segment_reduce"} <= set(seen.names)


def test_every_step_has_the_same_operations_shapes_and_addresses() -> None:
    state = seated(3)
    step = TrainingStep(state, compile=False)
    recorded, addresses = [], []
    for _ in range(7):  # the epoch's end and its short batch are among them
        with Recorder() as seen:
            step()
        recorded.append(seen.names)
        addresses.append({name: (t.data_ptr(), t.shape) for name, t in state.tensors()})
    assert all(names == recorded[0] for names in recorded)
    assert all(found == addresses[0] for found in addresses)


def test_lanes_at_rest_keep_every_bit() -> None:
    """So a graph can be warmed up and captured on the very buffers it is for."""
    state = LaneState(tiny(), 4, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, tensor in state.tensors():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype))
    before = {name: tensor.detach().clone() for name, tensor in state.tensors()}
    Captured(TrainingStep(state, compile=False), state.device).prepare()
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors())


def seated(width: int, **over: Any) -> LaneState:
    """Return the state of a stack full of runs, before their first step."""
    stack = Stack(jobs(*[tiny(seed=s, **over) for s in range(width)]), lanes=width, device=torch.device("cpu"))
    for lane in range(width):
        list(stack._seat(lane, Seat(stack.waiting.popleft())))
    stack._shuffle()
    return stack.state


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_compiler_can_take_a_step_whole(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced without a break, forward and backward, and run operation by operation: the same numbers."""

    def traced(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        return without_limit(torch.compile(function, dynamic=False, fullgraph=True, backend="aot_eager"))

    monkeypatch.setattr("grok.arithmetic.gpu.step.compiled", traced)
    monkeypatch.setattr("grok.numerics._compiled", lambda graph, options: graph)
    ends = []
    for compile in (False, True):
        # in float32 the update turns a gradient that is nothing but rounding, as the keys' biases', into a step
        state = seated(2, **{"precision": "float64", **VARIANTS[variant]})
        step, evaluation = TrainingStep(state, compile=compile), EvaluationPass(state, compile=compile)
        if variant == "bf16":  # the same operations both times: the same bits
            step.model = model_of(state, noisy=False, fused=True)
        for _ in range(3):
            step()
        evaluation.choose([1])
        evaluation()
        ends.append({**dict(state.tensors()), "val_loss": evaluation.losses, "val_hits": evaluation.hits})
    assert ends[0]["step"].tolist() == [3, 3] and ends[0]["val_loss"].min() > 0
    for name, expected in ends[0].items():
        near = 0.0 if variant == "bf16" else 1e-9
        torch.testing.assert_close(ends[1][name], expected, rtol=near, atol=near)


def gradients_of(state: LaneState, *, fused: bool) -> list[Tensor]:
    """Return loss, accuracy and every gradient of a step, uncompiled, in float64."""
    step = TrainingStep(state, compile=fused)
    return [x.double() for x in step.gradients(*step.inputs())[: 2 + len(state.names)]]


@pytest.mark.parametrize("variant", FEW)
def test_the_form_that_is_compiled_has_the_numbers_of_the_plain_one(variant: str) -> None:
    state = seated(2, **{**VARIANTS[variant], "precision": "float64"})
    plain, fused = (gradients_of(state, fused=fused) for fused in (False, True))
    for expected, value in zip(plain, fused, strict=True):
        assert (value - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max().item())
    step = TrainingStep(state, compile=True)
    laid = dict(zip(state.names, step.gradients(*step.inputs())[2:], strict=False))
    assert all(laid[n].stride(-1) == state.parameters[n].stride(-1) for n in state.names)  # the update reads in a row


class BFloat16Products(TorchDispatchMode):
    """Rounds the operands and the result of every batched product to bfloat16, whatever their type."""

    terms = 0
    """Of the longest sum of a product."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.bmm.default:
            return func(*args, **(kwargs or {}))
        self.terms = max(self.terms, args[0].shape[2])
        product = func(*[x.bfloat16().to(x.dtype) for x in args])
        return product.bfloat16().to(product.dtype)


@pytest.mark.parametrize("fused", [False, True])
def test_bfloat16_rounds_the_products_operands_and_results_and_nothing_else(fused: bool) -> None:
    """Against float64 with the same rounding points.

    What is left is float32's own rounding, at most half a unit (2**-24) for each term of the longest sum; where that
    moves a number over the border between two bfloat16 values, one unit of these (2**-8).
    """
    low, high = (seated(2, precision=precision) for precision in ("bf16", "float64"))
    with torch.no_grad():
        for name in low.names:
            high.parameters[name].copy_(low.parameters[name])
    with BFloat16Products() as rounding:
        expected = gradients_of(high, fused=fused)
    values, unrounded = gradients_of(low, fused=fused), gradients_of(high, fused=fused)
    for name, right, value, other in zip(["loss", "accuracy", *low.names], expected, values, unrounded, strict=True):
        unit = right.abs().max()
        assert (value - right).abs().max() <= 2**-8 * unit, name
        assert (value - right).abs().median() <= rounding.terms * 2**-24 * unit, name
        assert name == "accuracy" or (other - right).abs().median() > rounding.terms * 2**-24 * unit  # it can fail


def test_what_a_failed_compilation_left_is_gone_before_the_step_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Tensor]] = []

    def broken(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            left.append(weakref.ref(args[1][0]))  # a gradient: only the update is compiled by this function
            raise torch._dynamo.exc.Unsupported("no compiler")

        return call

    build, alive = Stack._build, []

    def watched(self: Stack) -> None:
        alive.append([ref() is not None for ref in left])
        build(self)

    monkeypatch.setattr("grok.arithmetic.gpu.step.compiled", broken)
    monkeypatch.setattr("grok.arithmetic.gpu.step.OneGraph", lambda function, options: function)
    monkeypatch.setattr(Stack, "_build", watched)
    config = tiny(numerics={"compile": True, "auto_fallback": True})
    with pytest.warns(RuntimeWarning, match="runs uncompiled"):
        stack = Stack(jobs(config), lanes=2, device=torch.device("cpu"))
    assert alive == [[], [False]] and not stack.compiled


@pytest.mark.parametrize("passes", [2, 4, 7, 61])
def test_an_evaluation_in_several_passes_is_that_in_one(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    state = seated(4, precision="float64")
    whole = EvaluationPass(state, compile=False)
    monkeypatch.setattr("grok.arithmetic.gpu.step.evaluation_passes", lambda n: passes)
    parts = EvaluationPass(state, compile=False)
    assert (whole.passes, parts.passes, parts.examples) == (1, passes, 61)
    for evaluation in (whole, parts):
        evaluation.choose([3])
        for _ in range(evaluation.passes):
            evaluation()
    assert parts.losses[0].item() == pytest.approx(whole.losses[0].item(), rel=1e-12)
    assert parts.hits[0] == whole.hits[0]
    program = Program(tiny(precision="float64", seed=3))
    parameters = {name: p[3].detach() for name, p in state.parameters.items()}
    _, val_set = split(tiny().task, tiny(seed=3).stream_seeds().split)
    loss, accuracy = program.evaluate(parameters, val_set)
    assert parts.losses[0].item() / 61 == pytest.approx(loss, rel=1e-12)
    assert parts.hits[0].item() / 61 == accuracy
