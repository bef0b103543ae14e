"""What a user could write instead of this project, each with the tools of its field.

All have the plain loop's model, task, batch size and optimiser; an epoch's last, partial batch is left out, so that one
compiled program serves every step. The model is one function over a dictionary of weights, which torch and JAX both
run. ``lanes`` of a contender are trained by one ``step()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contenders import PlainLoop, PlainModel, training_set
from grok.arithmetic.task import Vocabulary
from grok.config import ArithmeticConfig

Weights = dict[str, Any]
LANES = 8
"""Lanes of a contender that trains several."""


def batches(config: ArithmeticConfig, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield tokens (batch, positions) and answers (batch), shuffled in each epoch."""
    tokens, answers = (values.numpy() for values in training_set(config, seed))
    order = np.random.default_rng(seed)
    size = config.train.batch_size
    while True:
        rows = order.permutation(len(answers))
        for first in range(0, len(answers) - size + 1, size):
            chosen = rows[first : first + size]
            yield tokens[chosen], answers[chosen]


def logits(ops: Any, w: Weights, tokens: Any, heads: int, layers: int, *, only_answer: bool = False) -> Any:
    """Return the plain model's logits at the last position (batch, vocabulary).

    ``ops``: the functions of torch or JAX. ``only_answer``: the last layer's queries and MLP are computed there alone.
    """
    x = w["tokens.weight"][tokens] + w["positions.weight"]  # (batch, positions, width)
    for layer in range(layers):
        of = f"blocks.{layer}."
        last = only_answer and layer == layers - 1
        projection, bias = w[of + "attention.in_proj_weight"], w[of + "attention.in_proj_bias"]
        d = x.shape[-1]
        asked = x[:, -1:] if last else x
        q = (asked @ projection[:d].T + bias[:d]).reshape(*asked.shape[:-1], heads, -1)
        kv = (x @ projection[d:].T + bias[d:]).reshape(*x.shape[:-1], 2, heads, -1)
        scores = ops.einsum("bqhd,bkhd->bhqk", q, kv[:, :, 0]) * q.shape[-1] ** -0.5
        scores = scores + ops.causal(scores)
        mixed = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), kv[:, :, 1]).reshape(asked.shape)
        mixed = mixed @ w[of + "attention.out_proj.weight"].T + w[of + "attention.out_proj.bias"]
        x = normed(ops, w, of + "norm1", asked + mixed)
        hidden = ops.gelu(x @ w[of + "mlp.0.weight"].T + w[of + "mlp.0.bias"])
        x = normed(ops, w, of + "norm2", x + hidden @ w[of + "mlp.2.weight"].T + w[of + "mlp.2.bias"])
    return normed(ops, w, "norm", x[:, -1]) @ w["head.weight"].T + w["head.bias"]


def normed(ops: Any, w: Weights, name: str, x: Any) -> Any:
    x = x - ops.mean(x)
    return x / ops.sqrt(ops.mean(x * x) + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


class TorchOps:
    einsum, sqrt, gelu = torch.einsum, torch.sqrt, F.gelu

    @staticmethod
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    @staticmethod
    def mean(x: Tensor) -> Tensor:
        return x.mean(-1, keepdim=True)

    @staticmethod
    def causal(scores: Tensor) -> Tensor:
        queries, keys = scores.shape[-2:]
        return torch.full((queries, keys), -torch.inf, dtype=scores.dtype).triu(keys - queries + 1)


def initial(config: ArithmeticConfig, seed: int) -> dict[str, Tensor]:
    vocabulary = Vocabulary.of(config.task)
    torch.manual_seed(seed)
    return dict(PlainModel(vocabulary.size, vocabulary.length, config.model).named_parameters())


class CompiledLoop(PlainLoop):
    """The plain loop with torch.compile around its model."""

    def __init__(self, config: ArithmeticConfig, seed: int) -> None:
        super().__init__(config, seed)
        self.model = torch.compile(self.model)  # type: ignore[assignment]


class FunctionalLoop:
    """The model as a function, its loss and gradients compiled; ``lanes`` of them by torch.func.vmap."""

    def __init__(self, config: ArithmeticConfig, seed: int, *, lanes: int, only_answer: bool) -> None:
        self.lanes = lanes
        seeds = range(seed * lanes, (seed + 1) * lanes)
        each = [initial(config, one) for one in seeds]
        self.data = [batches(config, one) for one in seeds]
        self.weights = {name: torch.stack([w[name].detach() for w in each]).requires_grad_() for name in each[0]}
        heads, layers = config.model.heads, config.model.layers

        def loss(w: Weights, tokens: Tensor, answers: Tensor) -> Tensor:
            found = logits(TorchOps, w, tokens, heads, layers, only_answer=only_answer)
            return F.cross_entropy(found, answers)

        def of_one(w: Weights, tokens: Tensor, answers: Tensor) -> Tensor:
            return loss({name: values[0] for name, values in w.items()}, tokens[0], answers[0])

        each_loss = torch.func.vmap(loss)
        self.loss = torch.compile(of_one if lanes == 1 else lambda *of: each_loss(*of).sum())
        optim = config.optim
        self.optimizer = torch.optim.AdamW(
            self.weights.values(),
            optim.lr,
            (optim.betas[0], optim.betas[1]),
            weight_decay=optim.weight_decay,
            fused=True,
        )

    def step(self) -> float:
        tokens, answers = (torch.from_numpy(np.stack(of)) for of in zip(*map(next, self.data), strict=True))
        loss = self.loss(self.weights, tokens, answers)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach()) / self.lanes


class JaxLoop:
    """One jitted step of JAX, or of several seeds by its vmap; AdamW written out."""

    def __init__(self, config: ArithmeticConfig, seed: int, lanes: int = 1) -> None:
        import jax
        from jax import numpy as jnp

        class Ops:
            einsum, sqrt = jnp.einsum, jnp.sqrt
            gelu = staticmethod(lambda x: jax.nn.gelu(x, approximate=False))
            softmax = staticmethod(lambda x: jax.nn.softmax(x, -1))
            mean = staticmethod(lambda x: x.mean(-1, keepdims=True))
            causal = staticmethod(lambda s: jnp.triu(jnp.full(s.shape[-2:], -jnp.inf, s.dtype), 1))  # as many keys

        self.lanes = lanes
        seeds = range(seed * lanes, (seed + 1) * lanes)
        each = [initial(config, one) for one in seeds]
        self.data = [batches(config, one) for one in seeds]
        self.weights = {n: jnp.stack([jnp.asarray(w[n].detach().numpy()) for w in each]) for n in each[0]}
        self.moments = [{n: jnp.zeros_like(w) for n, w in self.weights.items()} for _ in range(2)]
        self.count = 0
        optim, (b1, b2) = config.optim, config.optim.betas
        heads, layers = config.model.heads, config.model.layers

        def loss(w: Weights, tokens: Any, answers: Any) -> Any:
            found = jax.nn.log_softmax(logits(Ops, w, tokens, heads, layers))
            return -jnp.take_along_axis(found, answers[:, None], 1).mean()

        def step(w: Weights, m: Weights, v: Weights, count: Any, tokens: Any, answers: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(w, tokens, answers)
            m = {n: b1 * m[n] + (1 - b1) * g for n, g in gradients.items()}
            v = {n: b2 * v[n] + (1 - b2) * g * g for n, g in gradients.items()}
            size, root = optim.lr / (1 - b1**count), jnp.sqrt(1 - b2**count)
            kept = 1 - optim.lr * optim.weight_decay
            w = {n: x * kept - size * m[n] / (jnp.sqrt(v[n]) / root + 1e-8) for n, x in w.items()}
            return w, m, v, value

        self.update = jax.jit(jax.vmap(step, (0, 0, 0, None, 0, 0)), donate_argnums=(0, 1, 2))

    def step(self) -> float:
        tokens, answers = (np.stack(of) for of in zip(*map(next, self.data), strict=True))
        self.count += 1
        self.weights, *self.moments, loss = self.update(self.weights, *self.moments, float(self.count), tokens, answers)
        return float(loss.mean())


PEERS: dict[str, Callable[[ArithmeticConfig, int], Any]] = {
    "torch.compile": CompiledLoop,
    "careful": partial(FunctionalLoop, lanes=1, only_answer=True),
    "torch.func.vmap": partial(FunctionalLoop, lanes=LANES, only_answer=False),
    "JAX jit": JaxLoop,
    "JAX vmap": partial(JaxLoop, lanes=LANES),
}
"""*Careful*: compiled, a fused optimiser, the last layer only where the answer is read. Of vmap: several seeds."""
