"""Adapters: the user's own optimiser and intervention behind the engine's interface."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grok.arithmetic.initial import Parameters
from grok.arithmetic.optimizer import learning_rate
from grok.config.arithmetic import OptimConfig
from grok.errors import ConfigError
from grok.plugins import Spec, build, label, load

STATE, GROUP = "optimizer", "optimizer_group"


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
        """Return a copy of the state: tensors by parameter, and numbers as tensors without an axis."""
        state = {}
        for name, p in self.parameters.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                state[f"{STATE}.{name}.{key}"] = _as_tensor(value, f"{name}.{key}")
        for i, group in enumerate(self.optimizer.param_groups):
            for key, value in _numbers(group).items():
                state[f"{GROUP}.{i}.{key}"] = _as_tensor(value, key)
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from a checkpoint."""
        for name, p in self.parameters.items():
            prefix = f"{STATE}.{name}."
            for key, tensor in tensors.items():
                if key.startswith(prefix) and "." not in key.removeprefix(prefix):
                    self.optimizer.state[p][key.removeprefix(prefix)] = tensor.clone()
        for i, group in enumerate(self.optimizer.param_groups):
            for key in _numbers(group):
                group[key] = type(group[key])(tensors[f"{GROUP}.{i}.{key}"].item())


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers in a parameter group, which an optimiser may change."""
    return {key: value for key, value in group.items() if type(value) in (int, float)}


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=torch.float64)
    raise ConfigError(f"the optimiser's state {name} is a {type(value).__name__}: expected a tensor or a number")


class Intervention:
    """The user's own change to the gradients, or to the weights after the update.

    Its class is constructed once per run with the initial parameters. It has a method
    ``gradients(step, parameters, gradients)`` that returns the gradients to use, or
    ``weights(step, parameters)`` that changes the weights in place, or both. Its attribute ``state``, a dict of
    tensors by name, is kept in checkpoints.
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
        """Return a copy of its ``state``."""
        state: Mapping[str, Tensor] = getattr(self.own, "state", {})
        return {f"intervention.{name}": tensor.detach().clone() for name, tensor in state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore its ``state`` from a checkpoint."""
        for key, tensor in tensors.items():
            if key.startswith("intervention."):
                self.own.state[key.removeprefix("intervention.")] = tensor.clone()


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
