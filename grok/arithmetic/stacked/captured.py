"""A function over buffers with fixed addresses: captured as a graph and replayed on CUDA, called elsewhere.

The function keeps the rules of a capture on every device: no synchronisation with the
host, no copy from or to the host, no shape or branch that depends on data. Warm-up and
capture use one stream, so that library handles and compiled kernels exist before the
capture begins.

Source: PyTorch's notes on CUDA graphs; NVIDIA's "CUDA Graph best practice for PyTorch".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import torch

WARM_UPS: Final = 3
"""Calls before a capture: the first ones compile and choose kernels, and allocate memory."""


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return this process's only stream for captures: every stream has its own library workspaces."""
    return torch.cuda.Stream(device)


class Captured:
    """``function`` (no arguments, no result) on a device.

    ``prepare`` calls it ``WARM_UPS`` times on every device, so it must change no result when
    no lane is alive. A graph has its own memory; results that must outlive a call belong in the
    buffers.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, *, graph: bool = True) -> None:
        self.function, self.device = function, device
        self.uses_graph = graph and device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Warm up and, on CUDA, capture."""
        if not self.uses_graph:
            for _ in range(WARM_UPS):
                self.function()
            return
        stream = capture_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.function()
        self._graph = graph

    def __call__(self) -> None:
        if self._graph is None:
            assert not self.uses_graph, "prepare() comes before the first call"
            self.function()
        else:
            self._graph.replay()
