"""The gradient of a micro-batch: by autograd, or compiled; on a CPU loss and gradient are then one graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from grok.gpt.dropout import Masks, places
from grok.gpt.model import GPT
from grok.gpt.training.numerics import Compiled, Numerics
from grok.numerics.compiled import OneGraph


class Gradient:
    """Adds the gradient of the mean loss of a micro-batch to that of the parameters.

    Compiled for a CPU, forward and backward are scheduled together, and nothing of autograd is left at run
    time. On a GPU they are compiled apart: that way torch chooses what is kept between them by its memory.
    """

    def __init__(self, model: GPT, numerics: Numerics) -> None:
        self.model, self.numerics = model, numerics
        self.parameters = dict(model.named_parameters())
        self.places = list(places(model.config, 1, 1))
        self.whole = numerics.compile and numerics.device.type == "cpu"
        compiler = OneGraph if self.whole else None
        self._loss = Compiled(self._loss_and_gradients if self.whole else model.loss, numerics, compiler)

    @property
    def compiled(self) -> bool:
        """Whether this runs compiled: false also where compiling failed and that was allowed."""
        return self._loss.on

    def add(self, x: Tensor, y: Tensor, masks: Masks, *, share: float, scale: float) -> Tensor:
        """Add the gradient of ``share * scale`` times the mean loss of ``y`` [B, T] after ``x`` [B, T].

        Returns ``share`` times the mean loss, without a gradient.
        """
        if self.whole and self._loss.on:
            factor = torch.tensor(share * scale, dtype=self.numerics.dtype, device=x.device)
            tensors = [masks[name] for name in self.places] + [p.detach() for p in self.parameters.values()]
            loss, *gradients = self._loss(x, y, factor, *tensors)
            if self._loss.on:
                for p, gradient in zip(self.parameters.values(), gradients, strict=True):
                    p.grad = gradient if p.grad is None else p.grad.add_(gradient)
                total: Tensor = loss * share
                return total
            # compiling failed just now: what was computed to no purpose is dropped
        function = self.model.loss if self.whole else self._loss
        with self.numerics.autocast():
            loss = function(x, y, masks) * share
        (loss * scale).backward()
        detached: Tensor = loss.detach()
        return detached

    def _loss_and_gradients(self, x: Tensor, y: Tensor, factor: Tensor, *tensors: Tensor) -> list[Tensor]:
        """Return [mean loss, its gradient times ``factor`` for each parameter] for [*masks, *parameters]."""
        masks = dict(zip(self.places, tensors, strict=False))
        leaves = [p.detach().requires_grad_() for p in tensors[len(self.places) :]]
        named = dict(zip(self.parameters, leaves, strict=True))
        with self.numerics.autocast():
            loss = functional_call(_Loss(self.model), {f"model.{n}": p for n, p in named.items()}, (x, y, masks))
        gradients = torch.autograd.grad(loss * factor, leaves)
        # autograd would lay a gradient out as its parameter; the fused optimiser counts on that
        return [loss.detach(), *(g.contiguous() for g in gradients)]


class _Loss(torch.nn.Module):
    """A model's loss as the forward pass of a module, which is what can be called with other parameters."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor, masks: Masks) -> Tensor:
        return self.model.loss(x, y, masks)
