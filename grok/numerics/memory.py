"""Measures the memory of a computation on a CPU, from the events of torch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_on_cpu(function: Callable[[], Any]) -> int:
    """Call ``function``; return the peak of the bytes of its CPU tensors, without those allocated before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
