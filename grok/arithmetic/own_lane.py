"""Lanes of runs with the user's own code: an optimiser, an intervention, metrics, a plain module."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from grok.arithmetic.initial import Parameters
from grok.arithmetic.lane import Lane
from grok.arithmetic.optimizer import Optimizer
from grok.arithmetic.own_faults import STEP, UPDATE, own_code_of
from grok.arithmetic.own_model import drawing, initial_of_module, tokens_of
from grok.arithmetic.own_optimizer import Intervention, OwnOptimizer, WithIntervention
from grok.arithmetic.own_program import ModuleBatch, ModuleProgram
from grok.arithmetic.program import Program
from grok.arithmetic.rows import shares
from grok.arithmetic.run import ArithmeticRun
from grok.arithmetic.table import examples_of, split_examples
from grok.arithmetic.vocabulary import FIRST_NUMBER
from grok.errors import ConfigError
from grok.plugins import Examples, Moment, Spec, arguments_of, label, load
from grok.records import Event, StopRequested
from grok.streams import Stream
from grok.untrusted import MOST_ENTRIES, name_problem


def own_lane(run: ArithmeticRun, program: Program) -> Lane:
    """Return the lane of a run with the user's own code."""
    return ModuleLane(run, program) if isinstance(program, ModuleProgram) else OwnLane(run, program)


class OwnLane(Lane):
    """A lane with the user's own optimiser, intervention or metrics."""

    def make_optimizer(self) -> Optimizer:
        config = self.run.config.optim
        with self.training_draws(0, "update"):
            optimizer: Optimizer = OwnOptimizer(self.parameters, config) if config.plugin else super().make_optimizer()
            if config.intervention:
                intervention = Intervention(config.intervention, self.parameters)
                return WithIntervention(optimizer, intervention, self.parameters)
        return optimizer

    def training_draws(self, step: int, place: str) -> AbstractContextManager[None]:
        """Let own code that trains draw from the dropout stream: the bits depend on no neighbour and no resume."""
        return drawing(Stream("dropout", self.run.streams.dropout).at(step, place).seed64())

    def evaluation_draws(self, place: str) -> AbstractContextManager[None]:
        """Let own code that measures the present step draw from the eval stream."""
        return drawing(Stream("eval", self.run.streams.eval).at(self.run.step, place).seed64())

    def advance(self, stop: StopRequested) -> Iterator[Event]:
        with own_code_of(self.run, *STEP, ahead=1):
            yield from super().advance(stop)

    def gradients(self, step: int) -> tuple[float, float, dict[str, Tensor]]:
        with self.training_draws(step, "gradients"):
            return super().gradients(step)

    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        optim = self.run.config.optim
        if optim.plugin or optim.intervention:  # they may change them in place; measurements read the step's own
            gradients = {name: g.clone() for name, g in gradients.items()}
        with own_code_of(self.run, *UPDATE, ahead=1), self.training_draws(step, "update"):
            super().update(gradients, step)

    def evaluate(self) -> tuple[float, float]:
        with own_code_of(self.run, *STEP), self.evaluation_draws("own code"):  # no name of a metric has a space
            return super().evaluate()

    def metrics(self, gradients: dict[str, Tensor]) -> dict[str, float]:
        with self.evaluation_draws("own code"):
            metrics = super().metrics(gradients)
        if not self.run.config.eval.metric_plugins:
            return metrics
        for name, spec in self.run.config.eval.metric_plugins.items():
            with torch.no_grad(), self.evaluation_draws(name), own_code_of(self.run, f"eval.metric_plugins.{name}"):
                metrics |= numbers_of(name, spec, load(spec)(self.moment(gradients), **arguments_of(spec)))
        if len(metrics) > MOST_ENTRIES:
            raise ConfigError(f"an evaluation measured {len(metrics):,} metrics: expected at most {MOST_ENTRIES:,}")
        return metrics

    def moment(self, gradients: dict[str, Tensor]) -> Moment:
        """Return what a metric reads: copies, for each metric its own, so that none can change training or another."""
        return Moment(
            step=self.run.step,
            parameters={name: p.detach().clone() for name, p in self.parameters.items()},
            gradients={name: g.clone() for name, g in gradients.items()},
            train_set=copy.deepcopy(self.train_set),
            val_set=copy.deepcopy(self.val_set),
            logits=self.logits,
            classes=classes_of,
        )


def numbers_of(name: str, spec: Spec, measured: Any) -> dict[str, float]:
    """Return a metric's numbers by name: ``name``, or ``name_KEY`` for each key of a map; not finite becomes NaN.

    Raises:
        ConfigError: ``measured`` is neither a number nor a map of numbers, or a name in it cannot be stored.
    """
    several = measured if isinstance(measured, Mapping) else {"": measured}
    numbers = {}
    named = f"eval.metric_plugins.{name}={label(spec)}"
    if len(several) > MOST_ENTRIES:
        raise ConfigError(f"{named} returned {len(several):,} numbers: expected at most {MOST_ENTRIES:,}")
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


def classes_of(examples: Any) -> Tensor:
    """Return the right classes [n] of a set, as indices of the logits."""
    if isinstance(examples, Examples):
        return torch.from_numpy(examples.answers)
    return torch.from_numpy(examples.answer) + FIRST_NUMBER


class ModuleLane(OwnLane):
    """A lane whose model is a plain torch module, or whose task is no table of two operands."""

    def sets(self) -> tuple[Any, Any]:
        task = self.run.config.task
        table = examples_of(task)
        return super().sets() if table is None else split_examples(task, table, self.run.streams.split)

    def columns(self) -> list[Tensor]:
        return list(tokens_of(self.train_set, self.run.config.task, self.program.dtype))

    def initial_parameters(self) -> Parameters:
        return initial_of_module(self.run.config, self.program.dtype)

    def batch(self, step: int) -> ModuleBatch:
        index, size = self.run.order.padded_batch(step)
        rows = torch.from_numpy(index)
        if size not in self._shares:
            self._shares[size] = shares(len(index), size, self.program.dtype)
        inputs, answer = (column.index_select(0, rows) for column in self._columns)
        drawn = Stream("dropout", self.run.streams.dropout).at(step)
        return ModuleBatch(inputs, answer, self._shares[size], drawn.seed64())
