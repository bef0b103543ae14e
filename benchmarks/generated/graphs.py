"""Generates Inductor's CUDA code for the parts of a stacked step, without a device.

The step is traced on CPU tensors without data, because autograd needs a context of a CUDA device. Then the tensors of
the graph are moved to a CUDA device. Call ``pretence.pretend`` first.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._functorch.aot_autograd import aot_function
from torch._guards import TracingContext, tracing
from torch._inductor import compile_fx
from torch._inductor import config as inductor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.simd import SIMDKernel
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.dependencies import Dep, MemoryDep
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import get_dtype_size
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from grok.arithmetic.gpu.kernels import FixedKernels
from grok.arithmetic.gpu.optimizer import adamw, coefficients_of
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import OPTIONS, EvaluationPass, TrainingStep, reduced
from grok.config import ArithmeticConfig

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@dataclass(slots=True)
class Graph:
    """One compiled graph: the code of its wrapper, the sources of its kernels by name, and its nodes."""

    name: str
    code: str = ""
    kernels: dict[str, str] = field(default_factory=dict)
    nodes: list[torch.fx.Node] = field(default_factory=list)

    def launches(self) -> Counter[str]:
        """Return the number of launches of each Triton kernel in one call."""
        return Counter(re.findall(r"^\s+(triton_\w+)\.run\(", self.code, re.MULTILINE))

    def kinds(self) -> dict[str, int]:
        """Return the numbers of distinct kernels without sums, with sums of whole rows, and of parts of rows."""
        kinds = Counter(map(kind_of, self.kernels.values()))
        return {kind: kinds[kind] for kind in ("no sums", "whole rows", "parts of rows")}


def kind_of(kernel: str) -> str:
    if "for r0_offset in" in kernel:
        return "parts of rows"
    return "whole rows" if "r0_numel" in kernel else "no sums"


def graphs_of(config: ArithmeticConfig, width: int) -> dict[str, Graph]:
    """Return the graphs ``step`` (loss and gradients), ``update`` and ``evaluation``."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[str, Graph] = {}

    def compiler(name: str) -> Callable[..., Any]:
        def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
            made[name] = generated(name, graph, inputs, mode)
            return make_boxed_func(graph.forward)

        return compile_graph

    with mode:
        state = LaneState(config, width, CPU)
        names = state.names
        step = TrainingStep(state, compile=True)
        arguments = step.inputs()
        graph = traced(step, arguments)
        trace(graph, arguments, compiler("step"))
        gradients = graph(*arguments)[2 : 2 + len(names)]
        trace(lambda *a: update(a, len(names)), update_inputs(state, gradients), compiler("update"))
        evaluation = EvaluationPass(state, compile=False)
        place = evaluation.start + torch.arange(evaluation.size)
        columns = state.val_set.index_select(2, place).index_select(1, evaluation.chosen)
        parameters = [state.parameters[n].detach().index_select(0, evaluation.chosen) for n in names]
        with reduced(config, CPU):
            trace(lambda *a: evaluation.score(list(a[:-1]), a[-1]), [*parameters, columns], compiler("evaluation"))
    return made


def traced(step: TrainingStep, arguments: Sequence[Tensor]) -> torch.fx.GraphModule:
    """Return a compiled step's loss and gradients as one graph, as ``OneGraph`` traces them."""

    def function(*tensors: Tensor) -> list[Tensor]:  # the tracer miscounts the arguments of a bound method
        return step.gradients(*tensors)

    return make_fx(function)(*arguments)


def trace(function: Callable[..., Any], arguments: Sequence[Tensor], compiler: Callable[..., Any]) -> None:
    """Trace a function without gradients; in-place updates stay in the graph, as with torch.compile."""
    decompositions = select_decomp_table()
    with torch.no_grad():
        aot_function(
            function, fw_compiler=compiler, decompositions=decompositions, keep_inference_input_mutations=True
        )(*arguments)


def update_inputs(state: LaneState, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the arguments of ``update`` with these gradients."""
    named = [state.parameters, *list(state.moments.values())[:2]]
    parameters, first, second = ([of[n].detach() for n in state.names] for of in named)
    return [*parameters, *gradients, *first, *second, *coefficients_of(state), state.alive]


def update(arguments: Sequence[Tensor], count: int) -> list[Tensor]:
    """Call ``adamw`` with a flat list of arguments: ``count`` each of parameters, gradients and both moments."""
    named = [list(arguments[i * count : (i + 1) * count]) for i in range(4)]
    adamw(named[0], named[1], named[2], named[3], tuple(arguments[4 * count : -1]), arguments[-1])
    return []


def generated(
    name: str, graph: torch.fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode, **options: Any
) -> Graph:
    """Return the code that Inductor generates for a traced graph on a CUDA device."""
    moved = moved_to_cuda(copy.deepcopy(graph), mode)
    arguments = [on_cuda(x, mode) for x in inputs]
    made = Graph(name, nodes=list(moved.graph.nodes))
    with (
        caught(made),
        inductor.patch({**OPTIONS, "profile_bandwidth": True, **options}),
        V.set_choices_handler(FixedKernels()),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
    ):
        compile_fx.compile_fx_inner(moved, arguments, static_input_idxs=())
    return made


@contextmanager
def caught(made: Graph) -> Iterator[None]:
    """Store the code that Inductor generates in ``made`` instead of compiling it."""

    def triton(self: AsyncCompile, kernel_name: str, source_code: str, device_str: str = "cuda") -> None:
        made.kernels[kernel_name] = source_code

    with (
        patch.multiple(AsyncCompile, triton=triton, wait=lambda self, scope: None),
        patch.object(GraphLowering, "save_output_code", staticmethod(lambda code: setattr(made, "code", code))),
        patch.object(SIMDKernel, "estimate_kernel_num_bytes", bytes_of),
    ):
        yield


def bytes_of(kernel: SIMDKernel[Any]) -> int:
    """Return the bytes that a kernel reads and writes: each element that its indices reach, once.

    Inductor's estimate counts the whole buffer if a slice is read, and counts overwritten elements twice.
    """
    nodes = kernel.features.scheduler_nodes()
    arguments = {*kernel.args.input_buffers, *kernel.args.output_buffers, *kernel.args.inplace_buffers}
    made = {buffer.get_name() for node in nodes for buffer in node.get_outputs() if not buffer.get_mutations()}
    reads = {dep for node in nodes for dep in node.read_writes.reads if dep.name not in made}
    writes = {dep for node in nodes for dep in node.read_writes.writes if dep.name not in kernel.removed_buffers}
    real = V.graph.scheduler.mutation_real_name  # a mutated buffer has the name of the original
    passed = [[dep for dep in deps if real.get(dep.name, dep.name) in arguments] for deps in (reads, writes)]
    return sum(map(bytes_reached, passed))


def bytes_reached(accesses: Sequence[Dep]) -> int:
    """Return the bytes of these reads or writes: each index of a buffer once, at most the whole buffer."""
    reached: dict[str, dict[Any, int]] = {}
    for dep in accesses:
        index = dep.index if isinstance(dep, MemoryDep) else None
        whole = V.graph.sizevars.optimization_hint(V.graph.get_numel(dep.name))
        elements = elements_of(dep) if isinstance(dep, MemoryDep) else whole
        reached.setdefault(dep.name, {"whole": whole})[index] = elements
    total = 0
    for name, by_index in reached.items():
        whole = by_index.pop("whole")
        total += min(whole, sum(by_index.values())) * get_dtype_size(V.graph.get_dtype(name))
    return int(total)


def elements_of(dep: MemoryDep) -> int:
    """Return the number of elements that an index reaches; if it depends on data, an upper bound."""
    by_data = any(symbol not in dep.ranges for symbol in dep.index.free_symbols)
    ranges = [n for symbol, n in dep.ranges.items() if by_data or symbol in dep.index.free_symbols]
    return int(math.prod(map(int, ranges)))


def moved_to_cuda(graph: torch.fx.GraphModule, mode: FakeTensorMode) -> torch.fx.GraphModule:
    """Return a traced graph with every value and every device argument on the CUDA device."""
    for node in graph.graph.nodes:
        node.meta.pop("tensor_meta", None)
        if "val" in node.meta:
            node.meta["val"] = tree_map(lambda x: on_cuda(x, mode), node.meta["val"])
        if node.op == "call_function":
            node.kwargs = {k: CUDA if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
            node.args = tree_map(lambda a: CUDA if isinstance(a, torch.device) else a, node.args)
    graph.recompile()
    return graph


def on_cuda(x: Any, mode: FakeTensorMode) -> Any:
    """Return a tensor without data like ``x`` on the CUDA device; return other values unchanged."""
    if not isinstance(x, Tensor):
        return x
    with mode:
        return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=CUDA)
