"""The host side of stacked lanes: chooses their number, gives runs a lane, schedules steps. No I/O.

Between two synchronisations the host only queues steps and the orders of epochs. It waits
for the device only when an evaluation, a decision, a checkpoint or an end is due.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from grok.arithmetic.gpu.optimizer import variant
from grok.arithmetic.gpu.state import LaneState
from grok.arithmetic.gpu.step import Captured, EvaluationPass, TrainingStep
from grok.arithmetic.measures import measured
from grok.arithmetic.optimizer import move_weights
from grok.arithmetic.program import dtype_of, logits_of, program_key
from grok.arithmetic.rows import step_flops, words_of
from grok.arithmetic.run import ArithmeticRun, at_own_numerics
from grok.arithmetic.task import Equations, split
from grok.arithmetic.weights import Parameters, initial_parameters, norms
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError, TrainingError, in_words
from grok.numerics import allow_uncompiled, is_compile_error, product_precision
from grok.records import Checkpoint, Event, Job, Progress, RunResult, StopRequested, numerics_tag
from grok.runs import norms_of

# The number of stacked lanes, from a table by device model, the size of the model and the device's memory.
#
# A lane's bits may depend on the width, so the width depends only on settings and the device's
# model, never on free memory or on the number of runs.

WIDTHS: Final = {"NVIDIA B200": 296, "NVIDIA H200": 264, "NVIDIA H100": 264, "NVIDIA GH200": 264, "NVIDIA A100": 216}
"""Lanes by device model for a model of the default size: two for each multiprocessor, so that a batched product keeps
all of them equally busy. The numbers are computed."""
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


# The host side of stacked lanes: gives runs a lane, schedules steps, evaluates, and removes ended runs. No I/O.

EXPECTED_WARNINGS = (
    "TensorFloat32 tensor cores",  # float32 leaves them unused on purpose
    "Attempting to run cuBLAS, but there was no current CUDA context",  # autograd's thread, the first time
    "Online softmax is disabled on the fly",
)
"""Warnings of torch during the setup of a step that need no action."""
LOOK_EVERY = 50
"""Largest number of steps between two checks of losses and of the stop request."""


def train_stacked(
    jobs: Sequence[Job], *, lanes: int | None, stop: StopRequested, device: str = "cuda", graphs: bool = True
) -> Iterator[Event]:
    """Train ``jobs`` in stacks of lanes with one program each; yields the events of ``engine.train``.

    Args:
        jobs: runs with arithmetic configs, in the order in which they get a lane.
        lanes: width of a stack; default: from the table of widths.
        stop: see ``engine.train``.
        device: a torch device.
        graphs: False, or ``numerics.graphs=false``, launches every kernel instead of replaying captured graphs: equal
            numbers, slower.

    Raises:
        TrainingError: the lanes could not be set up on the device.
    """
    by_program: dict[str, list[Job]] = {}
    for job in jobs:
        assert isinstance(job.config, ArithmeticConfig) and not job.config.only_on_cpu()  # the plan has refused it
        by_program.setdefault(f"{program_key(job.config)} {variant(job.config.optim)}", []).append(job)
    for group in by_program.values():
        yield from Stack(group, lanes=lanes, device=torch.device(device), graphs=graphs).train(stop)
        gc.collect()  # a step is in a reference cycle: its buffers must be freed before the next program's are made
        if stop():
            return


class Seat:
    """A run with its data and initial weights, made on the host while the device computes."""

    def __init__(self, job: Job) -> None:
        self.run = ArithmeticRun(job)
        config = self.run.config
        self.train_set, self.val_set = split(config.task, self.run.streams.split)
        self.initial: Parameters | None = None
        clamp = config.optim.norm_clamp
        if job.resume is None or "init" in config.save or clamp is not None:
            self.initial = initial_parameters(config, dtype_of(config))
        self.norm = 0.0 if clamp is None or self.initial is None else clamp * norms(self.initial)[1]

    def start(self) -> tuple[Parameters, dict[str, Parameters]]:
        """Return the parameters at the run's start, and the optimiser's moments (empty for a new run)."""
        resume = self.run.job.resume
        if resume is None:
            assert self.initial is not None
            return self.initial, {}
        groups: dict[str, Parameters] = {}
        for key, tensor in resume.tensors.items():
            group, _, name = key.partition(".")
            groups.setdefault(group, {})[name] = tensor
        return groups.pop("parameters"), groups


class Stack:
    """One program's lanes, and the jobs that wait for a lane."""

    def __init__(self, jobs: Sequence[Job], *, lanes: int | None, device: torch.device, graphs: bool = True) -> None:
        config = jobs[0].config
        assert isinstance(config, ArithmeticConfig)
        self.config, self.device = config, device
        self.width = lane_width(config, device, requested=lanes)
        if lanes is None and device.type == "cuda" and (idle := idle_lanes(len(jobs), self.width)):
            warnings.warn(idle, stacklevel=2)
        self.waiting = deque(jobs)
        configs = [job.config for job in jobs if isinstance(job.config, ArithmeticConfig)]
        self.measured = any("gradient" in config.eval.metrics for config in configs)
        self.ready: deque[Seat] = deque()
        """Seats made in advance, at most one for each lane."""
        self.seats: list[Seat | None] = [None] * self.width
        self.graphs = graphs and config.numerics.graphs
        self.compiled = config.numerics.compile
        words = (
            f"{self.width} stacked lanes could not be set up on {device}: lanes=N takes fewer, numerics.graphs=false "
            "captures no CUDA graph, device=cpu trains on the processor"
        )
        with in_words(TrainingError, words):  # other groups would fail as well: this ends the sweep without a retry
            self.state = LaneState(config, self.width, device)
            self._set_up()
        self._order: list[tuple[int, int] | None] = [None] * self.width
        """For each lane (order seed, epoch) of the order that is on the device."""

    def _set_up(self) -> None:
        """Compile and capture. No lane is alive yet, so the warm-up changes no result."""
        with product_precision(self.config.precision), warnings.catch_warnings():
            for message in EXPECTED_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            try:
                self._build()
                return
            except Exception as error:
                if not (self.compiled and is_compile_error(error)):
                    raise
                allow_uncompiled(error, auto_fallback=self.config.numerics.auto_fallback)
            # Outside the handler, because the error's traceback holds the failed step's activations, and its
            # autograd graph on a stream for which a capture must not wait.
            gc.collect()
            self.compiled = False
            self._build()

    def _build(self) -> None:
        self.evaluation = EvaluationPass(self.state, compile=self.compiled)
        step = TrainingStep(self.state, compile=self.compiled, measured=self.measured)
        self._step = Captured(step, self.device, graph=self.graphs)
        self._pass = Captured(self.evaluation, self.device, graph=self.graphs)
        self._step.prepare()
        self._pass.prepare()

    def tag(self) -> str:
        """Return the numerics tag; it has the width, because the bits of a batched product may depend on it."""
        cuda = self.device.type == "cuda"
        parts: dict[str, object] = {
            "device": self.device.type,
            "model": torch.cuda.get_device_name(self.device) if cuda else "stacked",
            "rows": "plain" if self.config.model.dropout > 0 else "shared",
            "products": "batched",
            "compiled": "whole" if self.compiled else "no",
            **({"kernels": "fused"} if self.config.numerics.kernels == "fused" else {}),
            "precision": self.config.precision,
            "width": self.width,
            "torch": torch.__version__,
        }
        return numerics_tag(parts)

    def train(self, stop: StopRequested) -> Iterator[Event]:
        """Train all jobs and yield their events."""
        news: Iterator[Event] = iter(())
        while True:
            for lane in range(self.width):
                while self.seats[lane] is None and (self.ready or self.waiting):
                    yield from self._seat(lane, self.ready.popleft() if self.ready else self._next())
            yield from self._start()
            if self._seated():
                began = time.monotonic()
                self._queue()
                yield from news  # of the last synchronisation; computed while the device works
                self._make_ready()
                news = self._look(began)
            if stop() or not (self._seated() or self.ready or self.waiting):
                yield from news
                yield from self._checkpoints(self._seated())
                return

    def _next(self) -> Seat:
        """Return a seat for the next waiting run."""
        return Seat(at_own_numerics(self.waiting.popleft(), self.tag()))

    def _seated(self) -> list[tuple[int, Seat]]:
        return [(lane, seat) for lane, seat in enumerate(self.seats) if seat is not None]

    def _seat(self, lane: int, seat: Seat) -> Iterator[Event]:
        """Write a run's weights, moments and data into the lane."""
        run = seat.run
        run.refuse_other_numerics(self.tag(), run.step)
        parameters, moments = seat.start()
        self.state.seat(lane, parameters, moments, run.step)
        if "init" not in run.config.save:
            seat.initial = None
        if run.ended():  # resumed at its last step: it was killed before its row was written
            self.state.rest(lane)
            yield from self._results([(lane, seat)])
            return
        self.state.instruct(lane, run.config.optim, dropout_seed=run.streams.dropout, norm=seat.norm)
        self.state.show(lane, seat.train_set, seat.val_set)
        self._order[lane] = None
        self.seats[lane] = seat

    def _start(self) -> Iterator[Progress]:
        """Evaluate the initial weights of lanes whose schedule has step 0."""
        due = {lane: seat for lane, seat in self._seated() if seat.run.start_due()}
        if due:
            evaluated, squares = self._evaluate(list(due)), self.state.squared_norms()
            for lane, seat in due.items():
                norms = norms_of({n: x[lane] for n, x in squares.items()})
                yield seat.run.observe((math.nan, math.nan), evaluated[lane], norms, self._metrics(lane, seat))

    def _shuffle(self, further: int = 0) -> None:
        """Queue the data order of every lane that begins an epoch, or another order, in ``further`` steps."""
        begun = []
        for lane, seat in self._seated():
            place = seat.run.order.place(seat.run.step + further + 1)
            if place != self._order[lane]:
                self._order[lane] = place
                begun.append((lane, seat.run.order.stream(*place)))
        self.state.shuffle(begun)

    def _queue(self) -> None:
        """Queue steps up to the next one at which anything is due in any lane."""
        steps = min(LOOK_EVERY, *[seat.run.next_due() - seat.run.step for _, seat in self._seated()])
        for lane, seat in self._seated():
            if seat.run.move_due():
                held = self.state.lanes([lane], ("parameters",))[0]
                weights = {name.partition(".")[2]: tensor for name, tensor in held.items()}
                move_weights(weights, seat.run.config)
                self.state.put(lane, weights)
        with product_precision(self.config.precision):
            for further in range(steps):
                self._shuffle(further)
                self._step()

    def _make_ready(self) -> None:
        """Make seats for waiting runs while the device computes."""
        if self.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        while self.waiting and len(self.ready) < self.width and not done.query():
            self.ready.append(self._next())

    def _look(self, began: float) -> Iterator[Event]:
        """Wait for the steps queued since ``began``; evaluate, decide, and free the lanes of ended runs.

        Returns the events, with copies of everything that the freed lanes held.
        """
        losses, accuracies, at, alive = self.state.fetch()
        seated = self._seated()
        share = (time.monotonic() - began) / len(seated)
        for _, seat in seated:
            seat.run.spend(share)
        due = [lane for lane, seat in seated if seat.run.reach(at[lane], finite=alive[lane])]
        evaluated = self._evaluate(due) if due else {}
        squares = self.state.squared_norms() if due else {}
        observed, kept, ended = [], [], []
        for lane, seat in seated:
            verdict = seat.run.judge(evaluated.get(lane))
            if verdict.observed:
                norms = norms_of({n: x[lane] for n, x in squares.items()})
                metrics = self._metrics(lane, seat)
                observed.append((seat.run, (losses[lane], accuracies[lane]), evaluated[lane], norms, metrics))
            if verdict.kept:
                kept.append((lane, seat))
            if verdict.ended:
                ended.append((lane, seat))
        points = starmap(ArithmeticRun.observe, observed)
        news: Iterator[Event] = chain(points, self._checkpoints(kept), self._results(ended))
        for lane, _ in ended:
            self.seats[lane] = None
            self.state.rest(lane)
        return news

    def _evaluate(self, lanes: Sequence[int]) -> dict[int, tuple[float, float]]:
        """Return (mean loss, accuracy) of each of ``lanes`` on its own validation set."""
        together, parts = self.evaluation.lanes, []
        with product_precision(self.config.precision):
            for start in range(0, len(lanes), together):
                self.evaluation.choose(lanes[start : start + together])
                for _ in range(self.evaluation.passes):
                    self._pass()
                parts.append(torch.stack([self.evaluation.losses, self.evaluation.hits]))
        losses, hits = (torch.cat(parts, 1) / self.evaluation.examples).tolist()
        return {lane: (losses[i], hits[i]) for i, lane in enumerate(lanes)}

    def _metrics(self, lane: int, seat: Seat) -> dict[str, float]:
        """Return the measurements of ``eval.metrics`` by name."""
        run, model = seat.run, self.evaluation.model
        wanted = run.config.eval.metrics
        weights = {name: p.detach()[lane : lane + 1] for name, p in self.state.parameters.items()} if wanted else {}

        def logits(equations: Equations) -> torch.Tensor:
            columns = torch.stack(words_of(equations))[:, None].to(self.device)
            return logits_of(model, weights, columns)[0]

        one = {name: p[0] for name, p in weights.items()}
        with product_precision(self.config.precision):
            metrics = measured(run.config, one, seat.train_set, logits)
        if "gradient" in wanted and run.step:
            metrics["gradient_norm"] = self.state.gradient_norm[lane].item()
        return metrics

    def _checkpoints(self, seated: Sequence[tuple[int, Seat]]) -> Iterator[Checkpoint]:
        """Fetch the states of all runs in one copy; return their checkpoints one by one."""
        held = self.state.lanes([lane for lane, _ in seated], ("parameters", *self.state.moments))
        return (seat.run.checkpoint(tensors, self.tag()) for (_, seat), tensors in zip(seated, held, strict=True))

    def _results(self, ended: Sequence[tuple[int, Seat]]) -> Iterator[RunResult]:
        """Fetch the weights of all ended runs in one copy; return their results one by one."""
        held = self.state.lanes([lane for lane, _ in ended], ("parameters",))
        return (self._result(seat, tensors) for (_, seat), tensors in zip(ended, held, strict=True))

    def _result(self, seat: Seat, tensors: Parameters) -> RunResult:
        final = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
        result = seat.run.result(seat.initial, final, device=self.device.type, numerics=self.tag())
        result.lane_width = self.width
        return result
