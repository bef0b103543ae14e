"""The user's own code in a lane: models, programs, losses, optimisers, and the faults of each.

n or B examples, T tokens of an example, V classes.
"""

from __future__ import annotations

import copy
import inspect
import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok.arithmetic.lanes import LaneModel, Noise, OneLane
from grok.arithmetic.model import Transformer
from grok.arithmetic.optimizer import Optimizer, learning_rate, stable_logits
from grok.arithmetic.program import EVALUATION_ROWS, OneLaneProgram, Program, cpu_tag, dtype_of
from grok.arithmetic.rows import shares
from grok.arithmetic.run import ArithmeticRun, Lane
from grok.arithmetic.task import (
    FIRST_NUMBER,
    Equations,
    Integers,
    Shapes,
    Vocabulary,
    examples_of,
    shapes_of,
    split_examples,
)
from grok.arithmetic.weights import Parameters, initial_parameters
from grok.config.arithmetic import ArithmeticConfig, OptimConfig, TaskConfig
from grok.errors import ConfigError, GrokError, one_line
from grok.numerics import move_by_ulps
from grok.plugins import (
    Examples,
    Moment,
    Spec,
    active,
    arguments_of,
    build,
    ends_process,
    is_own,
    label,
    load,
    target_of,
)
from grok.records import Event, StopRequested
from grok.runs import is_device_error
from grok.streams import Stream, layer_seeds
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


def lane_class(config: ArithmeticConfig) -> type[LaneModel] | None:
    """Return the class of the user's own lane model, a subclass of ``LaneModel``, or None."""
    if not config.model.plugin:
        return None
    own = load(config.model.plugin)
    return own if isinstance(own, type) and issubclass(own, LaneModel) else None


def is_plain(config: ArithmeticConfig) -> bool:
    """Return whether a run takes the plain path: one lane at a time, every row computed, uncompiled."""
    return examples_of(config.task) is not None or (bool(config.model.plugin) and lane_class(config) is None)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed torch's generator, the only one that own code can draw from, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed those of GPUs
        yield


def make_module(config: ArithmeticConfig, seed: int) -> nn.Module:
    """Return the module, with the initial weights that its own code draws from torch's generator under ``seed``.

    Raises:
        ConfigError: the code refuses its arguments, or returns no module with parameters.
    """
    shapes = shapes_of(config.task)
    if not config.model.plugin:
        if not shapes.vocab_size:
            raise ConfigError(
                f"{config.task.operation} has float inputs, which the transformer does not accept: name a model, "
                "model.plugin._target_=MODULE.NAME"
            )
        with drawing(seed):
            return Transformer(config.model, vocab_size=shapes.tokens, length=shapes.length)
    with drawing(seed):
        module = build(config.model.plugin, **_wanted(load(config.model.plugin), shapes))
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        raise ConfigError(
            f"model.plugin={label(config.model.plugin)} returned a {type(module).__name__}: expected a torch.nn.Module "
            "with parameters"
        )
    return module


def refuse_unseeded(config: ArithmeticConfig, module: nn.Module) -> None:
    """Refuse a module with what no seed of the run decides: all runs share its buffers, and all parameters train.

    Args:
        config: the run's settings.
        module: made under seed 0.

    Raises:
        ConfigError: a parameter that is frozen, or a buffer that is drawn at random.
    """
    named = label(config.model.plugin)
    if frozen := [name for name, p in module.named_parameters() if not p.requires_grad]:
        raise ConfigError(
            f"model.plugin={named}: its parameter {frozen[0]!r} has requires_grad=False, and every parameter trains: "
            "register it as a buffer, with values that are drawn from a torch.Generator of a fixed seed, if at random"
        )
    another = dict(make_module(config, 1).named_buffers())
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer.nan_to_num(), another[name].nan_to_num()):  # NaN is not equal to itself
            raise ConfigError(
                f"model.plugin={named}: its buffer {name!r} is drawn at random, and all runs would share one draw: "
                "make it a parameter, or draw it from a torch.Generator of a fixed seed"
            )


def _wanted(code: Any, shapes: Shapes) -> dict[str, int]:
    """Return the shapes for which ``code`` has a parameter, by the parameter's name."""
    known = {"vocab_size": shapes.vocab_size, "length": shapes.length, "classes": shapes.classes}
    try:
        taken = inspect.signature(code).parameters
    except (TypeError, ValueError):
        return {}
    return {name: size for name, size in known.items() if name in taken}


def initial_of_module(config: ArithmeticConfig, dtype: torch.dtype) -> Parameters:
    """Return a plain module's initial weights: its own code draws them under the init stream's seed.

    A tensor with a seed in ``seeds.layers`` comes from a module that is drawn under that seed. ``model.init_scale``
    multiplies every tensor with two axes or more.
    """
    if not config.model.plugin:
        return initial_parameters(config, dtype)
    init = config.stream_seeds().init
    names = [name for name, _ in make_module(config, 0).named_parameters()]
    seeds = layer_seeds(names, config.seeds.layers, init)
    drawn = {seed: dict(make_module(config, draw(seed)).named_parameters()) for seed in {init, *seeds.values()}}
    weights = {}
    for name in names:
        tensor = drawn[seeds[name]][name].detach().to(dtype).clone()
        weights[name] = tensor * config.model.init_scale if tensor.ndim > 1 else tensor
    return perturbed(weights, config)


def perturbed(parameters: Parameters, config: ArithmeticConfig) -> Parameters:
    """Return the weights changed by ``perturb.ulps`` units in the last place; constant tensors stay."""
    ulps, seed = config.perturb.ulps, config.stream_seeds().perturb
    if not ulps:
        return parameters
    return {
        n: t if bool((t == t.flatten()[0]).all()) else move_by_ulps(t, ulps, Stream("perturb", seed).at(n))
        for n, t in parameters.items()
    }


def draw(seed: int) -> int:
    """Return the seed of torch's generator that belongs to the init seed ``seed``."""
    return Stream("init", seed).at("module").seed64()


# Programs for the user's own code: plain modules, lane models, losses.


def own_program(config: ArithmeticConfig) -> Program:
    """Return the program of a run with the user's own code."""
    if is_plain(config):
        return ModuleProgram(config)
    return OwnLaneProgram(config) if lane_class(config) else OwnLossProgram(config)


def losses_of(config: ArithmeticConfig, logits: Tensor, answer: Tensor) -> Tensor | None:
    """Return each example's loss [B] by the user's own loss, or None if the run has none.

    Raises:
        ConfigError: the loss has another shape.
    """
    spec = config.train.loss_plugin
    if not spec:
        return None
    losses: Tensor = load(spec)(logits, answer, **arguments_of(spec))
    if losses.shape != answer.shape:
        raise ConfigError(
            f"train.loss_plugin={label(spec)} returned the shape {tuple(losses.shape)} for {len(answer)} examples: "
            "expected one loss for each (reduction='none')"
        )
    return losses


class OwnLossProgram(OneLaneProgram):
    """The lanes' program with the user's own loss, if the run has one."""

    def _losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        own = losses_of(self.config, logits, answer)
        return super()._losses(logits, answer) if own is None else own


class OwnLaneProgram(OwnLossProgram):
    """The lanes' program with the user's own lane model, uncompiled."""

    compilable = False

    def lane_model(self) -> LaneModel:
        cls = lane_class(self.config)
        assert cls is not None
        return cls(self.config.model, self.plan, OneLane(self.path), **arguments_of(self.config.model.plugin))


@dataclass(frozen=True, slots=True)
class ModuleBatch:
    """Examples of a step for a plain module."""

    inputs: Tensor
    answer: Tensor
    share: Tensor
    """[B]: each example's share of the loss."""
    seed: int
    """Seed of torch's generator for the module's own draws in this step."""


class ModuleProgram:
    """Loss, gradients and evaluation of one lane whose model is any torch module."""

    def __init__(self, config: ArithmeticConfig) -> None:
        if config.model.plugin and config.model.dropout:
            raise ConfigError(
                f"model.dropout={config.model.dropout} does not apply to {label(config.model.plugin)}: give your model "
                "an argument instead"
            )
        if config.eval.metrics and set(config.eval.metrics) - {"gradient"}:
            raise ConfigError(
                f"eval.metrics={config.eval.metrics}: for a plain module expected gradient, or your own metrics in "
                "eval.metric_plugins"
            )
        self.config = config
        self.dtype = dtype_of(config)
        module = make_module(config, 0)
        if config.model.plugin:
            refuse_unseeded(config, module)
        self.module = module.to(self.dtype)
        self.names = [name for name, _ in self.module.named_parameters()]
        self._buffers = [(name, b, b._version) for name, b in self.module.named_buffers()]

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
        with drawing(batch.seed):
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
        own = losses_of(self.config, logits, answer)
        if own is not None:
            return own
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

STATE, GROUP = "optimizer", "optimizer_group"
STATE_NUMBER, GROUP_TENSOR = "optimizer_number", "optimizer_group_tensor"
"""Names of numbers of a parameter, and of tensors of a group: a number comes back as one, a tensor as one."""
INTERVENTION, NUMBER = "intervention", "intervention_number"


class OwnOptimizer:
    """A ``torch.optim.Optimizer`` over one lane's parameters; its learning rates follow ``optim.warmup_steps``.

    It is constructed with the named parameters and, if its signature has them, with ``lr``, ``weight_decay``,
    ``betas`` and ``eps`` of the settings.
    """

    def __init__(self, parameters: Parameters, config: OptimConfig) -> None:
        self.config, self.parameters = config, parameters
        spec = config.plugin
        known = {
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "betas": tuple(config.betas),
            "eps": config.eps,
        }
        taken = inspect.signature(load(spec)).parameters
        optimizer = build(spec, list(parameters.items()), **{n: v for n, v in known.items() if n in taken})
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"optim.plugin={label(spec)} returned a {type(optimizer).__name__}: expected a torch.optim.Optimizer"
            )
        self.optimizer = optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._fixed = [
            {key: repr(value) for key, value in g.items() if key != "params"} for g in optimizer.param_groups
        ]
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if missing := [name for name, p in parameters.items() if id(p) not in held]:
            raise ConfigError(f"optim.plugin={label(spec)} omits {', '.join(missing)}: every parameter must train")

    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        """Apply update ``step`` (counted from 1) in place."""
        factor = learning_rate(self.config, step) / self.config.lr
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for name, p in self.parameters.items():
            p.grad = gradients[name]
        self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the state: by parameter and by group, tensors and numbers apart.

        Raises:
            ConfigError: the optimiser holds something else that changes; a resumed run would lose it.
        """
        state = {}
        for name, p in self.parameters.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                if "." in key:
                    raise ConfigError(f"the optimiser's state {name}.{key} has a dot in its name: expected one without")
                number = not isinstance(value, Tensor)
                place = f"the optimiser's state {name}.{key}"
                state[f"{STATE_NUMBER if number else STATE}.{name}.{key}"] = _as_tensor(value, place)
        for i, group in enumerate(self.optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, Tensor):
                    state[f"{GROUP_TENSOR}.{i}.{key}"] = value.detach().clone()
                elif _is_number(value):
                    state[f"{GROUP}.{i}.{key}"] = _as_tensor(value, f"the optimiser's {key}")
                elif key != "params" and repr(value) != self._fixed[i].get(key):
                    raise ConfigError(
                        f"the optimiser changed {key!r} of a parameter group, a {type(value).__name__}: expected a "
                        "tensor or a number, which a checkpoint can keep"
                    )
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        for prefix, kept in ((STATE, Tensor.clone), (STATE_NUMBER, Tensor.item)):
            for name, p in self.parameters.items():
                for key, tensor in _below(tensors, f"{prefix}.{name}."):
                    if "." not in key:
                        self.optimizer.state[p][key] = kept(tensor)
        for i, group in enumerate(self.optimizer.param_groups):
            for key, tensor in _below(tensors, f"{GROUP}.{i}."):
                group[key] = tensor.item()
            for key, tensor in _below(tensors, f"{GROUP_TENSOR}.{i}."):
                group[key] = tensor.clone()


def _below(tensors: Mapping[str, Tensor], prefix: str) -> list[tuple[str, Tensor]]:
    return [(key.removeprefix(prefix), tensor) for key, tensor in tensors.items() if key.startswith(prefix)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.generic))


def _as_tensor(value: Any, place: str) -> Tensor:
    """Return a tensor, or a number as a tensor without an axis, of a type that gives the same number back."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if _is_number(value):
        number = value.item() if isinstance(value, np.generic) else value
        kinds = {bool: torch.bool, int: torch.int64}
        return torch.tensor(number, dtype=kinds.get(type(number), torch.float64))
    raise ConfigError(
        f"{place} is a {type(value).__name__}: expected a tensor or a number, which a checkpoint can keep"
    )


class Intervention:
    """The user's own change to the gradients, or to the weights after the update.

    Its class is constructed once per run with the initial parameters. It has a method
    ``gradients(step, parameters, gradients)`` that returns the gradients to use, or
    ``weights(step, parameters)`` that changes the weights in place, or both. Its attribute ``state``, a dict of
    tensors and numbers by name, is kept in checkpoints.
    """

    def __init__(self, spec: Spec, parameters: Parameters) -> None:
        self.own = build(spec, parameters)
        if not (hasattr(self.own, "gradients") or hasattr(self.own, "weights")):
            raise ConfigError(
                f"optim.intervention={label(spec)} has neither gradients(step, parameters, gradients) nor "
                "weights(step, parameters): expected one of them"
            )

    @torch.no_grad()
    def gradients(self, step: int, parameters: Parameters, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients for the update."""
        if not hasattr(self.own, "gradients"):
            return gradients
        changed: dict[str, Tensor] = self.own.gradients(step, parameters, gradients)
        return changed

    @torch.no_grad()
    def weights(self, step: int, parameters: Parameters) -> None:
        """Change the weights in place after an update."""
        if hasattr(self.own, "weights"):
            self.own.weights(step, parameters)

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of its ``state``, tensors and numbers apart.

        Raises:
            ConfigError: it holds something else; a resumed run would lose it.
        """
        state: Mapping[str, Any] = getattr(self.own, "state", {})
        kept = {}
        for name, value in state.items():
            prefix = INTERVENTION if isinstance(value, Tensor) else NUMBER
            kept[f"{prefix}.{name}"] = _as_tensor(value, f"the intervention's state {name!r}")
        return kept

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore its ``state`` from a checkpoint."""
        for prefix, kept in ((INTERVENTION, Tensor.clone), (NUMBER, Tensor.item)):
            for name, tensor in _below(tensors, f"{prefix}."):
                self.own.state[name] = kept(tensor)


class WithIntervention:
    """An optimiser, with an intervention around each update."""

    def __init__(self, optimizer: Any, intervention: Intervention, parameters: Parameters) -> None:
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


# An exception of the user's own code while a run trains: an error of the command, which names where and when.

STEP: Final = ("model.plugin", "train.loss_plugin")
"""Settings whose code computes the loss and the logits."""
UPDATE: Final = ("optim.intervention", "optim.plugin")
"""Settings whose code changes the weights."""


@contextmanager
def own_code_of(run: ArithmeticRun, *settings: str, ahead: int = 0) -> Iterator[None]:
    """Name the setting, the step and the seed in an exception of the user's own code.

    A run is deterministic: another try would raise it again.

    Args:
        run: the run in flight.
        settings: those whose code may be called.
        ahead: 1 before the run has counted the step that it trains, 0 at its evaluation.

    Raises:
        ConfigError: instead of the exception. Too little memory and a broken device pass; so does what
            :data:`STEP` raises outside the user's own code, such as an error of the compiler.
    """
    try:
        yield
    except (GrokError, MemoryError, torch.OutOfMemoryError):  # the last one is of a GPU
        raise
    except BaseException as error:
        if is_device_error(error) or not (isinstance(error, Exception) or ends_process(error)):
            raise
        named = {name: spec for name, spec in run.config.plugins().items() if name in settings}
        walked = list(traceback.walk_tb(error.__traceback__))
        frames = [(frame.f_code, line) for frame, line in walked]
        own = [(frame.f_code, line) for frame, line in walked if is_own(frame.f_globals)]
        if not named or "allocate memory" in str(error) or (settings == STEP and not own):
            raise  # on a CPU torch has no MemoryError, but a RuntimeError with these words
        by_place = [name for name, spec in named.items() if own and _is_of(own[0][0], target_of(spec))]
        setting = [*by_place, *named][0]
        code, line = (own or frames)[-1]
        words = one_line(error)
        traced = any(str(frame.f_globals.get("__name__")).startswith("torch.fx") for frame, _ in walked)
        remedy = "; torch.compile traces this code: numerics.compile=false runs it untraced" if traced else ""
        raise ConfigError(
            f"{setting}={label(named[setting])} fails at {Path(code.co_filename).name}:{line}, at step "
            f"{run.step + ahead:,} of the run with seed {run.config.seed} ({type(error).__name__}: {words}){remedy}"
        ) from error


def _is_of(code: CodeType, target: str) -> bool:
    """Return whether ``code`` is the function of ``target``, or a method of its class."""
    place = active().targets[target]
    return f"{code.co_qualname}.".startswith(f"{place.attribute}.")


# Lanes of runs with the user's own code: an optimiser, an intervention, metrics, a plain module.


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
