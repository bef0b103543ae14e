"""Counts the launches and bytes of generated code, and compiles every kernel to machine code, as a run would.

Generated kernels for sm_90, those that are written by hand for other devices, too.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch._inductor.codecache import PyCodeCache
from torch.utils._pytree import tree_iter

from benchmarks.generated.graphs import Graph
from grok.arithmetic.gpu import block_kernels

ATOMIC = ("tl.atomic_", "aten.index_put", "aten.scatter", "aten.index_add")
"""Operations that add in no fixed order."""
DOTS = {"forward_kernel": (2, 1, 0), "rows_kernel": (3, 1, 0), "weights_kernel": (4, 0, 0), "input_kernel": (0, 0, 1)}
DOTS |= {"head_forward_kernel": (1, 0, 0), "head_rows_kernel": (2, 0, 0), "head_weights_kernel": (2, 0, 0)}
"""Products of R D F, of R D D and of (Q + 2 X) D D terms for each lane in a kernel that is written by hand."""


def kernel_bytes(source: str) -> float:
    """Return the bytes that a kernel reads and writes, as recorded in its source by Inductor."""
    match = re.search(r"'kernel_num_gb': ([\d.e+-]+)", source)
    return float(match[1]) * 1e9 if match else 0.0


def counted(graph: Graph) -> dict[str, Any]:
    """Return the counts of one call of ``graph``, over all lanes."""
    products = [node for node in calls(graph) if node.target is torch.ops.aten.bmm.default]
    rows = [node for node in calls(graph) if re.match(r"grok\.(?!block|head)", str(node.target))]
    launches, by_hand = graph.launches(), launches_of(graph)
    terms = [(*DOTS.get(kernel.__name__, (0, 0, 0)), 2 * len(t[0]) * s.D, s) for kernel, t, s in by_hand]
    flops = [each * (s.R * (f * s.F + d * s.D) + x * s.D * (s.Q + 2 * s.X)) for f, d, x, each, s in terms]
    size = [distinct_bytes(t) for _, tensors, _ in by_hand for t in tensors if t is not None]
    return {
        **({"by hand": {"kernels": len(by_hand), "flops": sum(flops), "bytes": sum(size)}} if by_hand else {}),
        "kernels": sum(launches.values()),
        "distinct kernels": len(launches),
        "kinds": graph.kinds(),
        "products": len(products),
        "row operations": len(rows),
        "other calls": sorted(others(graph)),
        "flops": sum(flops_of(node) for node in products),
        "product bytes": sum(map(moved, products)),
        "kernel bytes": round(sum(kernel_bytes(graph.kernels[name]) * n for name, n in launches.items())),
        "row bytes": sum(map(moved, rows)),
        "atomics": sum(
            re.sub(r"#.*", "", text).count(word)  # the compiler's comments name the original operations
            for text in (graph.code, *graph.kernels.values())
            for word in ATOMIC
        ),
    }


def launches_of(graph: Graph) -> list[Any]:
    """Return (kernel, what it reads and writes, sizes) of the launches of kernels that are written by hand."""
    with patch.object(block_kernels, "launch") as launch:
        for node in calls(graph):
            if str(node.target).startswith(("grok.block", "grok.head")):
                values = [x.meta["val"] if isinstance(x, torch.fx.Node) else x for x in node.args]
                getattr(block_kernels, str(node.target).split(".")[1])(*values)
    return [call.args for call in launch.call_args_list]


def others(graph: Graph) -> set[str]:
    """Return library calls in the generated code that are neither Triton kernels, products nor row operations."""
    targets = set(re.findall(r"((?:torch\.ops|extern_kernels|aten)\.[\w.]+)\(", graph.code))
    return {name for name in targets if name != "extern_kernels.bmm" and not name.startswith("torch.ops.grok.")}


def calls(graph: Graph) -> Iterable[torch.fx.Node]:
    return (node for node in graph.nodes if node.op == "call_function")


def moved(node: torch.fx.Node) -> int:
    """Return the bytes of a call's operands and results, each once."""
    values = [argument.meta["val"] for argument in node.all_input_nodes]
    return sum(distinct_bytes(t) for t in tree_iter([values, node.meta["val"]]) if isinstance(t, Tensor))


def distinct_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's distinct elements; expanded dimensions count once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride) * tensor.element_size()


def flops_of(product: torch.fx.Node) -> int:
    x, y = (argument.meta["val"] for argument in product.all_input_nodes)
    lanes, rows, inner = x.shape
    return int(2 * lanes * rows * inner * y.shape[2])


def machine_code(kernels: Mapping[str, str], by_hand: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers of kernels and cubins, and the kernels that fail, spill registers, or have several configs.

    ``by_hand``: the result of ``launches_of``; for these, what they use, too.
    """
    import torch._inductor.runtime.triton_heuristics as heuristics

    vars(heuristics)["DeviceGuard"] = Elsewhere
    result: dict[str, Any] = {"kernels": len(kernels), "cubins": 0, "failed": [], "spilled": [], "several": []}
    for name, source in kernels.items():
        kernel = getattr(PyCodeCache.load(source), name)
        if len(kernel.configs) != 1:
            result["several"].append(name)
        for config in kernel.configs:
            try:
                compiled = kernel._precompile_config(config).kernel
            except Exception as error:
                result["failed"].append(f"{name}: {type(error).__name__}: {error}"[:300])
                continue
            result["cubins"] += 1
            local = resources(cubin_of(compiled))[1]
            if local:
                result["spilled"].append(f"{name} {config}: {local} bytes a thread")
    for capability, (kernel, tensors, sizes) in product((80, 100, 90), by_hand):
        triton.runtime.driver.active.capability = capability
        kernel.device_caches.clear()  # it has the code for the capability before
        types = [None if tensor is None else tensor.dtype for tensor in tensors]
        made = kernel.warmup(*types, S=sizes, grid=(1,), num_warps=sizes.warps, num_stages=block_kernels.STAGES)
        registers, local = resources(made.asm["cubin"])
        name = f"{kernel.__name__} of {sizes.R} rows for sm_{capability}"
        result["spilled"] += [f"{name}: {local} bytes a thread"] if local else []
        products = [word for word in ("wgmma", "tcgen05.mma", "mma.sync", "cvt.rna.tf32") if word in made.asm["ptx"]]
        used = f"{name}: {registers} registers, {made.metadata.shared} bytes of shared memory, {' '.join(products)}"
        result["by hand"] = [*result.get("by hand", []), used]
    return result


def cubin_of(compiled: Any) -> bytes:
    """Return the machine code of Triton's kernel, or of the one that torch launches without Triton."""
    if hasattr(compiled, "asm"):
        return bytes(compiled.asm["cubin"])
    return Path(compiled.cubin_path).read_bytes()


def resources(cubin: bytes) -> tuple[int, int]:
    """Return a thread's registers, and its bytes of local memory, which spilled registers use."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    usage = re.search(r"REG:(\d+).*?STACK:(\d+).*?LOCAL:(\d+)", done.stdout.replace("\n", " "))
    assert usage is not None, done.stdout
    return int(usage[1]), int(usage[2]) + int(usage[3])


class Elsewhere:
    """A device guard that does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
