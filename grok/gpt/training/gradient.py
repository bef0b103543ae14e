"""The gradient of a micro-batch, by autograd or compiled. On a CPU compiled loss and gradient are one graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from grok.gpt.dropout import Masks, places
from grok.gpt.model import GPT
from grok.gpt.training.numerics import Compiled, Numerics
from grok.gpt.training.parallel import Loss, replicate, training_pass
from grok.gpt.training.ranks import Ranks
from grok.numerics.compiled import OneGraph


class Gradient:
    """Adds the gradient of the mean loss of a piece of a batch to that of the parameters.

    On a CPU forward and backward are compiled as one graph, which does not use autograd at run time. On a GPU they
    are compiled separately, so that torch can choose what to keep between them by its memory. Several processes sum
    their gradients: DDP and FSDP2 do so during the backward pass; after the one graph of a CPU they are summed at once.
    """

    def __init__(self, model: GPT, numerics: Numerics, ranks: Ranks, *, keeps: str = "gradients") -> None:
        """``keeps``: ``train.fsdp_keeps``, for a sharded model."""
        self.keeps = keeps
        self.model, self.numerics, self.ranks = model, numerics, ranks
        self.parameters = dict(model.named_parameters())
        self.places = list(places(model.config, 1, 1))
        self.whole = numerics.compile and numerics.device.type == "cpu" and not numerics.sharded
        if self.whole:
            self._loss = Compiled(self._loss_and_gradients, numerics, OneGraph)
        else:
            self._loss = Compiled(model.loss, numerics, _as_it_is if numerics.sharded else None)
        self.eager: Callable[..., Tensor] = model.loss if self.whole else self._loss
        self.replicas: DistributedDataParallel | None = None
        if ranks.size > 1 and not self.whole and not numerics.sharded:
            self.replicas = replicate(Loss(model, self._loss), numerics)
            self.eager = self.replicas

    @property
    def compiled(self) -> bool:
        """Whether the compiled code runs: false also if compilation failed and ``numerics.auto_fallback`` is on."""
        return self._loss.on

    def add(self, x: Tensor, y: Tensor, masks: Masks, *, share: float, scale: float, last: bool = True) -> Tensor:
        """Add the gradient of ``share * scale`` times the mean loss of ``y`` [B, T] after ``x`` [B, T].

        ``last``: it is this process's last piece of a batch, after which the processes sum their gradients.
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
            # compilation failed in this call: its incomplete gradients are dropped
        waiting: AbstractContextManager[None] = nullcontext()
        if self.numerics.sharded:
            waiting = training_pass(self.model, last=last, keeps=self.keeps)
        elif self.replicas is not None and not last:
            waiting = self.replicas.no_sync()
        with waiting, self.ranks.watched():
            with self.numerics.autocast():
                loss = self.eager(x, y, masks) * share
            (loss * scale).backward()
        detached: Tensor = loss.detach()
        return detached

    def sum_over_ranks(self) -> None:
        """Sum the gradients over the processes if the backward pass did not do it."""
        if self.ranks.size > 1 and self.whole:
            grads = [p.grad for p in self.parameters.values() if p.grad is not None]
            flat = self.ranks.sum(torch.cat([g.reshape(-1) for g in grads]))
            for grad, total in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
                grad.copy_(total.view_as(grad))

    def _loss_and_gradients(self, x: Tensor, y: Tensor, factor: Tensor, *tensors: Tensor) -> list[Tensor]:
        """Return [mean loss, its gradient times ``factor`` for each parameter] for [*masks, *parameters]."""
        masks = dict(zip(self.places, tensors, strict=False))
        leaves = [p.detach().requires_grad_() for p in tensors[len(self.places) :]]
        named = dict(zip(self.parameters, leaves, strict=True))
        with self.numerics.autocast():
            loss = functional_call(Loss(self.model), {f"model.{n}": p for n, p in named.items()}, (x, y, masks))
        gradients = torch.autograd.grad(loss * factor, leaves)
        # the fused optimiser needs gradients in the memory layout of their parameters, as autograd makes them
        return [loss.detach(), *(g.contiguous() for g in gradients)]


def _as_it_is(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``function``: of a sharded model, each block is compiled separately."""
    return function
