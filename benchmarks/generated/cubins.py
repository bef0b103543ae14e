"""Compiles every kernel to machine code, as a run on the device would, and reads its resources.

Generated kernels for sm_90, those that are written by hand for other devices, too.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import triton
from torch._inductor.codecache import PyCodeCache

from grok.arithmetic.gpu import block_kernels


def machine_code(kernels: Mapping[str, str], by_hand: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers of kernels and cubins, and the kernels that fail, spill registers, or have several configs.

    ``by_hand``: the result of ``count.launches_of``; for these, what they use, too.
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
