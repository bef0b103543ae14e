"""The transformer over a row plan: the mathematics of every lane, and its fastest form for one lane on a CPU.

Its logits and gradients equal those of ``model.Transformer`` at the last position, for every
option; tests/arithmetic checks 1e-12 in float64. With a stacked backend shapes have a leading
lane axis, so axes are counted from the end.

R rows, D model width, H heads, K head width, B batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.model import sinusoidal_positions
from grok.arithmetic.optimizer import stable_logits
from grok.arithmetic.rows import Batch, Group, RowPlan, take_rows
from grok.arithmetic.weights import Parameters
from grok.config.arithmetic import ModelConfig
from grok.numerics import linear_onednn

# The operations that differ between one lane and stacked lanes.
#
# ``lanes`` states the mathematics once, over these operations. :class:`OneLane` has no lane
# axis, so lanes cannot depend on each other. ``gpu.lanes.StackedLanes`` has a leading axis L and
# makes every matrix product a batched one, for devices that one lane cannot keep busy.


class OneLane:
    """Operations on activations [..., R, D] with parameters [..., *shape]; ``...`` is () here, and (L,) where stacked.

    Plain two-dimensional products, through torch's default or oneDNN.
    """

    def __init__(self, path: str = "plain") -> None:
        self.path = path

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        if self.path == "onednn":
            return linear_onednn(x, weight, bias)
        product = x @ weight.t()
        # separate addition, which a compiled step fuses with the next operation; addmm would copy the bias first
        return product if bias is None else product + bias

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return LayerNorm over the last axis."""
        return F.layer_norm(x, weight.shape, weight, bias)

    def take(self, x: Tensor, index: Tensor) -> Tensor:
        """Return rows ``index`` [..., B] of ``x`` [..., R, D]; gradients of one row are summed without atomics."""
        return take_rows(x, index)

    def losses(self, logits: Tensor, answer: Tensor) -> Tensor:
        """Return each example's cross-entropy [..., B]."""
        return F.cross_entropy(logits, answer, reduction="none")


# The transformer over a row plan: the mathematics of every lane.

Noise = Callable[[str, Tensor], Tensor]
"""Applies the dropout of the named place to an activation."""


def no_noise(place: str, x: Tensor) -> Tensor:
    return x


class LaneModel:
    """Logits at the answer position from parameters and a batch, for one architecture and task."""

    def __init__(self, config: ModelConfig, plan: RowPlan, backend: OneLane) -> None:
        self.config = config
        self.plan = plan
        self.ops = backend
        self.position_table: Tensor | None = None
        self.kept: list[Tensor] = []
        """Values that the gradients need, in the order of their computation; only a :class:`KeepingModel` has some."""

    def take_kept(self) -> list[Tensor]:
        """Return the kept values and clear the list."""
        kept, self.kept = self.kept, []
        return kept

    def logits(self, p: Parameters, batch: Batch, noise: Noise = no_noise) -> Tensor:  # [..., B, V]
        """Return the logits at the last position."""
        x = self.answers(p, batch, noise)
        if self.config.final_norm:
            x = self.norm(p, "final_norm", x)
        head = p["token_embedding.weight"] if self.config.tied else p["head.weight"]
        logits = self.ops.linear(x, head, p.get("head.bias"))
        if self.plan.prefix[-1] != "pair":  # the answer does not depend on both operands' examples
            logits = self.widen(logits, self.plan.prefix[-1], "pair", batch)
        return logits

    def answers(self, p: Parameters, batch: Batch, noise: Noise) -> Tensor:  # [..., R, D]
        """Return the rows of the last position after the last block."""
        x = noise("embedding", torch.cat(self.embed(p, batch), -2))
        groups = self.plan.own
        for layer in range(self.config.layers):
            last = layer == self.config.layers - 1
            x = self.block(p, f"blocks.{layer}.", x, groups, batch, last, noise)
            groups = self.plan.prefix
        return x

    def scores(self, p: Parameters, batch: Batch, kind: str, noise: Noise = no_noise) -> tuple[Tensor, Tensor]:
        """Return each example's loss, see ``losses``, and whether its answer has the largest logit; [..., B]."""
        logits = self.logits(p, batch, noise)
        return self.losses(logits, batch.answer, kind), logits.detach().argmax(-1) == batch.answer

    def losses(self, logits: Tensor, answer: Tensor, kind: str) -> Tensor:
        """Return each example's loss [..., B] of the ``kind`` that ``train.loss`` names."""
        return self.ops.losses(stable_logits(logits) if kind == "stablemax" else logits, answer)

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
        h = self.hidden(p, name, x)
        return self.ops.linear(h, p[name + "down.weight"], p.get(name + "down.bias"))

    def hidden(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        """Return the neurons [..., R, F] of the MLP ``name``, after the activation."""
        h = self.ops.linear(x, p[name + "up.weight"], p.get(name + "up.bias"))
        return self.gelu(h) if self.config.activation == "gelu" else F.relu(h)

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


# LayerNorm before weight and bias, with its gradient, for the compiled steps' own autograd functions.

EPS: Final = 1e-5
"""Torch's default, which the reference model uses."""


def standardise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [..., D] with mean 0 and variance 1, and each row's 1 / standard deviation [..., 1]."""
    centred = x - x.mean(-1, keepdim=True)
    rate = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
    return centred * rate, rate


def standardise_gradient(grad: Tensor, normal: Tensor, rate: Tensor) -> Tensor:
    """Return the gradient with respect to the input of ``standardise``, [..., D].

    Args:
        grad: gradient with respect to its result.
        normal: its first result.
        rate: its second result.
    """
    along = (grad * normal).mean(-1, keepdim=True)
    return rate * (grad - grad.mean(-1, keepdim=True) - normal * along)


# The lane's mathematics in the form that compiles to the fastest step of one lane on a CPU.
#
# Equal to ``lanes`` over ``OneLane`` up to rounding; tests/arithmetic checks 1e-12 in
# float64. Values that a gradient needs are computed in the forward pass and *kept*: they are
# outputs of the graph, so that the compiler stores them instead of computing them again.
#
# R rows, D width, M rows of a target, H heads, B batch.

ERFC_SLOPE: Final = 0.39
ERFC: Final = (
    -0.22745735101576625,
    0.8863349270998976,
    -0.6348589753915743,
    0.6491171444982282,
    0.09156804964776466,
    0.23529620516145022,
)
"""Coefficients of erfc(z) exp(z^2), z >= 0, as a polynomial in t = 1 / (1 + ERFC_SLOPE z); highest power first, no
constant term.

Source: Abramowitz & Stegun 7.1.26, with one power more. Fitted by linear programming for the smallest maximal error
of erfc: 9e-9, a sixth of float32's rounding at 1; exact at z = 0. Torch's float32 erf has five powers (1.5e-7).
"""


class FusedLane(OneLane):
    """One lane whose bias gradients fuse with other operations, or call the fastest library function."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.path == "onednn" or bias is None:
            return super().linear(x, weight, bias)
        product: Tensor = _AddBias.apply(x @ weight.t(), bias)  # type: ignore[no-untyped-call]
        return product


class KeepingModel(LaneModel):
    """``LaneModel`` whose norms keep what their gradients need, of one lane or of stacked ones."""

    def norm(self, p: Parameters, name: str, x: Tensor) -> Tensor:
        y, normal, rate = _LayerNorm.apply(x, p[name + ".weight"], p[name + ".bias"])  # type: ignore[no-untyped-call]
        self.keep(normal, rate)
        return y  # type: ignore[no-any-return]

    def keep(self, *tensors: Tensor) -> None:
        if torch.is_grad_enabled():
            self.kept.extend(tensors)


class FusedModel(KeepingModel):
    """One lane's model, whose activation and attention weights keep what their gradients need, too."""

    def __init__(self, config: ModelConfig, plan: RowPlan, path: str) -> None:
        super().__init__(config, plan, FusedLane(path))

    def gelu(self, h: Tensor) -> Tensor:
        if h.dtype != torch.float32:
            return super().gelu(h)
        value, slope = _Gelu.apply(h)  # type: ignore[no-untyped-call]
        self.keep(slope)
        return value  # type: ignore[no-any-return]

    def weights(self, scores: list[Tensor], scale: float) -> Sequence[Tensor]:
        # one tensor per position: with the few positions as the last axis, three quarters of a vector register are idle
        weights: tuple[Tensor, ...] = _Softmax.apply(*torch.broadcast_tensors(*[s / scale for s in scores]))  # type: ignore[no-untyped-call]
        self.keep(*weights)
        return weights


class _AddBias(torch.autograd.Function):
    """Rows [R, D] plus a bias [D]; the bias's gradient is a matrix product with ones, which is one library call."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        return grad, (grad.new_ones(1, grad.shape[0]) @ grad)[0]


class _LayerNorm(torch.autograd.Function):
    """LayerNorm of rows [..., R, D], ``...`` as in :class:`OneLane`.

    Also returns the rows before weight and bias, and each row's 1 / standard deviation.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal, rate = standardise(x)
        ctx.save_for_backward(normal, rate, weight)
        ctx.mark_non_differentiable(normal, rate)
        return normal * weight.unsqueeze(-2) + bias.unsqueeze(-2), normal, rate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normal, rate, weight = ctx.saved_tensors
        grad = grads[0]
        of_x = standardise_gradient(grad * weight.unsqueeze(-2), normal, rate)
        return of_x, (grad * normal).sum(-2), grad.sum(-2)


class _Gelu(torch.autograd.Function):
    """GELU in float32; also returns its derivative. Both use one exponential."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        z = h * math.sqrt(0.5)
        density = torch.exp(-z * z)
        t = 1 / (1 + ERFC_SLOPE * z.abs())
        tail = ERFC[0] * t
        for coefficient in ERFC[1:]:
            tail = (tail + coefficient) * t
        tail = 0.5 * tail * density  # the normal distribution function at -|h|
        below = torch.where(h < 0, tail, 1 - tail)
        slope = below + h * density * (1 / math.sqrt(2 * math.pi))
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(slope)
        return h * below, slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope  # type: ignore[no-any-return]


class _Softmax(torch.autograd.Function):
    """The softmax over a list of scores of one shape [M, H], as a tuple of weights."""

    @staticmethod
    def forward(ctx: Any, *scores: Tensor) -> tuple[Tensor, ...]:
        top = scores[0]
        for score in scores[1:]:
            top = torch.maximum(top, score)
        shares = [torch.exp(score - top) for score in scores]
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        weights = tuple(share / total for share in shares)
        ctx.save_for_backward(*weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        weights = ctx.saved_tensors
        mean = weights[0] * grads[0]
        for weight, grad in zip(weights[1:], grads[1:], strict=True):
            mean = mean + weight * grad
        return tuple(weight * (grad - mean) for weight, grad in zip(weights, grads, strict=True))
