"""What one lane-step of this project is made of, by torch's profiler, in a process of its own."""

from __future__ import annotations

import multiprocessing
import re
from collections import defaultdict
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.contenders import OurLanes, default_config

PRODUCTS = ("aten::mm", "aten::addmm", "grok::onednn_product", "mkldnn::_linear_pointwise")
KINDS = (
    ("log_softmax", "cross-entropy and accuracy"),
    ("native_layer_norm", "LayerNorm, with the residual sums beside it"),
    ("erf|gelu|abs", "GELU"),
    ("maximum|exp|squeeze|unsqueeze|softmax", "attention's scores and mixtures"),
)
"""What a fused kernel's name tells of it: the first that matches."""


def profiled(steps: int, regime: dict[str, Any]) -> list[dict[str, Any]]:
    """Return, largest first, what takes how many seconds of a step: ``what``, ``calls``, ``seconds``."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, steps, regime), daemon=True)
    process.start()
    rows: list[dict[str, Any]] = here.recv()
    process.join()
    return rows


def _serve(pipe: Connection, steps: int, regime: dict[str, Any]) -> None:
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True  # a name for each fused kernel
    pipe.send(rows_of_a_step(steps, regime))


def rows_of_a_step(steps: int, regime: dict[str, Any]) -> list[dict[str, Any]]:
    """Profile ``steps`` steps of one lane in this process."""
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
    """Return to which line of the table an event belongs."""
    if name in PRODUCTS:
        operands = [shape for shape in shapes if len(shape) == 2][:2]
        return "product " + " x ".join(str(tuple(shape)) for shape in operands)
    if "cpp_fused" in name:
        return next((what for pattern, what in KINDS if re.search(pattern, name)), "other fused kernels")
    if "adamw" in name or "foreach" in name:
        return "optimiser"
    if re.search("sum_rows|take_rows|embedding_dense|index|fill|zero", name):
        return "gathers and sums of shared rows"
    return "Python, dispatch and what the profiler adds"
