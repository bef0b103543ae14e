"""The user's own code while a run of either mode trains: modules, losses, optimisers, interventions, their faults.

B examples (or tokens of text), V classes (or tokens of the vocabulary).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from grok.config import RunConfig
from grok.config.common import AdamW
from grok.errors import ConfigError, GrokError, in_words, one_line
from grok.numerics import move_by_ulps
from grok.plugins import Spec, accepted, arguments_of, build, ends_process, is_of, label, load, own_lines, own_place
from grok.runs import is_device_error
from grok.streams import Stream, layer_seeds

Parameters = dict[str, Tensor]
"""Trained tensors by name."""


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Seed torch's generator, the only one that own code can draw from, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed those of GPUs
        yield


def make_module(spec: Spec, seed: int, shapes: Mapping[str, int]) -> nn.Module:
    """Return the module, with the initial weights that its own code draws from torch's generator under ``seed``.

    ``shapes``: arguments that its constructor gets if it has parameters of these names.

    Raises:
        ConfigError: the code refuses its arguments, or returns no module with parameters.
    """
    with drawing(seed):
        module = build(spec, **accepted(spec, shapes))
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        raise ConfigError(
            f"model.plugin={label(spec)} returned a {type(module).__name__}: expected a torch.nn.Module with parameters"
        )
    return module


def refuse_unseeded(spec: Spec, module: nn.Module, shapes: Mapping[str, int]) -> None:
    """Refuse a module with what no seed of the run decides: all runs share its buffers, and all parameters train.

    ``module`` was made under seed 0.

    Raises:
        ConfigError: a parameter that is frozen, or a buffer that is drawn at random.
    """
    named = label(spec)
    if frozen := [name for name, p in module.named_parameters() if not p.requires_grad]:
        raise ConfigError(
            f"model.plugin={named}: its parameter {frozen[0]!r} has requires_grad=False, and every parameter trains: "
            "register it as a buffer, with values that are drawn from a torch.Generator of a fixed seed, if at random"
        )
    another = dict(make_module(spec, 1, shapes).named_buffers())
    for name, buffer in module.named_buffers():
        if not torch.equal(buffer.nan_to_num(), another[name].nan_to_num()):  # NaN is not equal to itself
            raise ConfigError(
                f"model.plugin={named}: its buffer {name!r} is drawn at random, and all runs would share one draw: "
                "make it a parameter, or draw it from a torch.Generator of a fixed seed"
            )


def drawn_weights(spec: Spec, shapes: Mapping[str, int], config: RunConfig) -> Parameters:
    """Return a module's initial weights: its own code draws them under the init stream's seed.

    A tensor with a seed in ``seeds.layers`` comes from a module that is drawn under that seed.
    """
    init = config.stream_seeds().init
    names = [name for name, _ in make_module(spec, 0, shapes).named_parameters()]
    seeds = layer_seeds(names, config.seeds.layers, init)
    drawn = {
        seed: dict(make_module(spec, Stream("init", seed).at("module").seed64(), shapes).named_parameters())
        for seed in {init, *seeds.values()}
    }
    return {name: drawn[seeds[name]][name].detach() for name in names}


def perturbed(parameters: Parameters, ulps: int, seed: int) -> Parameters:
    """Return the weights changed by up to ``ulps`` units in the last place; constant tensors stay."""
    if not ulps:
        return parameters
    return {
        n: t if bool((t == t.flatten()[0]).all()) else move_by_ulps(t, ulps, Stream("perturb", seed).at(n))
        for n, t in parameters.items()
    }


def losses_of(spec: Spec, logits: Tensor, answer: Tensor) -> Tensor:
    """Return each example's loss [B] by the user's own loss of ``logits`` [B, V] and right classes ``answer`` [B].

    Raises:
        ConfigError: the loss has another shape.
    """
    losses: Tensor = load(spec)(logits, answer, **arguments_of(spec))
    if losses.shape != answer.shape:
        raise ConfigError(
            f"train.loss_plugin={label(spec)} returned the shape {tuple(losses.shape)} for {len(answer)} examples: "
            "expected one loss for each (reduction='none')"
        )
    return losses


# Adapters: the user's own optimiser and intervention behind the engine's interface.

STATE, GROUP = "optimizer", "optimizer_group"
STATE_NUMBER, GROUP_TENSOR = "optimizer_number", "optimizer_group_tensor"
"""Names of numbers of a parameter, and of tensors of a group: a number comes back as one, a tensor as one."""
INTERVENTION, NUMBER = "intervention", "intervention_number"


class OwnOptimizer:
    """A ``torch.optim.Optimizer`` over a run's parameters; its learning rates follow the run's schedule.

    It is constructed with the named parameters and, if its signature has them, with ``lr``, ``weight_decay``,
    ``betas`` and ``eps`` of the settings.
    """

    def __init__(self, spec: Spec, config: AdamW, parameters: Parameters) -> None:
        self.config, self.parameters = config, parameters
        known = {name: getattr(config, name) for name in ("lr", "weight_decay", "eps")} | {"betas": tuple(config.betas)}
        optimizer = build(spec, list(parameters.items()), **accepted(spec, known))
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

    def set_rate(self, rate: float) -> None:
        """Let the next update use ``rate``, the settings' learning rate at its step; groups keep their ratios."""
        factor = rate / self.config.lr
        for group, own in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = own * factor

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the state: by parameter and by group, tensors and numbers apart.

        Raises:
            ConfigError: the optimiser holds something else that changes; a resumed run would lose it.
        """
        state = {}
        for name, p in self.parameters.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                place = f"the optimiser's state {name}.{key}"
                if "." in key:
                    raise ConfigError(f"{place} has a dot in its name: expected one without")
                kind = STATE if isinstance(value, Tensor) else STATE_NUMBER
                state[f"{kind}.{name}.{key}"] = _as_tensor(value, place)
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
            for prefix, kept in ((GROUP, Tensor.item), (GROUP_TENSOR, Tensor.clone)):
                group |= {key: kept(tensor) for key, tensor in _below(tensors, f"{prefix}.{i}.")}


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


# An exception of the user's own code while a run trains: an error of the command, which names where and when.


class InFlight(Protocol):
    """A run in training."""

    @property
    def config(self) -> RunConfig: ...
    @property
    def step(self) -> int: ...


STEP: Final = ("model.plugin", "train.loss_plugin")
"""Settings whose code computes the loss and the logits."""
UPDATE: Final = ("optim.intervention", "optim.plugin")
"""Settings whose code changes the weights."""


@contextmanager
def own_code_of(run: InFlight, *settings: str, ahead: int = 0) -> Iterator[None]:
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
        own = own_lines(error)
        if not named or "allocate memory" in str(error) or (settings == STEP and not own):
            raise  # on a CPU torch has no MemoryError, but a RuntimeError with these words
        by_place = [name for name, spec in named.items() if own and is_of(own[0][0], spec)]
        setting = [*by_place, *named][0]
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        traced = any(module.startswith("torch.fx") for module in modules)
        remedy = "; torch.compile traces this code: numerics.compile=false runs it untraced" if traced else ""
        raise ConfigError(
            f"{setting}={label(named[setting])} fails{own_place(error)}, at step {run.step + ahead:,} of the "
            f"run with seed {run.config.seed} ({type(error).__name__}: {one_line(error)}){remedy}"
        ) from error


@contextmanager
def tried(config: RunConfig) -> Iterator[None]:
    """Refuse the code that ``config`` names if it cannot be called, or fails in this block, which tries a step.

    Raises:
        GrokError: the message names the setting, in one line.
    """
    named = config.plugins()
    for spec in named.values():
        if not callable(load(spec)):
            raise ConfigError(f"{label(spec)} cannot be called: expected a class or a function")
    shown = ", ".join(f"{name}={label(spec)}" for name, spec in named.items())
    with in_words(ConfigError, f"{shown}: a trial step fails"):
        yield
