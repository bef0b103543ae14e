"""Initial weights: every tensor is drawn from the init stream at its own name.

So a seed for one layer (``seeds.layers``) changes only that layer's tensors, and an added
layer changes no other tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grok.arithmetic.model import Transformer
from grok.arithmetic.task import shapes_of
from grok.config.arithmetic import ArithmeticConfig, ModelConfig
from grok.numerics import move_by_ulps, unallocated
from grok.runs import norms_of
from grok.streams import Stream, layer_seeds

Parameters = dict[str, Tensor]
"""A model's parameters by name, in the model's order; a tied head has no parameter."""


@dataclass(frozen=True, slots=True)
class Law:
    """The distribution of one initial tensor.

    ``kind`` is ``constant`` (of value ``width``), ``uniform`` (in ±``width``) or ``normal`` (with standard
    deviation ``width``).
    """

    kind: str
    width: float


def norms(parameters: Parameters) -> tuple[float, float, dict[str, float]]:
    """Return (weight_norm, weight_norm_all, norm per component), computed in float64."""
    return norms_of({name: float(p.detach().double().square().sum()) for name, p in parameters.items()})


def parameter_shapes(config: ArithmeticConfig) -> dict[str, tuple[int, ...]]:
    """Return every parameter's shape by name, in the reference model's order."""
    needed = shapes_of(config.task)
    with unallocated():
        model = Transformer(config.model, vocab_size=needed.tokens, length=needed.length)
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def law_of(name: str, shape: tuple[int, ...], model: ModelConfig) -> Law:
    """Return the distribution of the tensor ``name`` under ``model.init``.

    ``torch``: the defaults of ``nn.MultiheadAttention``, ``nn.Linear``, ``nn.Embedding`` and
    ``nn.LayerNorm``. ``nanda``: the normal distributions of Nanda et al. 2023, with standard
    deviation 1/sqrt(D) for embeddings and matrices and 1/sqrt(V) for the head. ``gpt2``: normal
    with standard deviation 0.02. The last two have zero biases.
    """
    layer, _, kind = name.rpartition(".")
    if "norm" in layer:
        return Law("constant", 1.0 if kind == "weight" else 0.0)
    if kind == "bias" and (model.init != "torch" or layer.endswith(("attention.qkv", "attention.out"))):
        return Law("constant", 0.0)
    if model.init == "nanda":
        return Law("normal", 1 / math.sqrt(shape[0] if layer == "head" else model.d_model))
    if model.init == "gpt2":
        return Law("normal", 0.02)
    if layer.endswith("embedding"):
        return Law("normal", 1.0)
    if layer.endswith("attention.qkv"):  # nn.MultiheadAttention: Xavier over the packed 3D × D matrix
        return Law("uniform", math.sqrt(6 / (shape[0] + shape[1])))
    fan_in = model.d_ff if layer.endswith("mlp.down") else model.d_model
    assert fan_in is not None
    return Law("uniform", 1 / math.sqrt(fan_in))  # Kaiming with a = sqrt(5), and its bias bound


def initial_parameters(config: ArithmeticConfig, dtype: torch.dtype = torch.float32) -> Parameters:
    """Return the initial parameters of one lane, on the CPU, in ``dtype``.

    Draws are made in float64 and rounded once, so float32 and float64 runs start from the same weights.

    Raises:
        ConfigError: ``seeds.layers`` names a tensor that the model does not have.
    """
    streams = config.stream_seeds()
    shapes = parameter_shapes(config)
    seeds = layer_seeds(list(shapes), config.seeds.layers, streams.init)
    parameters = {}
    for name, shape in shapes.items():
        law = law_of(name, shape, config.model)
        n = math.prod(shape)
        if law.kind == "constant":
            values = np.full(n, law.width)
        else:
            stream = Stream("init", seeds[name]).at(name)
            drawn = stream.normal(n) if law.kind == "normal" else 2 * stream.uniform(n) - 1
            values = drawn * (law.width * config.model.init_scale)
        tensor = torch.from_numpy(values).to(dtype).reshape(shape)
        if config.perturb.ulps and law.kind != "constant":
            tensor = move_by_ulps(tensor, config.perturb.ulps, Stream("perturb", streams.perturb).at(name))
        parameters[name] = tensor
    return parameters
