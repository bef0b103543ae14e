"""Programs for the user's own code: plain modules, lane models, losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.backends import OneLane
from grok.arithmetic.initial import Parameters
from grok.arithmetic.interventions import stable_logits
from grok.arithmetic.lanes import LaneModel, Noise
from grok.arithmetic.operations import Integers
from grok.arithmetic.own_model import drawing, is_plain, lane_class, make_module, refuse_unseeded, tokens_of
from grok.arithmetic.program import EVALUATION_ROWS, OneLaneProgram, Program, cpu_tag, dtype_of
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError
from grok.plugins import arguments_of, label, load


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
        if config.precision == "tf32":
            raise ConfigError("precision=tf32 is a mode of CUDA devices: on a CPU expected float32, float64 or bf16")
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
