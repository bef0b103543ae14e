"""The number of stacked lanes, from a table by device model, the size of the model and the device's memory.

A lane's bits may depend on the width, so the width depends only on settings and the device's
model, never on free memory or on the number of runs.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from grok.arithmetic.rows import RowPlan, matrix_flops
from grok.arithmetic.vocabulary import Vocabulary
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError

WIDTHS: Final = {"NVIDIA B200": 296, "NVIDIA H200": 264, "NVIDIA H100": 264, "NVIDIA GH200": 264, "NVIDIA A100": 216}
"""Lanes by device model for a model of the default size: two for each multiprocessor, so that a batched product keeps
all of them equally busy. The numbers are computed; ``grok bench device`` measures other widths."""
DEFAULT_WIDTH: Final = 64
WIDEST: Final = 1056
ON_CPU: Final = 8
USABLE: Final = 0.85
"""Share of a device's memory that lanes may use; driver, libraries and gaps of the allocator need the rest."""
STEP: Final = 8
"""Widths from the table are multiples of this."""


def lane_width(config: ArithmeticConfig, device: torch.device, requested: int | None = None) -> int:
    """Return the fixed number of lanes for a config on a device; ``requested`` (``lanes``) overrides the table.

    Raises:
        ConfigError: the lanes do not fit into the device's memory.
    """
    if device.type != "cuda":
        return requested or ON_CPU
    properties = torch.cuda.get_device_properties(device)
    return width_on(config, properties.name, properties.total_memory, requested)


def width_on(config: ArithmeticConfig, device_model: str, memory: int, requested: int | None = None) -> int:
    """As :func:`lane_width`, for a device of that model with ``memory`` bytes. Smaller models get more lanes.

    Raises:
        ConfigError: the lanes do not fit into ``memory``.
    """
    fitting = lanes_in(config, memory)
    if fitting < (requested or 1):
        most = f"expected at most {fitting}" if fitting else "set device=cpu"
        raise ConfigError(
            f"lanes={requested or 1}: {device_model} has {memory / 2**30:.0f} GiB, in which {fitting} lanes of this "
            f"model fit: {most}"
        )
    if requested is not None:
        return requested
    base = next((width for model, width in WIDTHS.items() if device_model.startswith(model)), DEFAULT_WIDTH)
    wanted = STEP * round(base * step_flops(ArithmeticConfig()) / step_flops(config) / STEP)
    width = max(STEP, min(WIDEST, wanted))
    return width if width <= fitting else max(fitting // STEP * STEP, min(fitting, STEP))


def idle_lanes(runs: int, width: int) -> str | None:
    """Return a warning if ``runs`` fill at most half of a stack of the table's width, else None.

    The width itself does not change: if it depended on the number of runs, a resumed sweep would have other bits.
    """
    if 2 * runs > width:
        return None
    narrow = STEP * math.ceil(runs / STEP)
    return (
        f"{runs} run{'s' if runs > 1 else ''} leave {width - runs} of {width} lanes idle: lanes={narrow} takes less "
        "time (other widths may give other bits: do not change the width of a sweep that has begun)"
    )


def step_flops(config: ArithmeticConfig) -> int:
    """Return the floating-point operations of the matrix products of one lane's step."""
    d_ff = config.model.d_ff
    assert d_ff is not None
    return matrix_flops(
        RowPlan.of(config.task, shared=config.model.dropout == 0),
        batch_size=config.train.batch_size,
        layers=config.model.layers,
        d_model=config.model.d_model,
        d_ff=d_ff,
        vocab_size=Vocabulary.of(config.task).size,
    )


def lanes_in(config: ArithmeticConfig, memory: int) -> int:
    """Return the number of lanes that fit into ``memory`` bytes of a device, at most ``WIDEST``."""
    usable = USABLE * memory
    fitting, needed = WIDEST, memory_of(config, WIDEST).total
    while fitting and needed > usable:  # memory is nearly proportional to lanes: one or two iterations
        fitting = min(fitting - 1, int(fitting * usable / needed))
        needed = memory_of(config, fitting).total if fitting else 0
    return fitting


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device: the permanent state, and the peak of a step and of an evaluation pass beside it."""

    state: int
    step: int
    evaluation: int

    @property
    def total(self) -> int:
        """Return the sum: a captured step keeps its memory while the evaluation pass warms up."""
        return self.state + self.step + self.evaluation


def memory_of(config: ArithmeticConfig, width: int) -> Memory:
    """Return the memory of ``width`` lanes, uncompiled; runs the step on tensors without data."""
    from grok.arithmetic.stacked.state import LaneState
    from grok.arithmetic.stacked.step import EvaluationPass, TrainingStep

    device = torch.device("meta")
    state = LaneState(config, width, device)
    held = sum(t.untyped_storage().nbytes() for _, t in state.tensors())
    peaks = []
    for function in (TrainingStep(state, compile=False), EvaluationPass(state, compile=False)):
        with PeakMemory() as memory:
            function()
        peaks.append(memory.peak)
    return Memory(held, peaks[0], peaks[1])


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of the live tensors that operations in this context make; ``peak`` is the maximum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **kwargs)
        for tensor in tree_iter(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in before and storage not in self._known:
                self._known.add(storage)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._freed, storage.nbytes())
        return result

    def _freed(self, size: int) -> None:
        self.live -= size
