"""The user's own code in a lane: models, programs, losses, optimisers, and the faults of each.

n or B examples, T tokens of an example, V classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok import user
from grok.arithmetic.lanes import Noise
from grok.arithmetic.model import Transformer
from grok.arithmetic.optimizer import Optimizer, learning_rate, stable_logits
from grok.arithmetic.program import EVALUATION_ROWS, Program, cpu_tag, dtype_of
from grok.arithmetic.run import Lane
from grok.arithmetic.task import FIRST_NUMBER, Equations, Integers, Vocabulary, examples_of, shapes_of, split_table
from grok.arithmetic.weights import Parameters, initial_parameters
from grok.config.arithmetic import ArithmeticConfig, TaskConfig
from grok.errors import ConfigError
from grok.plugins import Examples, Moment, Spec, arguments_of, label, load
from grok.records import Event, StopRequested
from grok.streams import Stream
from grok.untrusted import MOST_ENTRIES, name_problem


def tokens_of(examples: Equations | Examples, task: TaskConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return (inputs [n, T], right classes [n]) of a set; float inputs are converted to ``dtype``."""
    if isinstance(examples, Examples):
        inputs = torch.from_numpy(examples.inputs)
        return (inputs.to(dtype) if inputs.is_floating_point() else inputs), torch.from_numpy(examples.answers)
    columns = {"a": torch.from_numpy(examples.a) + FIRST_NUMBER, "b": torch.from_numpy(examples.b) + FIRST_NUMBER}
    n = len(examples)
    layout = Vocabulary.of(task).layout
    row = [columns[word] if isinstance(word, str) else torch.full((n,), word) for word in layout]
    return torch.stack(row, 1), torch.from_numpy(examples.answer) + FIRST_NUMBER


def is_plain(config: ArithmeticConfig) -> bool:
    """Return whether a run takes the plain path: one lane at a time, every row computed, uncompiled."""
    return bool(config.model.plugin) or examples_of(config.task) is not None


def initial_of_module(config: ArithmeticConfig, dtype: torch.dtype) -> Parameters:
    """Return a plain module's initial weights; ``model.init_scale`` multiplies every tensor with two axes or more."""
    if not config.model.plugin:
        return initial_parameters(config, dtype)
    drawn = user.drawn_weights(config.model.plugin, asdict(shapes_of(config.task)), config)
    scaled = {
        name: tensor.to(dtype) * config.model.init_scale if tensor.ndim > 1 else tensor.to(dtype).clone()
        for name, tensor in drawn.items()
    }
    return user.perturbed(scaled, config.perturb.ulps, config.stream_seeds().perturb)


# The program of a plain module.


def program_for(config: ArithmeticConfig) -> Program:
    """Return the program of a run."""
    return ModuleProgram(config) if is_plain(config) else Program(config)


@dataclass(frozen=True, slots=True)
class ModuleBatch:
    """Examples of a step for a plain module."""

    inputs: Tensor
    answer: Tensor
    share: Tensor
    """[B]: each example's share of the loss."""
    seed: int
    """Seed of torch's generator for the module's own draws in this step."""


class ModuleProgram(Program):
    """Loss, gradients and evaluation of one lane whose model is any torch module."""

    def __init__(self, config: ArithmeticConfig) -> None:
        if config.model.plugin and config.model.dropout:
            raise ConfigError(
                f"model.dropout={config.model.dropout} does not apply to {label(config.model.plugin)}: give your model "
                "an argument instead"
            )
        if set(config.eval.metrics) - {"gradient"}:
            raise ConfigError(
                f"eval.metrics={config.eval.metrics}: for a plain module expected gradient, or your own metrics in "
                "eval.metric_plugins"
            )
        self.config = config
        self.dtype = dtype_of(config)
        self.module = self._made().to(self.dtype)
        self.names = [name for name, _ in self.module.named_parameters()]
        self._buffers = [(name, b, b._version) for name, b in self.module.named_buffers()]

    def _made(self) -> nn.Module:
        """Return the module, with weights that each run replaces."""
        spec, shapes = self.config.model.plugin, shapes_of(self.config.task)
        if spec:
            module = user.make_module(spec, 0, asdict(shapes))
            user.refuse_unseeded(spec, module, asdict(shapes))
            return module
        if not shapes.vocab_size:
            raise ConfigError(
                f"{self.config.task.operation} has float inputs, which the transformer does not accept: name a model, "
                "model.plugin._target_=MODULE.NAME"
            )
        with user.drawing(0):
            return Transformer(self.config.model, vocab_size=shapes.tokens, length=shapes.length)

    def tag(self) -> str:
        """Return the numerics tag."""
        return cpu_tag(self.config, rows="module", products="plain", compiled=False)

    def gradients(
        self, parameters: Parameters, batch: ModuleBatch, noise: Noise
    ) -> tuple[float, float, dict[str, Tensor]]:
        """Return (loss, accuracy, gradient by name) of one mini-batch.

        Raises:
            ConfigError: the module changes a buffer, as a batch norm does.
        """
        self.module.train()
        with user.drawing(batch.seed):
            logits = self._forward(parameters, batch.inputs)
        if moved := [name for name, b, version in self._buffers if b._version != version]:
            raise ConfigError(f"the module changes its buffer {moved[0]!r} while it trains, which lanes would share")
        loss = (self._losses(logits, batch.answer) * batch.share).sum()
        hits = (logits.detach().argmax(-1) == batch.answer).to(batch.share.dtype) * batch.share
        slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(p) if g is None else g
            for (name, p), g in zip(parameters.items(), slopes, strict=True)
        }
        return loss.item(), hits.sum().item(), gradients

    def _forward(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the logits [B, V]; of logits [B, T, V] those at the last position."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.config.precision == "bf16"):
            logits: Tensor = torch.func.functional_call(self.module, parameters, (inputs,))
        if logits.ndim == 3:
            logits = logits[:, -1]
        if logits.ndim != 2 or len(logits) != len(inputs):
            raise ConfigError(
                f"the module returned the shape {tuple(logits.shape)} for inputs {tuple(inputs.shape)}: expected "
                "logits [B, V] or [B, T, V], read at the last position"
            )
        return logits

    def _losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        if self.config.train.loss_plugin:
            return user.losses_of(self.config.train.loss_plugin, logits, answer)
        if self.config.train.loss == "stablemax":
            logits = stable_logits(logits)
        return F.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, answer, reduction="none")

    @torch.no_grad()
    def logits(self, parameters: Parameters, examples: Any) -> Tensor:
        """Return the logits [n, V] of a set, in evaluation mode (without dropout)."""
        self.module.eval()
        inputs, _ = tokens_of(examples, self.config.task, self.dtype)
        return torch.cat([self._forward(parameters, part) for part in inputs.split(EVALUATION_ROWS)])

    @torch.no_grad()
    def evaluate(self, parameters: Parameters, examples: Any, visit: Integers | None = None) -> tuple[float, float]:
        """Return (mean loss in nats, accuracy) over a set, summed in float64 in its order."""
        logits = self.logits(parameters, examples)
        _, answer = tokens_of(examples, self.config.task, self.dtype)
        losses, hits = self._losses(logits, answer), logits.argmax(-1) == answer
        return losses.double().mean().item(), hits.double().mean().item()


# Adapters: the user's own optimiser and intervention behind the engine's interface.


class LaneOptimizer(user.OwnOptimizer):
    """The user's own optimiser of one lane."""

    def update(self, gradients: Parameters, step: int) -> None:
        """Apply update ``step`` (counted from 1) in place."""
        self.set_rate(learning_rate(self.config, step))
        for name, p in self.parameters.items():
            p.grad = gradients[name]
        self.optimizer.step()


class WithIntervention:
    """An optimiser, with an intervention around each update."""

    def __init__(self, optimizer: Any, intervention: user.Intervention, parameters: Parameters) -> None:
        self.optimizer, self.intervention, self.parameters = optimizer, intervention, parameters

    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        """Apply update ``step`` (counted from 1) in place."""
        self.optimizer.update(self.intervention.gradients(step, self.parameters, gradients), step)
        self.intervention.weights(step, self.parameters)

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the state of both."""
        return {**self.optimizer.tensors(), **self.intervention.tensors()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state of both."""
        self.optimizer.restore(tensors)
        self.intervention.restore(tensors)


# Lanes of runs with the user's own code: an optimiser, an intervention, metrics, a plain module.


class OwnLane(Lane):
    """A lane with the user's own optimiser, intervention or metrics."""

    def make_optimizer(self) -> Optimizer:
        config = self.run.config.optim
        with self.training_draws(0, "update"):
            optimizer = super().make_optimizer()
            if config.plugin:
                optimizer = LaneOptimizer(config.plugin, config, self.parameters)
            if config.intervention:
                intervention = user.Intervention(config.intervention, self.parameters)
                return WithIntervention(optimizer, intervention, self.parameters)
        return optimizer

    def training_draws(self, step: int, place: str) -> AbstractContextManager[None]:
        """Let own code that trains draw from the dropout stream: the bits depend on no neighbour and no resume."""
        return user.drawing(Stream("dropout", self.run.streams.dropout).at(step, place).seed64())

    def evaluation_draws(self, place: str) -> AbstractContextManager[None]:
        """Let own code that measures the present step draw from the eval stream."""
        return user.drawing(Stream("eval", self.run.streams.eval).at(self.run.step, place).seed64())

    def advance(self, stop: StopRequested) -> Iterator[Event]:
        with user.own_code_of(self.run, *user.STEP, ahead=1):
            yield from super().advance(stop)

    def gradients(self, step: int) -> tuple[float, float, dict[str, Tensor]]:
        with self.training_draws(step, "gradients"):
            return super().gradients(step)

    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        optim = self.run.config.optim
        if optim.plugin or optim.intervention:  # they may change them in place; measurements read the step's own
            gradients = {name: g.clone() for name, g in gradients.items()}
        with user.own_code_of(self.run, *user.UPDATE, ahead=1), self.training_draws(step, "update"):
            super().update(gradients, step)

    def evaluate(self) -> tuple[float, float]:
        # no name of a metric has a space
        with user.own_code_of(self.run, *user.STEP), self.evaluation_draws("own code"):
            return super().evaluate()

    def metrics(self, gradients: dict[str, Tensor]) -> dict[str, float]:
        with self.evaluation_draws("own code"):
            metrics = super().metrics(gradients)
        if not self.run.config.eval.metric_plugins:
            return metrics
        for name, spec in self.run.config.eval.metric_plugins.items():
            named = user.own_code_of(self.run, f"eval.metric_plugins.{name}")
            with torch.no_grad(), self.evaluation_draws(name), named:
                metrics |= numbers_of(name, spec, load(spec)(self.moment(gradients), **arguments_of(spec)))
        if len(metrics) > MOST_ENTRIES:
            raise ConfigError(f"an evaluation measured {len(metrics):,} metrics: expected at most {MOST_ENTRIES:,}")
        return metrics

    def logits_of(self, weights: Parameters, examples: Any) -> Tensor:
        with user.drawing(Stream("eval", self.run.streams.eval).at("final losses").seed64()):
            return super().logits_of(weights, examples)

    def moment(self, gradients: dict[str, Tensor]) -> Moment:
        """Return what a metric reads: copies, for each metric its own, so that none can change training or another."""
        return Moment(
            step=self.run.step,
            parameters={name: p.detach().clone() for name, p in self.parameters.items()},
            gradients={name: g.clone() for name, g in gradients.items()},
            train_set=copy.deepcopy(self.train_set),
            val_set=copy.deepcopy(self.val_set),
            logits=self.logits,
            classes=lambda examples: tokens_of(examples, self.run.config.task, self.program.dtype)[1],
        )


def numbers_of(name: str, spec: Spec, measured: Any) -> dict[str, float]:
    """Return a metric's numbers by name: ``name``, or ``name_KEY`` for each key of a map; not finite becomes NaN.

    Raises:
        ConfigError: ``measured`` is neither a number nor a map of numbers, or a name in it cannot be stored.
    """
    several = measured if isinstance(measured, Mapping) else {"": measured}
    numbers = {}
    named = f"eval.metric_plugins.{name}={label(spec)}"
    for key, value in several.items():
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError for several elements
            shape = f" of the shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
            under = f" under the key {key!r}" if isinstance(measured, Mapping) else ""
            raise ConfigError(
                f"{named} returned a {type(value).__name__}{shape}{under}: expected a "
                "number, or a map of numbers by name"
            ) from error
        full = f"{name}_{key}" if isinstance(measured, Mapping) else name
        if (problem := name_problem(full)) is not None or full in numbers:
            reason = "twice" if problem is None else f"under a name {problem}"
            raise ConfigError(f"{named} returned a number {reason} ({full[:80]!r}): change the keys of its map")
        numbers[full] = number if math.isfinite(number) else math.nan
    return numbers


class ModuleLane(OwnLane):
    """A lane whose model is a plain torch module, or whose task is no table of two operands."""

    def sets(self) -> tuple[Any, Any]:
        task = self.run.config.task
        table = examples_of(task)
        return super().sets() if table is None else split_table(task, self.run.streams.split, table, table.classes)

    def columns(self) -> list[Tensor]:
        return list(tokens_of(self.train_set, self.run.config.task, self.program.dtype))

    def initial_parameters(self) -> Parameters:
        return initial_of_module(self.run.config, self.program.dtype)

    def batch_of(self, columns: list[Tensor], share: Tensor, step: int) -> ModuleBatch:
        inputs, answer = columns
        return ModuleBatch(inputs, answer, share, Stream("dropout", self.run.streams.dropout).at(step).seed64())
