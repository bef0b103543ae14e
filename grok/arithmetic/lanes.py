"""The transformer over a row plan: the mathematics of every lane.

Its logits and gradients equal those of ``model.Transformer`` at the last position, for every
option; tests/arithmetic checks 1e-12 in float64. With a stacked backend shapes have a leading
lane axis, so axes are counted from the end.

R rows, D model width, H heads, K head width, B batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.backends import Backend
from grok.arithmetic.initial import Parameters
from grok.arithmetic.model import sinusoidal_positions
from grok.arithmetic.rows import Batch, Group, RowPlan
from grok.config.arithmetic import ModelConfig

Noise = Callable[[str, Tensor], Tensor]
"""Applies the dropout of the named place to an activation."""


def no_noise(place: str, x: Tensor) -> Tensor:
    return x


class LaneModel:
    """Logits at the answer position from parameters and a batch, for one architecture and task."""

    def __init__(self, config: ModelConfig, plan: RowPlan, backend: Backend) -> None:
        self.config = config
        self.plan = plan
        self.ops = backend
        self.position_table: Tensor | None = None

    def logits(self, p: Parameters, batch: Batch, noise: Noise = no_noise) -> Tensor:  # [..., B, V]
        """Return the logits at the last position."""
        config, plan = self.config, self.plan
        x = noise("embedding", torch.cat(self.embed(p, batch), -2))  # [..., R, D]
        groups = plan.own
        for layer in range(config.layers):
            last = layer == config.layers - 1
            x = self.block(p, f"blocks.{layer}.", x, groups, batch, last, noise)
            groups = plan.prefix
        if config.final_norm:
            x = self.norm(p, "final_norm", x)
        head = p["token_embedding.weight"] if config.tied else p["head.weight"]
        logits = self.ops.linear(x, head, p.get("head.bias"))
        if plan.prefix[-1] != "pair":  # the answer does not depend on both operands' examples
            logits = self.widen(logits, plan.prefix[-1], "pair", batch)
        return logits

    def embed(self, p: Parameters, batch: Batch) -> list[Tensor]:
        """Return each position's rows before the first attention."""
        tokens, rows = p["token_embedding.weight"], []
        for t, (word, group) in enumerate(zip(self.plan.layout, self.plan.own, strict=True)):
            if group == "pair":
                numbers = {"a": batch.a, "b": batch.b}
                index = torch.full_like(batch.a, word) if isinstance(word, int) else numbers[word]
                segment = self.ops.take(tokens, index)
            elif isinstance(word, int):
                segment = tokens[..., word : word + 1, :]
            else:
                operands = self.plan.left if group == "left" else self.plan.right
                segment = tokens[..., operands.start : operands.stop, :]
            rows.append(segment + self.position(p, t))
        return rows

    def position(self, p: Parameters, t: int) -> Tensor:
        """Return the embedding of position ``t`` as one row."""
        if self.config.positions == "learned":
            return p["position_embedding.weight"][..., t : t + 1, :]
        tokens = p["token_embedding.weight"]
        if self.position_table is None or self.position_table.dtype != tokens.dtype:
            table = sinusoidal_positions(len(self.plan.layout), self.config.d_model)
            self.position_table = table.to(tokens.device, tokens.dtype)
        return self.position_table[t : t + 1]

    def block(
        self, p: Parameters, name: str, x: Tensor, groups: tuple[Group, ...], batch: Batch, last: bool, noise: Noise
    ) -> Tensor:
        """Return the rows after one block; the last block keeps the answer position only."""
        post, pre = self.config.norm == "post", self.config.norm == "pre"
        h = self.norm(p, name + "norm1", x) if pre else x
        attended = noise(name + "attention", self.attention(p, name + "attention.", h, groups, batch, last))
        x = self.carry(x, groups, batch, last) + attended
        if post:
            x = self.norm(p, name + "norm1", x)
        h = self.norm(p, name + "norm2", x) if pre else x
        x = x + noise(name + "mlp", self.mlp(p, name + "mlp.", h))
        return self.norm(p, name + "norm2", x) if post else x

    def norm(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        """Return LayerNorm ``name`` of rows ``x`` [..., R, D]."""
        return self.ops.layer_norm(x, p[name + ".weight"], p[name + ".bias"])

    def mlp(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        """Return the MLP ``name`` of rows ``x`` [..., R, D]."""
        h = self.ops.linear(x, p[name + "up.weight"], p.get(name + "up.bias"))
        h = self.gelu(h) if self.config.activation == "gelu" else F.relu(h)
        return self.ops.linear(h, p[name + "down.weight"], p.get(name + "down.bias"))

    def gelu(self, h: Tensor) -> Tensor:
        return F.gelu(h)

    def segments(self, x: Tensor, groups: tuple[Group, ...], batch: Batch) -> list[Tensor]:
        """Return ``x`` [..., R, D] cut into its positions."""
        sizes = [self.plan.size(group, batch.a.shape[-1]) for group in groups]
        return list(x.split(sizes, -2))

    def widen(self, segment: Tensor, source: Group, target: Group, batch: Batch) -> Tensor:
        """Return a position's rows for each row of ``target``; a single row is left to broadcasting."""
        if source in (target, "one"):
            return segment
        return self.ops.take(segment, self.plan.index(source, batch))

    def carry(self, x: Tensor, groups: tuple[Group, ...], batch: Batch, last: bool) -> Tensor:
        """Return the residual stream on the rows of the block's output."""
        targets = self.plan.prefix
        if groups == targets and not last:
            return x
        segments = self.segments(x, groups, batch)
        if last:
            return self.widen(segments[-1], groups[-1], targets[-1], batch)
        sizes = self.plan.sizes(1, batch.a.shape[-1])
        wide = [
            self.widen(s, g, t, batch).expand(*s.shape[:-2], n, s.shape[-1])
            for s, g, t, n in zip(segments, groups, targets, sizes, strict=True)
        ]
        return torch.cat(wide, -2)

    def attention(
        self, p: Parameters, name: str, x: Tensor, groups: tuple[Group, ...], batch: Batch, last: bool
    ) -> Tensor:
        """Return attention's output on its rows: in the last block those of the answer position only."""
        d, positions = self.config.d_model, len(groups)
        weight, bias = p[name + "qkv.weight"], p.get(name + "qkv.bias")
        if last:  # keys and values at every position, queries at the answer position only
            of_query, of_memory = weight.split([d, 2 * d], -2)
            query_bias, memory_bias = (None, None) if bias is None else bias.split([d, 2 * d], -1)
            memory = self.ops.linear(x, of_memory, memory_bias)
            query = self.ops.linear(self.segments(x, groups, batch)[-1], of_query, query_bias)
            queries = {positions - 1: query}
            memories = self.segments(memory, groups, batch)
        else:
            packed = self.segments(self.ops.linear(x, weight, bias), groups, batch)
            queries = {t: s[..., :d] for t, s in enumerate(packed)}
            memories = [s[..., d:] for s in packed]
        wide: dict[tuple[int, Group], Tensor] = {}  # keys and values of a position on a target group's rows
        outputs = []
        for t, query in queries.items():
            target = self.plan.prefix[t]
            for j in range(t + 1):
                if (j, target) not in wide:
                    wide[j, target] = self.widen(memories[j], groups[j], target, batch)
            mixed = self.attend(self.widen(query, groups[t], target, batch), [wide[j, target] for j in range(t + 1)])
            size = self.plan.size(target, batch.a.shape[-1])
            outputs.append(mixed.expand(*mixed.shape[:-2], size, d))
        rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -2)
        return self.ops.linear(rows, p[name + "out.weight"], p.get(name + "out.bias"))

    def attend(self, query: Tensor, memories: list[Tensor]) -> Tensor:
        """Return softmax(q k / sqrt(K)) v [..., M or 1, D].

        ``query`` has shape [..., M or 1, D]; each of ``memories`` [..., M or 1, 2D] has one position's keys and values.
        """
        d, heads = self.config.d_model, self.config.heads
        if len(memories) == 1:  # the softmax over a single key is 1
            return memories[0][..., d:]
        query = query.unflatten(-1, (heads, -1))  # [..., M, H, K]
        keys = [m[..., :d].unflatten(-1, (heads, -1)) for m in memories]
        values = [m[..., d:].unflatten(-1, (heads, -1)) for m in memories]
        weights = self.weights([(query * k).sum(-1) for k in keys], math.sqrt(d // heads))
        mixed = sum((w[..., None] * v for w, v in zip(weights, values, strict=True)), start=query.new_zeros(()))
        return mixed.flatten(-2)

    def weights(self, scores: list[Tensor], scale: float) -> Sequence[Tensor]:
        """Return the softmax of ``scores`` / ``scale`` over the list, one element [..., M or 1, H] per position."""
        stacked = torch.stack(torch.broadcast_tensors(*scores), -1)  # [..., M, H, T]
        return (stacked / scale).softmax(-1).unbind(-1)
