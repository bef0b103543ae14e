"""Programs: the training step and the evaluation of one lane, shared by all runs of one shape.

A run's program depends only on its settings and the processor's model. The program's
description is the run's numerics tag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grok import numerics
from grok.arithmetic.lanes import FusedModel, LaneModel, Noise, OneLane, no_noise
from grok.arithmetic.rows import Batch, RowPlan, words_of
from grok.arithmetic.task import Integers
from grok.arithmetic.weights import Parameters, parameter_shapes
from grok.config.arithmetic import ArithmeticConfig
from grok.config.fields import canonical_json, walk
from grok.records import numerics_tag
from grok.streams import Stream
from grok.user import losses_of

EVALUATION_ROWS = 4096
"""Largest number of validation examples in one forward pass: more do not fit into the processor's
cache, fewer compute the shared prefixes more often."""

Step = Callable[..., list[Tensor]]


def dtype_of(config: ArithmeticConfig) -> torch.dtype:
    """Return the type of parameters and optimiser state."""
    return torch.float64 if config.precision == "float64" else torch.float32


def program_key(config: ArithmeticConfig) -> str:
    """Return a text that is equal for two runs exactly if they can use one program."""
    deciding = ("model.", "task.", "numerics.", "train.loss", "train.batch_size", "precision")
    return canonical_json({name: value for name, value, _ in walk(config) if name.startswith(deciding)})


def cpu_tag(config: ArithmeticConfig, *, rows: str, products: str, compiled: bool) -> str:
    """Return the numerics tag of a program on this CPU."""
    return numerics_tag(
        {
            "device": "cpu",
            "model": numerics.processor_model(),
            "isa": torch.backends.cpu.get_cpu_capability(),
            "rows": rows,
            "products": products,
            "compiled": "whole" if compiled else "no",
            **({"compiler": numerics.compiler()} if compiled else {}),
            "precision": config.precision,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
    )


@torch.no_grad()
def logits_of(model: LaneModel, parameters: Parameters, columns: Tensor) -> Tensor:
    """Return the logits [..., n, V] of the equations in ``columns`` [3, ..., n]."""
    batches = (Batch(a, b, answer, torch.empty(0)) for a, b, answer in columns.split(EVALUATION_ROWS, -1))
    return torch.cat([model.logits(parameters, batch) for batch in batches], -2)


class Program:
    """Loss, gradients and evaluation as functions of the parameters, for all lanes of one shape on the CPU.

    The loss may be the user's own.
    """

    def __init__(self, config: ArithmeticConfig) -> None:
        self.config = config
        self.dtype = dtype_of(config)
        self.names = list(parameter_shapes(config))
        self.path = numerics.choose_path(config.numerics.path, config.precision)
        noisy = config.model.dropout > 0
        self.plan = RowPlan.of(config.task, shared=not noisy)
        # dropout masks are drawn on the host in each step, which a graph cannot contain
        self.compiled = config.numerics.compile and not noisy
        self.model: LaneModel
        self._step: Step
        self._score: Step
        self._stepped = False
        """Whether a compiled step was taken: then no run may fall back to uncompiled steps, which have other bits."""
        if self.compiled:
            self.model = FusedModel(config.model, self.plan, self.path)
            self._step, self._score = numerics.OneGraph(self._whole_step), numerics.OneGraph(self._losses_and_hits)
        else:
            self._go_uncompiled()

    def _go_uncompiled(self) -> None:
        self.compiled = False
        self.model = LaneModel(self.config.model, self.plan, OneLane(self.path))
        self._step, self._score = self._loss_and_gradients, self._losses_and_hits

    def tag(self) -> str:
        """Return the numerics tag: everything outside the run's identity that decides the bits."""
        rows = "plain" if self.config.model.dropout > 0 else "shared"
        return cpu_tag(self.config, rows=rows, products=numerics.product_tag(self.path), compiled=self.compiled)

    def _loss_and_gradients(self, *tensors: Tensor, noise: Noise = no_noise) -> list[Tensor]:
        """Return [loss, accuracy, a gradient per parameter]; ``tensors`` are the parameters and a batch's fields."""
        parameters, batch = self._unpacked(tensors)
        with self._autocast():
            logits = self.model.logits(parameters, batch, noise)
            loss = (self._losses(logits, batch.answer) * batch.share).sum()
        hits = (logits.detach().argmax(-1) == batch.answer).to(batch.share.dtype) * batch.share
        return [loss.detach(), hits.sum(), *torch.autograd.grad(loss, list(parameters.values()))]

    def _whole_step(self, *tensors: Tensor) -> list[Tensor]:
        """As :meth:`_loss_and_gradients`, for detached parameters; the values that the model kept follow at the end."""
        count = len(self.names)
        leaves = [p.detach().requires_grad_() for p in tensors[:count]]
        return [*self._loss_and_gradients(*leaves, *tensors[count:]), *self.model.take_kept()]

    def _unpacked(self, tensors: tuple[Tensor, ...]) -> tuple[Parameters, Batch]:
        count = len(self.names)
        return dict(zip(self.names, tensors[:count], strict=True)), Batch(*tensors[count:])

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.config.precision == "bf16")

    def gradients(self, parameters: Parameters, batch: Any, noise: Noise) -> tuple[float, float, dict[str, Tensor]]:
        """Return (loss, accuracy, gradient by name) of one mini-batch.

        Raises:
            TrainingError: it cannot be compiled on this machine, see :func:`grok.numerics.allow_uncompiled`.
        """
        inputs = (batch.a, batch.b, batch.answer, batch.share)
        if self.compiled:
            try:
                results = self._step(*[p.detach() for p in parameters.values()], *inputs)
                self._stepped = True
            except Exception as error:
                self._fall_back(error)
        if not self.compiled:
            results = self._step(*parameters.values(), *inputs, noise=noise)
        loss, accuracy, *rest = results
        return loss.item(), accuracy.item(), dict(zip(self.names, rest, strict=False))  # then follow the kept values

    def _fall_back(self, error: Exception) -> None:
        if not numerics.is_compile_error(error):
            raise error
        numerics.allow_uncompiled(error, auto_fallback=self.config.numerics.auto_fallback and not self._stepped)
        self._go_uncompiled()

    def _losses_and_hits(self, *tensors: Tensor) -> list[Tensor]:
        """Return [each example's loss, whether its answer is right]; ``tensors`` as in :meth:`_loss_and_gradients`."""
        parameters, batch = self._unpacked(tensors)
        with torch.no_grad(), self._autocast():
            logits = self.model.logits(parameters, batch)
            return [self._losses(logits, batch.answer), logits.argmax(-1) == batch.answer]

    def _losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        if self.config.train.loss_plugin:
            return losses_of(self.config.train.loss_plugin, logits, answer)
        return self.model.losses(logits, answer, self.config.train.loss)

    def scores(self, parameters: Parameters, batch: Batch) -> list[Tensor]:
        """Return [each example's loss, whether its answer is right], without gradients."""
        inputs = (*[p.detach() for p in parameters.values()], batch.a, batch.b, batch.answer, batch.share)
        try:
            return self._score(*inputs)
        except Exception as error:
            self._fall_back(error)
            return self._score(*inputs)

    def logits(self, parameters: Parameters, examples: Any) -> Tensor:
        """Return the logits [n, V] of a set, uncompiled."""
        return logits_of(self.model, parameters, torch.stack(words_of(examples)))

    @torch.no_grad()
    def evaluate(self, parameters: Parameters, examples: Any, visit: Integers | None = None) -> tuple[float, float]:
        """Return (mean loss in nats, accuracy) over a set, summed in float64 in table order.

        ``visit`` is an order of the passes. An example is always in the same pass at the same
        place, so the order changes no bit.
        """
        n = len(examples)
        passes = evaluation_passes(n)
        size = -(-n // passes)  # all passes have one shape; the last is padded with the first example
        rows = torch.cat([torch.arange(n), torch.zeros(passes * size - n, dtype=torch.int64)])
        a, b, answer = (column[rows] for column in words_of(examples))
        losses, hits = torch.empty(passes * size, dtype=torch.float64), torch.empty(passes * size, dtype=torch.bool)
        share = torch.empty(0)
        for i in range(passes) if visit is None else visit.tolist():
            part = slice(i * size, (i + 1) * size)
            loss, hit = self.scores(parameters, Batch(a[part], b[part], answer[part], share))
            losses[part], hits[part] = loss.double(), hit
        return losses[:n].mean().item(), hits[:n].double().mean().item()


def evaluation_passes(n: int) -> int:
    """Return the number of forward passes that evaluate ``n`` examples."""
    return -(-n // EVALUATION_ROWS)


def dropout_noise(config: ArithmeticConfig, seed: int, step: int) -> Noise:
    """Return the dropout of one step: masks are drawn at (dropout seed, step, place); inverted scaling."""
    rate = config.model.dropout
    if rate == 0:
        return no_noise
    stream = Stream("dropout", seed).at(step)

    def noise(place: str, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(stream.at(place).seed64())
        keep = torch.rand(x.shape, generator=generator, dtype=torch.float32) >= rate
        return x * keep.to(x.dtype) / (1 - rate)

    return noise
