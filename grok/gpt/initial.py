"""Initial weights: every tensor drawn from the init stream at its own name.

Re-seeding one layer (``seeds.layers``) therefore changes that layer's tensors and no
others, and adding a layer moves none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grok.config.gpt import GptConfig, ModelConfig
from grok.gpt.model import GPT
from grok.streams import Stream, layer_seeds


def build_model(config: GptConfig, *, vocab_size: int, device: torch.device, dtype: torch.dtype) -> GPT:
    """Return the model of ``config`` with its initial weights.

    Draws are made in float64 and rounded once.

    Raises:
        ConfigError: ``seeds.layers`` names a tensor that is not there.
    """
    with torch.device("meta"):
        model = GPT(config.model, vocab_size=vocab_size)
    model = model.to(dtype).to_empty(device=device)
    if config.model.tied:  # `to_empty` makes two tensors of one
        model.head.weight = model.token_embedding.weight
    seeds = layer_seeds([name for name, _ in model.named_parameters()], config.seeds.layers, config.stream_seeds().init)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fill(parameter, name, config.model, Stream("init", seeds[name]).at(name))
        for tensor in {model.token_embedding.weight, model.head.weight}:
            tensor[vocab_size:] = 0.0
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
