"""Runs the generated CUDA step in Triton's interpreter, on the processor, and compares it with the uncompiled step.

On a device, the elements outside the mask of a load without a default value are undefined, and so is a buffer before
its first write. The interpreter uses zeros for both, which hides invalid reads. Here both are NaN, or an index that no
buffer has. Call ``pretence.pretend(interpreter=True)`` first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.generated.graphs import CPU, Graph, generated, trace, traced, update, update_inputs
from grok.arithmetic.gpu import block, block_kernels
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
        "from benchmarks.generated.interpreted import unwritten as empty_strided_cuda",
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
    for name in block.OPERATIONS:
        library.impl(name, getattr(block_kernels, name), "CPU", allow_override=True)
    tensors = interpreted.inputs()
    interpreted._gradients = runnable("step", traced(interpreted, tensors), tensors, graphs)
    count = len(states[1].names)
    copies = [t.clone() for t in update_inputs(states[1], tensors[:count])]  # tracing changes its arguments
    changed = runnable("update", lambda *a: update(a, count), copies, graphs)
    interpreted._update = lambda *a: changed(*(t.detach() for of in a[:4] for t in of), *a[4], a[5])
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

    def call(*arguments: Tensor) -> Any:
        with guarded():
            return module.call(list(arguments))

    return call


def interpreter(self: AsyncCompile, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
    """Load a kernel for the interpreter, with Triton's functions instead of the device library's."""
    source = re.sub(r"libdevice\.(exp|erf|rsqrt|log|sqrt)\(", r"tl.\1(", source_code)
    return getattr(PyCodeCache.load(source), kernel_name)


# What makes invalid reads visible.

NO_INDEX: Final = 2**62
"""An index outside every buffer."""


def unwritten(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new buffer filled with values that make reads of it visible."""
    index = 1 if dtype == torch.bool or dtype.is_floating_point else min(NO_INDEX, torch.iinfo(dtype).max)
    buffer = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)
    return buffer.fill_(float("nan") if dtype.is_floating_point else index)


@contextmanager
def guarded() -> Iterator[None]:
    """Apply the rules above to the interpreter, and switch off NumPy's floating-point warnings."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    plain_load = builder.create_masked_load

    def load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None:
            kind = pointers.get_element_ty()
            dtype = interpreter._get_np_dtype(kind)
            floating = np.issubdtype(dtype, np.floating)
            value = np.nan if floating else min(NO_INDEX, np.iinfo(dtype).max) if dtype != np.bool_ else True
            other = interpreter.TensorHandle(np.full(pointers.data.shape, value, dtype=dtype), kind)
        return plain_load(self, pointers, mask, other, *rest)

    with (
        patch.object(builder, "create_masked_load", load),
        patch.object(interpreter.ReduceOps, "generic_reduce", folded),
        np.errstate(all="ignore"),
    ):
        yield


def folded(self: Any, tensors: Any) -> list[Any]:
    """Reduce with the kernel's function slice by slice; the interpreter's version works element by element."""
    tensors, axis = self.unravel(tensors, self.axis)
    slices = [np.moveaxis(t.handle.data, axis, 0) for t in tensors]
    kinds = [t.dtype for t in tensors]

    def at(i: int) -> list[Any]:
        return [self.to_tensor(s[i], kind) for s, kind in zip(slices, kinds, strict=True)]

    total = at(0)
    for i in range(1, len(slices[0])):
        result = self.combine_fn.fn(*total, *at(i))
        total = list(result) if isinstance(result, tuple) else [result]
    values = [t.handle.data for t in total]
    if self.keep_dims:
        shape = [1] * tensors[0].handle.data.ndim if self.axis is None else None
        values = [v.reshape(shape) if shape else np.expand_dims(v, axis) for v in values]
    elif self.axis is None:
        values = [v.item() for v in values]
    return [self.to_tensor(v, kind) for v, kind in zip(values, kinds, strict=True)]
