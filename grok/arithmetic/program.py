"""The training step and the evaluation of one lane: a program that all runs of one shape share.

Which program a run gets follows from its settings and the processor's model alone
(DESIGN decision 2), and the program's description is the run's numerics tag.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from grok.arithmetic.backends import OneLane
from grok.arithmetic.initial import Parameters, parameter_shapes
from grok.arithmetic.interventions import stable_logits
from grok.arithmetic.lanes import LaneModel, Noise, no_noise
from grok.arithmetic.operations import Integers
from grok.arithmetic.products import choose_path, processor_model
from grok.arithmetic.rows import Batch, RowPlan
from grok.arithmetic.table import Equations
from grok.arithmetic.vocabulary import FIRST_NUMBER
from grok.config.arithmetic import ArithmeticConfig
from grok.config.fields import canonical_json, walk
from grok.errors import ConfigError, TrainingError
from grok.streams import Stream

EVALUATION_ROWS = 4096
"""Most validation examples in one forward pass: more would leave the processor's cache, fewer
would compute the shared prefixes more often."""

Step = Callable[..., tuple[Tensor, Tensor]]


def dtype_of(config: ArithmeticConfig) -> torch.dtype:
    """Return the type of parameters and optimiser state."""
    return torch.float64 if config.precision == "float64" else torch.float32


def program_key(config: ArithmeticConfig) -> str:
    """Return a text that two runs share exactly when one program serves both."""
    parts = {n: v for n, v, _ in walk(config) if n.startswith(("model.", "task.", "numerics."))}
    parts["loss"] = config.train.loss
    parts |= {"batch_size": config.train.batch_size, "precision": config.precision}
    return canonical_json(parts)


class OneLaneProgram:
    """Loss, gradients and evaluation of one lane on the CPU."""

    def __init__(self, config: ArithmeticConfig) -> None:
        if config.precision == "tf32":
            raise ConfigError("precision=tf32 is a mode of CUDA devices: on a CPU expected float32, float64 or bf16")
        self.config = config
        self.dtype = dtype_of(config)
        self.names = list(parameter_shapes(config))
        self.path = choose_path(config.numerics.path, config.precision)
        noisy = config.model.dropout > 0
        self.plan = RowPlan.of(config.task, shared=not noisy)
        self.model = LaneModel(config.model, self.plan, OneLane(self.path))
        # noise is drawn outside of any graph, step by step
        self.compiled = config.numerics.compile and not noisy
        self._step: Step = _compiled(self._loss_and_accuracy) if self.compiled else self._loss_and_accuracy
        self._score: Step = _compiled(self._losses_and_hits) if self.compiled else self._losses_and_hits

    def tag(self) -> str:
        """Return the numerics tag: all that decides the bits besides the run's identity."""
        parts = {
            "device": "cpu",
            "model": processor_model(),
            "isa": torch.backends.cpu.get_cpu_capability(),
            "rows": "plain" if self.config.model.dropout > 0 else "shared",
            "products": self.path,
            "compiled": "yes" if self.compiled else "no",
            "precision": self.config.precision,
            "threads": str(torch.get_num_threads()),
            "torch": torch.__version__,
        }
        return ";".join(f"{key}={value}" for key, value in parts.items())

    def _loss_and_accuracy(
        self, parameters: list[Tensor], batch: tuple[Tensor, ...], noise: Noise
    ) -> tuple[Tensor, Tensor]:
        examples = Batch(*batch)
        logits = self.model.logits(dict(zip(self.names, parameters, strict=True)), examples, noise)
        loss = (self._losses(logits, examples.answer) * examples.share).sum()
        hits = (logits.detach().argmax(-1) == examples.answer).to(examples.share.dtype) * examples.share
        return loss, hits.sum()

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.config.precision == "bf16")

    def gradients(self, parameters: Parameters, batch: Batch, noise: Noise) -> tuple[float, float, dict[str, Tensor]]:
        """Return (loss, accuracy, gradient by name) of one mini-batch.

        Raises:
            TrainingError: the step cannot be compiled here and ``numerics.auto_fallback`` is off.
        """
        tensors = list(parameters.values())
        inputs = (batch.a, batch.b, batch.answer, batch.share)
        with self._autocast():
            try:
                loss, accuracy = self._step(tensors, inputs, noise)
            except Exception as error:
                if not self.compiled or not _is_compile_error(error):
                    raise
                self._fall_back(error)
                loss, accuracy = self._step(tensors, inputs, noise)
        gradients = torch.autograd.grad(loss, tensors)
        return loss.item(), accuracy.item(), dict(zip(self.names, gradients, strict=True))

    def _fall_back(self, error: Exception) -> None:
        reason = " ".join(str(error).split())[:300]
        if not self.config.numerics.auto_fallback:
            raise TrainingError(
                f"the training step could not be compiled ({reason}): set numerics.compile=false, which is another "
                "numerics tag, or numerics.auto_fallback=true to do so by itself"
            ) from error
        warnings.warn(f"compiling failed, going on uncompiled: {reason}", stacklevel=2)
        self.compiled, self._step, self._score = False, self._loss_and_accuracy, self._losses_and_hits

    def _losses_and_hits(self, parameters: list[Tensor], batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        examples = Batch(*batch)
        logits = self.model.logits(dict(zip(self.names, parameters, strict=True)), examples)
        return self._losses(logits, examples.answer), logits.argmax(-1) == examples.answer

    def _losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        if self.config.train.loss == "stablemax":
            logits = stable_logits(logits)
        return self.model.ops.losses(logits, answer)

    @torch.no_grad()
    def logits(self, parameters: Parameters, equations: Equations) -> Tensor:
        """Return the logits [n, V] of ``equations``, uncompiled."""
        a, b, answer = (torch.from_numpy(x) + FIRST_NUMBER for x in (equations.a, equations.b, equations.answer))
        share, pieces = torch.empty(0), []
        for start in range(0, len(equations), EVALUATION_ROWS):
            rows = slice(start, start + EVALUATION_ROWS)
            pieces.append(self.model.logits(parameters, Batch(a[rows], b[rows], answer[rows], share)))
        return torch.cat(pieces)

    @torch.no_grad()
    def evaluate(
        self, parameters: Parameters, equations: Equations, visit: Integers | None = None
    ) -> tuple[float, float]:
        """Return (mean loss, accuracy) over ``equations``, summed in float64 in table order.

        ``visit`` is an order of the passes. An example has its place in its pass whatever
        the order, so the order cannot move a bit.
        """
        n = len(equations)
        passes = evaluation_passes(n)
        size = -(-n // passes)  # all passes have one shape; the last is filled up with the first example
        rows = torch.cat([torch.arange(n), torch.zeros(passes * size - n, dtype=torch.int64)])
        a, b, answer = (torch.from_numpy(x)[rows] + FIRST_NUMBER for x in (equations.a, equations.b, equations.answer))
        losses, hits = torch.empty(passes * size, dtype=torch.float64), torch.empty(passes * size, dtype=torch.bool)
        tensors, share = list(parameters.values()), torch.empty(0)
        with self._autocast():
            for i in range(passes) if visit is None else visit.tolist():
                part = slice(i * size, (i + 1) * size)
                inputs = (a[part], b[part], answer[part], share)
                try:
                    loss, hit = self._score(tensors, inputs)
                except Exception as error:
                    if not self.compiled or not _is_compile_error(error):
                        raise
                    self._fall_back(error)
                    loss, hit = self._score(tensors, inputs)
                losses[part], hits[part] = loss.double(), hit
        return losses[:n].mean().item(), hits[:n].double().mean().item()


def evaluation_passes(n: int) -> int:
    """Return in how many forward passes ``n`` examples are evaluated."""
    return -(-n // EVALUATION_ROWS)


def _compiled(function: Step) -> Step:
    """Return ``function`` compiled for one shape, its bias additions fused with what follows.

    Inductor's pattern matcher would turn a product and its bias into one library call
    that first copies the bias over the whole output.
    """
    return torch.compile(function, dynamic=False, fullgraph=True, options={"pattern_matcher": False})


def _is_compile_error(error: Exception) -> bool:
    """Return whether torch.compile failed, rather than the computation itself."""
    module = type(error).__module__
    return module.startswith(("torch._dynamo", "torch._inductor"))


def dropout_noise(config: ArithmeticConfig, seed: int, step: int) -> Noise:
    """Return the dropout of one step: masks drawn at (dropout seed, step, place), inverted scaling."""
    rate = config.model.dropout
    if rate == 0:
        return no_noise
    stream = Stream("dropout", seed).at(step)

    def noise(place: str, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(stream.at(place).seed64())
        keep = torch.rand(x.shape, generator=generator, dtype=torch.float32) >= rate
        return x * keep.to(x.dtype) / (1 - rate)

    return noise
