"""Compiles every generated kernel to machine code for sm_90, as a run on the device would, and reads its resources."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch._inductor.codecache import PyCodeCache


def machine_code(kernels: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of kernels and cubins, and the kernels that fail, spill registers, or have several configs."""
    import torch._inductor.runtime.triton_heuristics as heuristics
    import triton

    vars(heuristics)["DeviceGuard"] = Elsewhere
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
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
            local = local_bytes(tool, cubin_of(compiled))
            if local:
                result["spilled"].append(f"{name} {config}: {local} bytes a thread")
    return result


def cubin_of(compiled: Any) -> bytes:
    """Return the machine code of Triton's kernel, or of the one that torch launches without Triton."""
    if hasattr(compiled, "asm"):
        return bytes(compiled.asm["cubin"])
    return Path(compiled.cubin_path).read_bytes()


def local_bytes(tool: Path, cubin: bytes) -> int:
    """Return the bytes of local memory per thread, which spilled registers use."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    usage = re.search(r"REG:\d+.*?STACK:(\d+).*?LOCAL:(\d+)", done.stdout.replace("\n", " "))
    assert usage is not None, done.stdout
    return int(usage[1]) + int(usage[2])


class Elsewhere:
    """A device guard that does nothing."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
