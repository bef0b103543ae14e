"""The ways to train the default regime that ``benchmarks.seeds`` compares.

Each contender is a class with ``step()``, which trains its ``lanes``. All train the same task with the same model,
batch size and optimiser: a plain loop, this project, and what a user could write instead of it, each with the tools of
its field. These peers leave out an epoch's last, partial batch, so that one compiled program serves every step; their
model is one function over a dictionary of weights, which torch and JAX both run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from grok.arithmetic.program import Program, dropout_noise
from grok.arithmetic.run import ArithmeticRun, Lane
from grok.arithmetic.task import FIRST_NUMBER, Vocabulary, split
from grok.config import ArithmeticConfig
from grok.config.arithmetic import ModelConfig, OptimConfig, TaskConfig
from grok.records import Job

Weights = dict[str, Any]
LANES = 8
"""Lanes of a contender that trains several."""


class PlainBlock(nn.Module):
    """A post-norm block of torch's own modules."""

    def __init__(self, d: int, heads: int, ff: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, ff), nn.GELU(), nn.Linear(ff, d))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        mask = torch.full((t, t), -math.inf, device=x.device, dtype=x.dtype).triu(1)
        attended, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm1(x + attended)
        normed: Tensor = self.norm2(x + self.mlp(x))
        return normed


class PlainModel(nn.Module):
    def __init__(self, task: TaskConfig, model: ModelConfig) -> None:
        super().__init__()
        vocabulary = Vocabulary.of(task)
        d = model.d_model
        self.tokens, self.positions = nn.Embedding(vocabulary.size, d), nn.Embedding(vocabulary.length, d)
        ff = model.d_ff or 4 * d
        self.blocks = nn.ModuleList(PlainBlock(d, model.heads, ff) for _ in range(model.layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary.size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def training_set(config: ArithmeticConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Return tokens (examples, positions) and answers (examples) of the split ``seed``."""
    train_set, _ = split(config.task, seed)
    numbers = {"a": train_set.a + FIRST_NUMBER, "b": train_set.b + FIRST_NUMBER}
    columns = [
        torch.from_numpy(numbers[w]) if isinstance(w, str) else torch.full((len(train_set),), w)
        for w in Vocabulary.of(config.task).layout
    ]
    return torch.stack(columns, 1), torch.from_numpy(train_set.answer) + FIRST_NUMBER


def adamw(weights: Iterable[Tensor], optim: OptimConfig, **options: Any) -> torch.optim.AdamW:
    """Return torch's AdamW with the settings ``optim``."""
    betas = optim.betas[0], optim.betas[1]
    return torch.optim.AdamW(weights, lr=optim.lr, betas=betas, weight_decay=optim.weight_decay, **options)


class PlainLoop:
    """A plain training loop: nn.MultiheadAttention, DataLoader, AdamW; ``compiled``: by torch.compile."""

    lanes = 1

    def __init__(self, config: ArithmeticConfig, seed: int, *, compiled: bool = False) -> None:
        torch.manual_seed(seed)
        data = torch.utils.data.TensorDataset(*training_set(config, seed))
        loader = torch.utils.data.DataLoader(data, batch_size=config.train.batch_size, shuffle=True)
        self.batches = chain.from_iterable(repeat(loader))
        model = PlainModel(config.task, config.model)
        self.model: Callable[[Tensor], Tensor] = torch.compile(model) if compiled else model
        self.optimizer = adamw(model.parameters(), config.optim)

    def step(self) -> None:
        tokens, answer = next(self.batches)
        loss = F.cross_entropy(self.model(tokens)[:, -1], answer)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class OurLane:
    """A lane of this project's engine, as a worker runs it."""

    lanes = 1

    def __init__(self, config: ArithmeticConfig, seed: int) -> None:
        self.lane = Lane(ArithmeticRun(Job(run_id=str(seed), config=config)), Program(config))

    def step(self) -> None:
        lane, step = self.lane, self.lane.run.step + 1
        noise = dropout_noise(lane.run.config, lane.run.streams.dropout, step)
        _, _, gradients = lane.program.gradients(lane.parameters, lane.batch(step), noise)
        lane.optimizer.update(lane.changed(gradients, step), step)
        lane.run.step = step

    def evaluate(self) -> None:
        self.lane.evaluate()


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


def _causal(scores: Tensor) -> Tensor:
    queries, keys = scores.shape[-2:]
    return torch.full((queries, keys), -torch.inf, dtype=scores.dtype).triu(keys - queries + 1)


TorchOps = SimpleNamespace(
    einsum=torch.einsum,
    sqrt=torch.sqrt,
    gelu=F.gelu,
    softmax=partial(torch.softmax, dim=-1),
    mean=partial(torch.mean, dim=-1, keepdim=True),
    causal=_causal,
)


def initial(config: ArithmeticConfig, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {name: w.detach() for name, w in PlainModel(config.task, config.model).named_parameters()}


class FunctionalLoop:
    """The weights and batches of ``lanes`` seeds, for a model that is a function."""

    def __init__(self, config: ArithmeticConfig, seed: int, lanes: int) -> None:
        self.lanes = lanes
        seeds = range(seed * lanes, (seed + 1) * lanes)
        each = [initial(config, one) for one in seeds]
        self.weights: Weights = {name: torch.stack([w[name] for w in each]) for name in each[0]}
        self.data = [batches(config, one) for one in seeds]

    def batch(self) -> list[NDArray[np.int64]]:
        """Return the next tokens (lanes, batch, positions) and answers (lanes, batch)."""
        return [np.stack(of) for of in zip(*map(next, self.data), strict=True)]


class TorchLoop(FunctionalLoop):
    """The function's loss and gradients compiled; several lanes by torch.func.vmap."""

    def __init__(self, config: ArithmeticConfig, seed: int, lanes: int = 1, *, only_answer: bool = False) -> None:
        super().__init__(config, seed, lanes)
        heads, layers = config.model.heads, config.model.layers

        def loss(w: Weights, tokens: Tensor, answers: Tensor) -> Tensor:
            found = logits(TorchOps, w, tokens, heads, layers, only_answer=only_answer)
            return F.cross_entropy(found, answers)

        def of_one(w: Weights, tokens: Tensor, answers: Tensor) -> Tensor:
            return loss({name: values[0] for name, values in w.items()}, tokens[0], answers[0])

        each_loss = torch.func.vmap(loss)
        self.loss = torch.compile(of_one if lanes == 1 else lambda *of: each_loss(*of).sum())
        self.optimizer = adamw([w.requires_grad_() for w in self.weights.values()], config.optim, fused=True)

    def step(self) -> float:
        loss = self.loss(self.weights, *map(torch.from_numpy, self.batch()))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach()) / self.lanes


class JaxLoop(FunctionalLoop):
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

        super().__init__(config, seed, lanes)
        self.weights = {n: jnp.asarray(w.numpy()) for n, w in self.weights.items()}
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
        self.count += 1
        self.weights, *self.moments, loss = self.update(self.weights, *self.moments, float(self.count), *self.batch())
        return float(loss.mean())


PEERS: dict[str, Callable[[ArithmeticConfig, int], Any]] = {
    "torch.compile": partial(PlainLoop, compiled=True),
    "careful": partial(TorchLoop, only_answer=True),
    "torch.func.vmap": partial(TorchLoop, lanes=LANES),
    "JAX jit": JaxLoop,
    "JAX vmap": partial(JaxLoop, lanes=LANES),
}
"""*Careful*: compiled, a fused optimiser, the last layer only where the answer is read. Of vmap: several seeds."""
