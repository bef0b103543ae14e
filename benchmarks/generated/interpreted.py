"""Runs the generated CUDA step in Triton's interpreter, on the processor, and compares it with the uncompiled step.

Call ``pretence.pretend(interpreter=True)`` first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.generated.graphs import CPU, Graph, generated, trace, traced, update
from benchmarks.generated.guarded import guarded
from grok.arithmetic.gpu import block_kernels
from grok.arithmetic.gpu.engine import Seat, Stack
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import TrainingStep
from grok.config import load_config
from grok.records import Job

STEPS = 3
TINY: dict[str, Any] = {
    "mode": "arithmetic",
    "task": {"operation": "x+y", "modulus": 13},
    "model": {"layers": 2, "d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"steps": 24, "batch_size": 80},  # large enough that its sums have the layout of the real step
    "eval": {"every": 8},
}
ON_THE_PROCESSOR = (
    ("with torch.cuda._DeviceGuard(0):", "if True:"),
    ("torch.cuda.set_device(0)", "pass"),
    (
        "empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda",
        "from benchmarks.generated.guarded import unwritten as empty_strided_cuda",
    ),
    ("from torch._C import _cuda_getCurrentRawStream as get_raw_stream", "get_raw_stream = lambda device: 0"),
    ("device(type='cuda', index=0)", "device(type='cpu')"),
    ("assert_alignment(", "(lambda *_: None)("),
)
"""Replacements in the generated wrapper: device code, processor code."""


def outcome(precision: str, settings: dict[str, Any], width: int = 3) -> dict[str, Any]:
    """Return the largest difference over ``STEPS`` steps, and the number of kernels of each kind.

    Only the generated step has the ``settings``, and kernels that are written by hand.

    A difference is relative to the largest number of its tensor. float64: over all tensors of the lanes' state.
    float32: over the losses only, because AdamW turns gradients that are pure rounding, such as those of the keys'
    biases, into steps.
    """
    states = [seated({**over, "precision": precision}, width) for over in ({}, settings)]
    plain, interpreted = TrainingStep(states[0], compile=False), TrainingStep(states[1], compile=True)
    graphs: list[Graph] = []
    library = torch.library.Library("grok", "IMPL")
    for name in ("block", "block_gradients"):
        library.impl(name, getattr(block_kernels, name), "CPU", allow_override=True)
    interpreted._gradients = interpret(interpreted, graphs)
    interpreted._update = interpret_update(len(states[1].names), graphs)
    worst = 0.0
    for _ in range(STEPS):
        plain()
        interpreted()
        for (name, expected), (_, value) in zip(states[0].tensors(), states[1].tensors(), strict=True):
            compared = precision == "float64" or name == "loss"
            if compared and expected.is_floating_point() and expected.numel():
                difference = (expected - value).abs().max() / expected.abs().max().clamp(min=1e-12)
                assert difference.isfinite(), name
                worst = max(worst, difference.item())
    return {"difference": worst, "kinds": {graph.name: graph.kinds() for graph in graphs}}


def seated(settings: dict[str, Any], width: int) -> LaneState:
    """Return the state of full lanes at the start of an epoch."""
    configs = [load_config({**TINY, **settings, "seed": seed}) for seed in range(width)]
    jobs = [Job(run_id=str(config.seed), config=config) for config in configs]
    plain = [Job(run_id=job.run_id, config=uncompiled(job.config)) for job in jobs]
    stack = Stack(plain, lanes=width, device=CPU)
    for lane in range(width):
        list(stack._seat(lane, Seat(stack.waiting.popleft())))
    stack._shuffle()
    return stack.state


def uncompiled(config: Any) -> Any:
    config.numerics.compile = False
    return config


def interpret(step: TrainingStep, graphs: list[Graph]) -> Callable[..., list[Tensor]]:
    """Return a function for a step's loss and gradients by generated code, made at its first call.

    The graph is added to ``graphs``.
    """
    made: list[Callable[..., Any]] = []

    def gradients(*tensors: Tensor) -> list[Tensor]:
        if not made:
            made.append(runnable("step", traced(step, tensors), tensors, graphs))
        return list(made[0](list(tensors)))

    return gradients


def interpret_update(count: int, graphs: list[Graph]) -> Callable[..., None]:
    """Return a function for the optimiser's update by generated code, made at its first call.

    The graph is added to ``graphs``.
    """
    made: list[Callable[..., Any]] = []

    def changed(*named: Any) -> None:
        *lists, coefficients, alive = named
        tensors = [t.detach() for tensors in lists for t in tensors] + [*coefficients, alive]
        if not made:
            copies = [t.clone() for t in tensors]  # tracing runs once, and the update changes its arguments
            made.append(runnable("update", lambda *a: update(a, count), copies, graphs))
        made[0](tensors)

    return changed


def runnable(
    name: str, function: Callable[..., Any], tensors: Sequence[Tensor], graphs: list[Graph]
) -> Callable[..., Any]:
    """Return a function that runs the code generated for ``function`` with interpreted kernels."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        graphs.append(generated(name, graph, inputs, mode, comprehensive_padding=False, profile_bandwidth=False))
        return make_boxed_func(graph.forward)

    trace(function, tensors, compile_graph)
    code = graphs[-1].code
    for device, processor in ON_THE_PROCESSOR:
        code = code.replace(device, processor)
    with patch.multiple(AsyncCompile, triton=interpreter, wait=lambda self, scope: None):
        module = PyCodeCache.load(code)

    def call(arguments: Any) -> Any:
        with guarded():
            return module.call(list(arguments))

    return call


def interpreter(self: AsyncCompile, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
    """Load a kernel for the interpreter, with Triton's functions instead of the device library's."""
    source = re.sub(r"libdevice\.(exp|erf|rsqrt|log|sqrt)\(", r"tl.\1(", source_code)
    return getattr(PyCodeCache.load(source), kernel_name)
