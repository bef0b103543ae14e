"""The reference model: the diary's transformer for one lane, in the papers' form. The lanes must equal it.

Letters of the axes, the same everywhere: L lanes (runs of one stack), B batch (examples of a mini-batch), T tokens
(positions of a sequence), R rows (distinct prefix and position of a row plan), D model width, H heads, K width of
one head (D / H), F inner width of the MLP, V vocabulary.

Sources: Vaswani et al. 2017 (the block); Power et al. 2022 (the size); the seed diary (biases, final norm, untied
head, initialisation).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grok.config.arithmetic import ModelConfig


class CausalSelfAttention(nn.Module):
    """Multi-head self-attention in which a position attends to itself and earlier ones (Vaswani et al. 2017)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.d_model
        self.heads = config.heads
        self.qkv = nn.Linear(d, 3 * d, bias=config.bias)
        self.out = nn.Linear(d, d, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)  # each [B, H, T, K]
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)  # [B, H, T, T]
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(b, t, d)
        attended: Tensor = self.out(mixed)
        return attended


class MLP(nn.Module):
    """Two linear layers with an activation between them, D to F to D, at each position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ff is not None
        self.up = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = F.gelu if config.activation == "gelu" else F.relu

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down(self.activation(self.up(x)))
        return projected


class Block(nn.Module):
    """Attention and MLP, each with a residual connection; LayerNorm after it, before it, or none (``model.norm``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.order = config.norm
        self.attention = CausalSelfAttention(config)
        self.mlp = MLP(config)
        if config.norm != "none":
            self.norm1 = nn.LayerNorm(config.d_model)
            self.norm2 = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "post":
            x = self.norm1(x + self.attention(x))
            x = self.norm2(x + self.mlp(x))
        elif self.order == "pre":
            x = x + self.attention(self.norm1(x))
            x = x + self.mlp(self.norm2(x))
        else:
            x = x + self.attention(x)
            x = x + self.mlp(x)
        return x


class Transformer(nn.Module):
    """Decoder-only transformer over sequences of ``length`` tokens out of ``vocab_size``."""

    def __init__(self, config: ModelConfig, *, vocab_size: int, length: int) -> None:
        super().__init__()
        d = config.d_model
        self.token_embedding = nn.Embedding(vocab_size, d)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(length, d)
        else:
            self.register_buffer(
                "position_table", sinusoidal_positions(length, d).to(torch.get_default_dtype()), persistent=False
            )
        self.learned_positions = config.positions == "learned"
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(d) if config.final_norm else nn.Identity()
        self.head = nn.Linear(d, vocab_size, bias=config.bias)
        if config.tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> logits [B, T, V]
        positions = self.position_embedding.weight if self.learned_positions else self.position_table
        x = self.token_embedding(tokens) + positions
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.final_norm(x))
        return logits


def sinusoidal_positions(length: int, d: int) -> Tensor:
    """Return the float64 [T, D] table of Vaswani et al. 2017: sines in even columns, cosines in odd ones."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    column = torch.arange(0, d, 2, dtype=torch.float64)[None, :]
    angle = position / 10000 ** (column / d)
    table = torch.zeros(length, d, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d // 2]
    return table
