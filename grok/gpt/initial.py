"""Initial weights: each tensor is drawn from the init stream at its name.

So another seed for one layer (``seeds.layers``) changes this layer's tensors only, and another layer changes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from grok.config.gpt import GptConfig, ModelConfig
from grok.gpt.model import GPT, OwnModel
from grok.numerics import move_by_ulps, unallocated
from grok.streams import Stream, layer_seeds
from grok.user import drawn_weights, make_module, perturbed, refuse_unseeded


def build_model(
    config: GptConfig,
    *,
    vocab_size: int,
    device: torch.device,
    dtype: torch.dtype,
    share: Callable[[GPT], None] | None = None,
) -> GPT:
    """Return the model of ``config`` with its initial weights.

    Weights are drawn in float64 and rounded once. ``share`` leaves this process a share of every tensor. The process
    then draws one tensor after the other and keeps its share, so the whole model is never in its memory. With
    ``config.init_from`` the weights are those of that folder, and nothing is drawn.

    Raises:
        ConfigError: ``seeds.layers`` names a tensor that the model lacks.
        CheckpointError: the weights of ``init_from`` are missing.
    """
    if config.model.plugin:
        return _own_model(config, vocab_size).to(device, dtype)
    with unallocated():
        model = GPT(config.model, vocab_size=vocab_size)
    model.own_loss = config.train.loss_plugin
    model = model.to(dtype)
    if share is not None:
        share(model)
    model = model.to_empty(device=device)
    if config.model.tied:  # `to_empty` has made two tensors
        model.head.weight = model.token_embedding.weight
    imported: dict[str, Tensor] = {}
    if config.init_from is not None:
        from grok.gpt.hf import initial_weights

        imported = initial_weights(config, model)
    streams = config.stream_seeds()
    seeds = layer_seeds([name for name, _ in model.named_parameters()], config.seeds.layers, streams.init)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.empty(parameter.shape, dtype=dtype) if isinstance(parameter, DTensor) else parameter
            if imported:
                drawn.copy_(imported[name])
            else:
                fill(drawn, name, config.model, Stream("init", seeds[name]).at(name))
            if config.perturb.ulps and drawn.ndim > 1:  # norms and biases are constant
                drawn.copy_(move_by_ulps(drawn, config.perturb.ulps, Stream("perturb", streams.perturb).at(name)))
            if name in ("token_embedding.weight", "head.weight"):
                drawn[vocab_size:] = 0.0
            if isinstance(parameter, DTensor):
                parameter.copy_(
                    distribute_tensor(drawn.to(device), parameter.device_mesh, parameter.placements, src_data_rank=None)
                )
    return model


def shapes_for(config: ModelConfig, vocab_size: int) -> dict[str, int]:
    """Return what the constructor of a model of the user's own may ask for, by the parameter's name."""
    return {"vocab_size": vocab_size, "classes": vocab_size, "context": config.context, "length": config.context}


def _own_model(config: GptConfig, vocab_size: int) -> GPT:
    spec, shapes, seeds = config.model.plugin, shapes_for(config.model, vocab_size), config.stream_seeds()
    module = make_module(spec, 0, shapes)
    refuse_unseeded(spec, module, shapes)
    weights = perturbed(drawn_weights(spec, shapes, config), config.perturb.ulps, seeds.perturb)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name])
    model = OwnModel(module, config.model, vocab_size=vocab_size)
    model.own_loss = config.train.loss_plugin
    return model


def fill(tensor: Tensor, name: str, config: ModelConfig, stream: Stream) -> None:
    """Fill one tensor in place: norms 1 and 0, biases 0, matrices normal (Radford et al. 2019)."""
    layer, _, kind = name.rpartition(".")
    if "norm" in layer.rpartition(".")[2]:
        tensor.fill_(1.0 if kind == "weight" else 0.0)
    elif kind == "bias":
        tensor.zero_()
    else:
        std = config.init_std()
        if config.init_residual and layer.endswith((".attention.out", ".mlp.down")):
            std /= math.sqrt(2 * config.layers)
        tensor.copy_(torch.from_numpy(stream.normal(tensor.numel()) * std).reshape(tensor.shape))
