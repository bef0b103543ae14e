"""The parts of one lane-step of this project, from torch's profiler in a separate process."""

from __future__ import annotations

import multiprocessing
import re
from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.contenders import OurLanes
from benchmarks.settings import default_config

TRANSPOSED = "mkldnn::_linear_pointwise"
"""oneDNN's product, whose second operand is (n, k). ``grok::onednn_product`` around it is no second product."""
PRODUCTS = ("aten::mm", "aten::addmm", TRANSPOSED)
KINDS = (
    ("log_softmax", "cross-entropy and accuracy"),
    ("native_layer_norm", "LayerNorm and residual sums"),
    ("erf|gelu|abs", "GELU"),
    ("maximum|exp|squeeze|unsqueeze|softmax", "attention's scores and mixtures"),
)
"""Patterns of fused kernels' names and their descriptions; the first match counts."""


def profiled(steps: int, regime: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a step, largest first: ``what``, ``calls`` and ``seconds`` per step."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_profiled, (steps, regime))


def _profiled(steps: int, regime: dict[str, Any]) -> list[dict[str, Any]]:
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True  # a name for each fused kernel
    return rows_of_a_step(steps, regime)


def rows_of_a_step(steps: int, regime: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a step of one lane, profiled over ``steps`` steps in this process."""
    torch.set_num_threads(1)
    lanes = OurLanes(default_config(**regime), 0)
    for _ in range(5):
        lanes.step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(steps):
            lanes.step()
    times: dict[str, list[float]] = defaultdict(list)
    for event in recorded.events():
        times[described(event.name, event.input_shapes)].append(event.self_cpu_time_total / 1e6)
    rows = [
        {"what": what, "calls": len(seconds) / steps, "seconds": sum(seconds) / steps}
        for what, seconds in times.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def described(name: str, shapes: list[list[int]]) -> str:
    """Return the line of the table that an event belongs to."""
    if name in PRODUCTS:
        first, second = [tuple(shape) for shape in shapes if len(shape) == 2][:2]
        return f"product {first} x {second[::-1] if name == TRANSPOSED else second}"
    if "cpp_fused" in name:
        return next((what for pattern, what in KINDS if re.search(pattern, name)), "other fused kernels")
    if "adamw" in name or "foreach" in name:
        return "optimiser"
    if re.search("sum_rows|take_rows|embedding_dense|index|fill|zero", name):
        return "gathers and sums of shared rows"
    return "Python, dispatch and the profiler itself"
