"""Gives Inductor and Triton the properties of an H200. Only for processes that generate code, never for a run."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any, Final

CAPABILITY: Final = 90
"""Compute capability of Hopper (H100 and H200): sm_90."""
PROPERTIES: Final = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=150_754_820_096,
    gcnArchName="",
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=62_914_560,
)


def always(value: Any) -> Callable[..., Any]:
    """Return a function of any arguments that returns ``value``."""
    return lambda *_, **__: value


class Driver:
    """The part of Triton's driver that compilation uses."""

    capability = CAPABILITY
    is_active = staticmethod(always(True))
    get_current_device = get_current_stream = staticmethod(always(0))
    utils = types.SimpleNamespace(
        get_device_properties=always(
            {
                "max_shared_mem": 232448,
                "multiprocessor_count": 132,
                "sm_clock_rate": 1_980_000,
                "mem_clock_rate": 3_201_000,
                "mem_bus_width": 6144,
            }
        )
    )

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)


def pretend(*, interpreter: bool = False) -> None:
    """Let this process generate code for an H200; with ``interpreter``, Triton's kernels run on the processor.

    Call it once, before torch is imported.
    """
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if interpreter:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import torch._inductor.runtime.triton_helpers as helpers
    import torch._inductor.utils as inductor
    import torch.utils._triton
    import triton
    from torch._dynamo import device_interface
    from torch._inductor import scheduler

    torch.set_num_threads(1)
    cuda: Any = device_interface.CudaInterface
    device_interface.caching_worker_device_properties["cuda"] = [PROPERTIES]
    device_interface.caching_worker_current_devices["cuda"] = 0
    cuda.get_device_properties = staticmethod(always(PROPERTIES))
    cuda.is_available = staticmethod(always(True))
    cuda.device_count = staticmethod(always(1))
    cuda.current_device = staticmethod(always(0))
    cuda.get_compute_capability = staticmethod(always(CAPABILITY))
    for name, value in (
        ("get_device_properties", PROPERTIES),
        ("get_device_capability", (9, 0)),
        ("current_device", 0),
        ("get_device_name", PROPERTIES.name),
    ):
        setattr(torch.cuda, name, always(value))
    for module in (inductor, scheduler):  # these rates decide which operations are fused
        vars(module)["get_gpu_dram_gbps"] = always(4800)
        vars(module)["get_device_tflops"] = always(67.0)
    vars(torch.utils._triton)["has_triton"] = always(True)
    vars(helpers)["set_driver_to_gpu"] = always(None)
    triton.runtime.driver.set_active(Driver())
