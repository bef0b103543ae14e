"""Muon for the arithmetic models: orthogonalised momentum for matrices, AdamW for all other parameters.

    grok sweep optim.plugin._target_=muon.Muon optim.lr=0.01 'seed=range(0,8)' experiment=quickstart

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
"""

from collections.abc import Iterable

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """``parameters`` are (name, tensor) pairs. Embeddings, head, biases and norms use AdamW at ``adam_share`` of lr."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        lr: float = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        adam_share: float = 0.1,
    ) -> None:
        named = list(parameters)
        hidden = [p for name, p in named if p.ndim == 2 and "embedding" not in name and "head" not in name]
        chosen = {id(p) for p in hidden}
        others = [p for _, p in named if id(p) not in chosen]
        groups = [{"params": hidden, "lr": lr}, {"params": others, "lr": lr * adam_share}]
        super().__init__(groups, {"weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        hidden, others = self.param_groups
        for p in hidden["params"]:
            speed = self.state[p].setdefault("momentum", torch.zeros_like(p))
            speed.lerp_(p.grad, 1 - hidden["momentum"])
            update = orthogonalised(p.grad.lerp(speed, hidden["momentum"]))
            p.mul_(1 - hidden["lr"] * hidden["weight_decay"])
            p.add_(update, alpha=-hidden["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
        for p in others["params"]:
            state = self.state[p]
            first = state.setdefault("first", torch.zeros_like(p)).lerp_(p.grad, 0.1)
            second = state.setdefault("second", torch.zeros_like(p)).lerp_(p.grad.square(), 0.02)
            count = state["count"] = state.get("count", 0) + 1
            p.mul_(1 - others["lr"] * others["weight_decay"])
            p.addcdiv_(first / (1 - 0.9**count), (second / (1 - 0.98**count)).sqrt() + 1e-8, value=-others["lr"])


def orthogonalised(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Return approximately U Vᵀ for ``matrix`` = U S Vᵀ, by a Newton-Schulz iteration of degree five."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (matrix.norm() + 1e-7)
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    for _ in range(rounds):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x
