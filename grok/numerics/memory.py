"""The memory that a computation takes on a CPU, by torch's own allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def peak_on_cpu(function: Callable[[], Any]) -> int:
    """Call ``function`` and return the most bytes of tensors on the CPU that it had at once, beside those of before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
