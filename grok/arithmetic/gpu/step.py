"""One training step of all lanes, and one pass of their evaluation, on the buffers of ``state``.

Nothing here synchronises with the host, and shapes and addresses are the same in each call,
so that a CUDA graph can be captured once and replayed. The device computes batch order,
learning rate and bias correction from each lane's own step counter.

L lanes, E lanes evaluated together, B batch, C examples of an evaluation's pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
import torch._dynamo
from torch import Tensor

from grok.arithmetic.gpu.lanes import StackedLanes, StackedModel
from grok.arithmetic.gpu.optimizer import adamw, amplified, clamp_norm, coefficients_of, orthogonal
from grok.arithmetic.gpu.state import LaneState, dropout, squares_of
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.program import evaluation_passes
from grok.arithmetic.rows import Batch, RowPlan
from grok.config.arithmetic import ArithmeticConfig
from grok.numerics import Function, OneGraph, Options, with_whole_cache


def reduced(config: ArithmeticConfig, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which products are in bfloat16 for ``precision=bf16``.

    Its cache of cast weights is off, because it would keep tensors that are in a graph's memory.
    """
    if config.precision != "bf16" or device.type == "meta":  # tensors without data count as float32
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


MANY: Final = 2**20

OPTIONS: Final[Options] = {"deterministic": True, "triton.autotune_pointwise": False, "pattern_matcher": False}
"""Options of the compiler. Block sizes come from rules, not from timings, which could give other bits in another
process. The pattern matcher is off as on a CPU (decision 4)."""


def by_rule(build: Callable[[Options], Callable[..., Any]], device: torch.device) -> Callable[..., Any]:
    """Return the function that ``build`` compiles with the options for ``device``: equal kernels in every process.

    The limit on recompilations is off: the compiler counts them by place in the source code, and would stop compiling
    at the ninth program of a sweep.
    """
    if device.type != "cuda":
        return without_limit(build(OPTIONS))
    from torch._inductor.virtualized import V

    from grok.arithmetic.gpu.kernels import FixedKernels

    # the option is for the compiler's cache; after its first compilation a process uses only the handler
    function = without_limit(build({**OPTIONS, "inductor_choices_class": FixedKernels}))

    def call(*args: Any) -> Any:
        with V.set_choices_handler(FixedKernels()):
            return function(*args)

    return call


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return ``function`` compiled for one shape."""
    return by_rule(lambda o: torch.compile(function, dynamic=False, fullgraph=True, options=o), device)


def without_limit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function without the limit on recompilations."""

    def call(*args: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=MANY, accumulated_recompile_limit=MANY):
            return with_whole_cache(lambda: function(*args))

    return call


@torch.no_grad()
def model_of(state: LaneState, *, noisy: bool, fused: bool = False) -> LaneModel:
    """Return the lanes' model, with its table of positions already on the device.

    ``noisy``: noise differs between examples, so no row is shared (the plain path).
    """
    plan = RowPlan.of(state.config.task, shared=not noisy)
    kind, own = state.config.model, state.config.numerics.kernels == "fused"
    products = state.config.precision if state.config.precision in ("tf32", "tf32x3") else "ieee"
    model = StackedModel(kind, plan, products if own else None) if fused else LaneModel(kind, plan, StackedLanes())
    model.position(state.parameters, 0)
    return model


class TrainingStep:
    """Makes one update of every lane that is alive."""

    def __init__(self, state: LaneState, *, compile: bool, measured: bool = False) -> None:
        self.state, self.measured = state, measured
        fused = compile or state.config.numerics.kernels == "fused"
        self.model = model_of(state, noisy=state.config.model.dropout > 0, fused=fused)
        self._gradients: Function = self.gradients
        self._update: Callable[..., None] = adamw
        if compile:
            self._gradients = by_rule(lambda o: OneGraph(self.gradients, o), state.device)
            self._update = compiled(adamw, state.device)

    def batch(self) -> Batch:
        """Return the next mini-batch of every lane: columns and shares [L, B]."""
        state, size = self.state, self.state.config.train.batch_size
        examples = state.order.shape[1]
        first = (state.step % -(-examples // size) * size)[:, None]  # [L, 1]
        place = first + torch.arange(size, device=state.device)
        counted = place < examples
        index = state.order.gather(1, torch.where(counted, place, first))
        a, b, answer = state.train_set.gather(2, index.expand(3, -1, -1))
        share = counted.to(state.dtype)
        return Batch(a, b, answer, share / share.sum(-1, keepdim=True))

    def gradients(self, *tensors: Tensor) -> list[Tensor]:
        """Return [loss [L], accuracy [L], a gradient for each parameter]; the values that the model kept follow.

        ``tensors``: parameters, a batch's columns and shares [L, B], the dropout's keys, each lane's step.
        """
        state, count = self.state, len(self.state.names)
        leaves = [p.detach().requires_grad_() for p in tensors[:count]]
        batch, (keys, step) = Batch(*tensors[count:-2]), tensors[-2:]
        with torch.enable_grad(), reduced(state.config, state.device):
            noise = dropout(state.config.model, keys, step)
            parameters = dict(zip(state.names, leaves, strict=True))
            losses, hits = self.model.scores(parameters, batch, state.config.train.loss, noise)
            loss = (losses * batch.share).sum(-1)
        # infinities of an idle or diverged lane stay in that lane: no product combines lanes
        gradients = torch.autograd.grad(loss.sum(), leaves)
        accuracy = (hits.to(batch.share.dtype) * batch.share).sum(-1)
        return [loss.detach(), accuracy, *gradients, *self.model.take_kept()]

    def inputs(self) -> list[Tensor]:
        """Return the arguments of ``gradients`` for every lane's next mini-batch."""
        state, batch = self.state, self.batch()
        parameters = [state.parameters[n].detach() for n in state.names]
        return [*parameters, batch.a, batch.b, batch.answer, batch.share, state.noise_keys, state.step]

    def __call__(self) -> None:
        state = self.state
        tensors = [state.parameters[n] for n in state.names]
        loss, accuracy, *rest = self._gradients(*self.inputs())
        gradients: Sequence[Tensor] = rest[: len(tensors)]
        with torch.no_grad():
            if self.measured:  # beside the compiled functions, so that it changes no bit of theirs
                state.gradient_norm.copy_(squares_of(gradients).sum(0).sqrt())
            first, second, *slow = ([named[n] for n in state.names] for named in state.moments.values())
            optim = state.config.optim
            if slow:
                alpha, lamb = state.scalar("grokfast_alpha"), state.scalar("grokfast_lamb")
                gradients = amplified(gradients, slow[0], step=state.step, alive=state.alive, alpha=alpha, lamb=lamb)
            if optim.orthogonal_gradient:
                gradients = orthogonal(tensors, gradients)
            self._update(tensors, gradients, first, second, coefficients_of(state), state.alive)
            if optim.norm_clamp is not None:
                clamp_norm(tensors, target=state.scalar("norm"), alive=state.alive)
            state.loss.copy_(torch.where(state.alive, loss, state.loss))
            state.accuracy.copy_(torch.where(state.alive, accuracy, state.accuracy))
            state.step.add_(state.alive)
            # A lane whose loss is not finite becomes idle: its last step does not depend on its neighbours.
            state.alive.logical_and_(loss.isfinite())


class EvaluationPass:
    """Evaluates E chosen lanes on the next C examples of their validation sets."""

    def __init__(self, state: LaneState, *, compile: bool) -> None:
        self.state = state
        self.examples = state.val_set.shape[2]
        self.passes = evaluation_passes(self.examples)
        self.size = -(-self.examples // self.passes)
        self.lanes = max(1, min(state.width, state.width * state.config.train.batch_size // self.size))
        """E: a pass then has about as many rows as a training step."""
        self.model = model_of(state, noisy=False)
        device = state.device
        self.chosen = torch.zeros(self.lanes, dtype=torch.int64, device=device)
        self.start = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses, self.hits = (torch.zeros(self.lanes, dtype=torch.float64, device=device) for _ in range(2))
        self._score = compiled(self.score, device) if compile else self.score

    def choose(self, lanes: Sequence[int]) -> None:
        """Begin the evaluation of up to E lanes; if there are fewer, the first one fills the other places."""
        filled = [*lanes, *[lanes[0]] * (self.lanes - len(lanes))]
        self.chosen.copy_(torch.tensor(filled))
        for buffer in (self.start, self.losses, self.hits):
            buffer.zero_()

    def score(self, parameters: Sequence[Tensor], columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return each example's loss, and whether its answer is right; [E, C]."""
        a, b, answer = columns
        named, batch = dict(zip(self.state.names, parameters, strict=True)), Batch(a, b, answer, torch.empty_like(a))
        return self.model.scores(named, batch, self.state.config.train.loss)

    @torch.no_grad()
    def __call__(self) -> None:
        state = self.state
        place = self.start + torch.arange(self.size, device=state.device)  # [C]
        counted = place < self.examples
        columns = state.val_set.index_select(2, torch.where(counted, place, 0)).index_select(1, self.chosen)
        parameters = [state.parameters[n].index_select(0, self.chosen) for n in state.names]
        with reduced(state.config, state.device):
            losses, hits = self._score(parameters, columns)
        self.losses.add_(torch.where(counted, losses.double(), 0.0).sum(-1))
        self.hits.add_((hits & counted).double().sum(-1))
        self.start.add_(self.size)


# A function over buffers with fixed addresses: captured as a graph and replayed on CUDA, called elsewhere.
#
# The function keeps the rules of a capture on every device: no synchronisation with the
# host, no copy from or to the host, no shape or branch that depends on data. Warm-up and
# capture use one stream, so that library handles and compiled kernels exist before the
# capture begins.
#
# Source: PyTorch's notes on CUDA graphs; NVIDIA's "CUDA Graph best practice for PyTorch".

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
