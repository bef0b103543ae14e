"""Adapters: the user's own optimiser and intervention behind the engine's interface."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grok.arithmetic.initial import Parameters
from grok.arithmetic.optimizer import learning_rate
from grok.config.arithmetic import OptimConfig
from grok.errors import ConfigError
from grok.plugins import Spec, build, label, load

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
