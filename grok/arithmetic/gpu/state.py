"""The state of stacked lanes: everything that a step reads and writes, in buffers with fixed addresses.

A captured graph refers to addresses, so buffers are never replaced, only overwritten; a
lane that gets a new run is filled in place. L lanes, N training examples, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grok.arithmetic.lanes import Noise, no_noise
from grok.arithmetic.optimizer import decays
from grok.arithmetic.program import dtype_of
from grok.arithmetic.rows import RowPlan
from grok.arithmetic.task import FIRST_NUMBER, Equations
from grok.arithmetic.weights import Parameters, parameter_shapes
from grok.config.arithmetic import ArithmeticConfig, ModelConfig, OptimConfig
from grok.streams import Stream

# Dropout on the device: a mask is a function of the lane's dropout seed, the step, the place and the element.
#
# The host hashes a stream's key; the device mixes it with a counter in integer arithmetic, so
# the masks are equal on every device. They differ from those of a single lane on a CPU, which
# come from torch's generator.
#
# Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64).


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


GOLDEN: Final = _signed(0x9E3779B97F4A7C15)
FIRST: Final = _signed(0xBF58476D1CE4E5B9)
SECOND: Final = _signed(0x94D049BB133111EB)
BITS: Final = 53
"""Number of the upper bits of a mixed 64-bit word that are compared with the rate."""


def places(model: ModelConfig) -> list[str]:
    """Return the names of the places of dropout; an empty list without dropout."""
    if model.dropout == 0:
        return []
    return ["embedding", *[f"blocks.{i}.{part}" for i in range(model.layers) for part in ("attention", "mlp")]]


def keys_of(model: ModelConfig, seed: int) -> list[int]:
    """Return each place's key for a dropout seed."""
    return [Stream("dropout", seed).at("lanes", place).seed64() for place in places(model)]


def dropout(model: ModelConfig, keys: Tensor, step: Tensor) -> Noise:
    """Return the dropout of each lane's next update: ``keys`` [places, L], ``step`` [L]; inverted scaling."""
    if model.dropout == 0:
        return no_noise
    index = {place: i for i, place in enumerate(places(model))}
    least = round(model.dropout * 2**BITS)

    def noise(place: str, x: Tensor) -> Tensor:  # [L, R, D]
        elements = x.shape[1] * x.shape[2]
        counter = torch.arange(1, elements + 1, device=x.device)
        words = mixed(keys[index[place]][:, None] + (step[:, None] * elements + counter) * GOLDEN)
        keep = _shifted(words, 64 - BITS) >= least
        kept: Tensor = x * keep.view(x.shape).to(x.dtype) / (1 - model.dropout)
        return kept

    return noise


def mixed(words: Tensor) -> Tensor:
    """Return SplitMix64's output function of 64-bit words, stored as signed integers; products wrap around."""
    words = (words ^ _shifted(words, 30)) * FIRST
    words = (words ^ _shifted(words, 27)) * SECOND
    mixed_words: Tensor = words ^ _shifted(words, 31)
    return mixed_words


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Return the words shifted right with zeros from the left (a signed shift would repeat the sign bit)."""
    shifted: Tensor = (words >> bits) & (2 ** (64 - bits) - 1)
    return shifted


# The state of stacked lanes: everything that a step reads and writes, in buffers with fixed addresses.

MOMENTS = ("first_moment", "second_moment")
ROW = 32
"""How many float64 values are 256 bytes."""
SORTED_AT_ONCE = 2**23
"""Largest number of random words in one sort, which needs about 40 bytes of device memory for each."""
_TOP_BIT = -(2**63)


class LaneState:
    """The tensors of ``width`` lanes of one program on a device."""

    SCALARS = ("lr", "warmup_steps", "beta1", "beta2", "eps", "grokfast_alpha", "grokfast_lamb", "norm")
    """Rows of ``settings``, before one for each parameter's weight decay."""

    def __init__(self, config: ArithmeticConfig, width: int, device: torch.device) -> None:
        self.config, self.width, self.device = config, width, device
        self.dtype = dtype_of(config)
        shapes = parameter_shapes(config)
        self.names = list(shapes)
        self._one_lane = {n: torch.empty(shape, device="meta") for n, shape in shapes.items()}
        examples = config.task.train_examples()
        right = RowPlan.of(config.task).right.start

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(width, *shape, dtype=dtype, device=device)

        self.parameters = {n: zeros(*s, dtype=self.dtype).requires_grad_() for n, s in shapes.items()}
        kept = (*MOMENTS, "slow_gradient") if config.optim.grokfast == "ema" else MOMENTS
        self.moments = {m: {n: zeros(*s, dtype=self.dtype) for n, s in shapes.items()} for m in kept}
        """The optimiser's state, by the names of a checkpoint's groups."""
        self.settings = torch.zeros(len(self.SCALARS) + len(shapes), width, dtype=torch.float64, device=device)
        self.train_set = torch.full((3, width, examples), FIRST_NUMBER, device=device)  # a, b, answer
        self.val_set = torch.full((3, width, config.task.examples() - examples), FIRST_NUMBER, device=device)
        for columns in (self.train_set, self.val_set):
            columns[1] = right  # idle lanes compute valid equations
        self.order = zeros(examples, dtype=torch.int64)
        """The epoch's permutation of each lane's training examples."""
        self.noise_keys = torch.zeros(len(places(config.model)), width, dtype=torch.int64, device=device)
        self.step = zeros(dtype=torch.int64)
        """Number of updates made."""
        self.alive = zeros(dtype=torch.bool)
        """Whether the lane trains; a step changes no number of the others."""
        self.loss, self.accuracy = zeros(dtype=self.dtype), zeros(dtype=self.dtype)
        """Of the last mini-batch, before its update."""
        self.gradient_norm = zeros(dtype=torch.float64)
        """The same, where it is measured."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every buffer by name."""
        for group, named in (("parameters", self.parameters), *self.moments.items()):
            for name, tensor in named.items():
                yield f"{group}.{name}", tensor
        yield from ((name, value) for name, value in vars(self).items() if isinstance(value, Tensor))

    def scalar(self, name: str) -> Tensor:
        """Return one setting of every lane, float64 [L]."""
        return self.settings[self.SCALARS.index(name)]

    def decay(self) -> Tensor:
        """Return every parameter's weight decay in every lane, float64 [P, L]."""
        return self.settings[len(self.SCALARS) :]

    @torch.no_grad()
    def put(self, lane: int, parameters: Parameters) -> None:
        """Write weights into a lane."""
        for name in self.names:
            self.parameters[name][lane].copy_(parameters[name])

    @torch.no_grad()
    def seat(self, lane: int, parameters: Parameters, moments: dict[str, Parameters], step: int) -> None:
        """Write a run's weights and moments at ``step`` into a lane; without moments they are zero."""
        self.put(lane, parameters)
        for name in self.names:
            for moment, named in self.moments.items():
                named[name][lane] = moments[moment][name] if moments else 0
        self.step[lane] = step
        self.loss[lane] = self.accuracy[lane] = 0
        self.alive[lane] = True

    def instruct(self, lane: int, optim: OptimConfig, *, dropout_seed: int = 0, norm: float = 0.0) -> None:
        """Write a lane's optimiser settings, dropout keys and the target of the norm clamp."""
        scalars = [optim.lr, optim.warmup_steps, *optim.betas, optim.eps]
        scalars += [optim.grokfast_alpha, optim.grokfast_lamb, norm]
        decay = [optim.weight_decay if decays(n, self._one_lane[n], optim) else 0.0 for n in self.names]
        self.settings[:, lane].copy_(torch.tensor([*scalars, *decay], dtype=torch.float64))
        self.noise_keys[:, lane].copy_(torch.tensor(keys_of(self.config.model, dropout_seed), dtype=torch.int64))

    def show(self, lane: int, train_set: Equations, val_set: Equations) -> None:
        """Write a run's data into a lane."""
        for columns, equations in ((self.train_set, train_set), (self.val_set, val_set)):
            tokens = np.stack([equations.a, equations.b, equations.answer]) + FIRST_NUMBER
            columns[:, lane].copy_(torch.from_numpy(tokens))

    def rest(self, lane: int) -> None:
        """Make a lane idle: steps no longer change it."""
        self.alive[lane] = False

    def shuffle(self, epochs: Sequence[tuple[int, Stream]]) -> None:
        """Queue the data order of an epoch for lanes: the stream's permutation, sorted on the device.

        The words are copied from pinned memory as signed integers with the same order. Their
        stable sort equals the stream's permutation on the host. This does not synchronise.
        """
        examples = self.order.shape[1]
        at_once = max(1, SORTED_AT_ONCE // examples)
        for start in range(0, len(epochs), at_once):
            part = epochs[start : start + at_once]
            words = torch.empty(len(part), examples, dtype=torch.int64, pin_memory=self.device.type == "cuda")
            for row, (_, stream) in zip(words, part, strict=True):
                row.copy_(torch.from_numpy(stream.words(examples).view(np.int64)))
            order = torch.argsort(words.to(self.device, non_blocking=True) ^ _TOP_BIT, dim=1, stable=True)
            for row, (lane, _) in zip(order, part, strict=True):
                self.order[lane].copy_(row)

    def fetch(self) -> tuple[list[float], list[float], list[int], list[bool]]:
        """Return (loss, accuracy, step, alive) of every lane; synchronises with the device once."""
        rows = torch.stack([self.loss.double(), self.accuracy.double(), self.step.double(), self.alive.double()])
        loss, accuracy, step, alive = rows.tolist()
        return loss, accuracy, [int(s) for s in step], [bool(a) for a in alive]

    @torch.no_grad()
    def squared_norms(self) -> dict[str, list[float]]:
        """Return each parameter's sum of squares in every lane, in float64."""
        return dict(zip(self.names, squares_of(self.parameters.values()).tolist(), strict=True))

    @torch.no_grad()
    def lanes(self, lanes: Sequence[int], groups: Sequence[str]) -> list[dict[str, Tensor]]:
        """Return the tensors of ``lanes`` on the CPU, one dict ``group.name -> tensor`` for each."""
        if not lanes:
            return []
        index = torch.tensor(lanes, device=self.device)
        held = {"parameters": self.parameters, **self.moments}
        result: list[dict[str, Tensor]] = [{} for _ in lanes]
        for group in groups:
            for name, tensor in held[group].items():
                for one, values in zip(result, tensor.index_select(0, index).cpu().unbind(), strict=True):
                    one[f"{group}.{name}"] = values.clone()
        return result


def squares_of(tensors: Iterable[Tensor]) -> Tensor:
    """Return each tensor's sum of squares in every lane, float64 [P, L].

    The rows that are summed have zeros at their ends, so that each begins at a multiple of 256 bytes: a device adds the
    first elements of a row separately up to an even address, so the order of the sum, and its last bits, would depend
    on the row's place.
    """
    rows = (tensor.double().square().flatten(1) for tensor in tensors)
    filled = (F.pad(row, (0, -row.shape[1] % ROW)) if row.shape[1] % ROW else row for row in rows)  # seldom a copy
    return torch.stack([row.sum(1) for row in filled])
