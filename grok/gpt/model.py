"""GPT-2, and the options that later papers changed. B batch, T tokens, D width, H heads, K head width, V vocabulary.

Sources: Radford et al. 2019 (GPT-2); Su et al. 2021 (rotary positions); Press et al. 2021
(ALiBi); Zhang & Sennrich 2019 (RMSNorm); Dehghani et al. 2023 (norms on queries and keys);
Shazeer 2020 (SwiGLU); Ainslie et al. 2023 (grouped queries); Chowdhery et al. 2022 (z-loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from grok.config.gpt import ModelConfig
from grok.errors import ConfigError
from grok.gpt import parts
from grok.numerics import linear, unallocated
from grok.plugins import Spec, label
from grok.user import losses_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "swiglu": F.silu,
}


class Linear(nn.Linear):
    """A linear layer that computes its product by one of the paths of :mod:`grok.numerics`."""

    path = "plain"

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.path)


def norm_of(config: ModelConfig, width: int) -> nn.Module:
    if config.norm_type == "rmsnorm":
        return nn.RMSNorm(width, eps=config.norm_eps)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.bias)


class CausalSelfAttention(nn.Module):
    dropped = 0.0
    """Share of the attention weights that the fused kernel drops in training."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        d = config.d_model
        self.config, self.layer, self.width = config, layer, d // config.heads
        self.widths = [d, config.key_heads() * self.width, config.key_heads() * self.width]
        self.qkv = Linear(d, sum(self.widths), bias=config.bias)
        self.out = Linear(d, d, bias=config.bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = norm_of(config, self.width), norm_of(config, self.width)

    def forward(
        self, x: Tensor, places: Tensor | None, bias: Tensor | None, masks: parts.Masks, cache: parts.KVCache | None
    ) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, -1, self.width).transpose(1, 2) for y in self.qkv(x).split(self.widths, dim=2))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.config.positions == "rotary":
            assert places is not None
            q, k = parts.rotate(q, places), parts.rotate(k, places)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        mask = masks.get(f"blocks.{self.layer}.attention")
        how = {"scaling": self.config.qk_scaling, "softmax": self.config.softmax}
        dropped = self.dropped if torch.is_grad_enabled() else 0.0
        y = parts.attend(q, k, v, bias=bias, mask=mask, dropped=dropped, **how)
        attended: Tensor = self.out(y.transpose(1, 2).reshape(b, t, d))
        return attended


class MLP(nn.Module):
    """``down(activation(up(x)))``; of SwiGLU ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.d_ff is not None
        self.up = Linear(config.d_model, config.d_ff, bias=config.bias)
        self.gate = Linear(config.d_model, config.d_ff, bias=config.bias) if config.activation == "swiglu" else None
        self.down = Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        projected: Tensor = self.down(inner)
        return projected


class Block(nn.Module):
    recompute = "none"
    """What the backward pass recomputes: ``none``, ``attention``, or the whole block (``blocks``)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.pre, self.name = config.norm == "pre", f"blocks.{layer}"
        self.norm1 = norm_of(config, config.d_model)
        self.attention = CausalSelfAttention(config, layer)
        self.norm2 = norm_of(config, config.d_model)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, places: Tensor | None, bias: Tensor | None, masks: parts.Masks, cache: parts.KVCache | None
    ) -> Tensor:
        """Return the block's output [B, T, D]."""
        return kept_or_again(self.recompute == "blocks", self.compute, x, places, bias, masks, cache)

    def compute(
        self, x: Tensor, places: Tensor | None, bias: Tensor | None, masks: parts.Masks, cache: parts.KVCache | None
    ) -> Tensor:
        first, second = masks.get(f"{self.name}.residual1"), masks.get(f"{self.name}.residual2")
        read, attention = self.norm1(x) if self.pre else x, self.recompute == "attention"
        x = x + parts.drop(kept_or_again(attention, self.attention, read, places, bias, masks, cache), first)
        if self.pre:
            return x + parts.drop(self.mlp(self.norm2(x)), second)
        x = self.norm1(x)
        normed: Tensor = self.norm2(x + parts.drop(self.mlp(x), second))
        return normed


def kept_or_again(again: bool, function: Callable[..., Tensor], *args: object) -> Tensor:
    """Return ``function(*args)``.

    ``again``: the backward pass calls it again, and only its arguments are kept until then (Chen et al. 2016). It must
    not draw random numbers.
    """
    if not (again and torch.is_grad_enabled()):
        return function(*args)
    result: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return result


class GPT(nn.Module):
    """A decoder-only transformer over ``vocab_size`` tokens.

    The embedding may have more rows (``model.vocab_multiple``); they are not part of the
    loss, and their logits are never returned. Weights come from :mod:`grok.gpt.initial`.
    """

    document_end: int | None = None
    """The id of ``<|endoftext|>`` if the loss treats each document as a text of its own; None: it does not."""
    own_loss: Spec | None = None
    """The user's own loss, in place of the cross-entropy while training; None: there is none."""

    def __init__(self, config: ModelConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        rows = -(-vocab_size // config.vocab_multiple) * config.vocab_multiple
        self.token_embedding = nn.Embedding(rows, config.d_model)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.d_model)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.final_norm = norm_of(config, config.d_model)
        self.head = Linear(config.d_model, rows, bias=False)
        if config.tied:
            self.head.weight = self.token_embedding.weight

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    def use(self, *, products: str, recompute: str, fused_dropout: bool) -> None:
        """Set how it computes.

        Args:
            products: path of every product with a weight: plain (the default) or onednn.
            recompute: what the backward pass recomputes instead of keeping it: ``none``, ``attention`` or ``blocks``.
            fused_dropout: let the fused kernel drop attention weights, without masks.
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.path = products
            elif isinstance(module, Block):
                module.recompute = recompute
            elif isinstance(module, CausalSelfAttention) and fused_dropout:
                module.dropped = self.config.dropout_attention or 0.0

    def features(
        self,
        tokens: Tensor,
        masks: parts.Masks | None = None,
        cache: parts.KVCache | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Return what the head reads, [B, T, D], for ``tokens`` [B, T] (after those in ``cache``).

        ``visible`` [B, T, T]: each token sees these tokens only, and its learned position is counted from the first
        of them; None: all tokens before it and itself.
        """
        masks = masks or {}
        config, device = self.config, self.token_embedding.weight.device
        past, t = cache.length if cache is not None else 0, tokens.shape[1]
        x, places, bias = self.token_embedding(tokens), None, None
        if config.positions == "learned" and visible is None:
            x = x + self.position_embedding.weight[past : past + t]
        elif config.positions == "learned":
            assert visible is not None
            x = x + self.position_embedding(visible.sum(-1) - 1)
        elif config.positions == "rotary":
            places = parts.rotary(past, t, config.d_model // config.heads, device)
        else:
            bias = parts.alibi(past, t, config.heads, device)
        if visible is not None:
            bias = parts.only_visible(visible, bias, self._bias_type(x))
        x = parts.drop(x, masks.get("embedding"))
        for block in self.blocks:
            x = block(x, places, bias, masks, cache)
        features: Tensor = self.final_norm(x)
        return features

    def _bias_type(self, x: Tensor) -> torch.dtype:
        """Return the type of the scores' bias: theirs, but float32 for ALiBi's distances outside a fused kernel."""
        kind, alibi = x.device.type, self.config.positions == "alibi"
        if torch.is_autocast_enabled(kind) and (not alibi or (x.is_cuda and self.config.softmax == "fused")):
            return torch.get_autocast_dtype(kind)
        return x.dtype

    def forward(self, tokens: Tensor, *, cache: parts.KVCache | None = None) -> Tensor:
        """Return logits [B, T, V] for ``tokens`` [B, T]; with a ``cache``, T tokens go on from those in it."""
        logits: Tensor = self.head(self.features(tokens, cache=cache))[..., : self.vocab_size]
        return logits

    def loss(self, tokens: Tensor, targets: Tensor, masks: parts.Masks | None = None) -> Tensor:
        """Return the mean cross-entropy in nats of ``targets`` [B, T] after ``tokens`` [B, T].

        The z-loss is in the gradient, not in the value.
        """
        features, head = self.features(tokens, masks, visible=self.visible(tokens)), self.head
        z_loss = self.config.z_loss
        scored = None if self.document_end is None else (tokens != self.document_end).flatten()
        if self.own_loss:
            return mean_of_own(self.own_loss, head(features)[..., : self.vocab_size], targets, scored)
        return parts.mean_loss(
            features.flatten(0, 1), head.weight, targets.flatten(), self.vocab_size, head.path, z_loss, scored
        )

    def score(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | int]:
        """Return each target's cross-entropy [B T] in nats, whether the target was the most likely token [B T], and the
        number of scored targets. What follows a document's end is not scored: both are 0 there.
        """
        features, head = self.features(tokens, visible=self.visible(tokens)).flatten(0, 1), self.head
        losses, hits = parts.score(features, head.weight, targets.flatten(), self.vocab_size, head.path)
        if self.document_end is None:
            return losses, hits, targets.numel()
        scored = (tokens != self.document_end).flatten()
        return losses * scored, hits & scored, scored.sum()

    def visible(self, tokens: Tensor) -> Tensor | None:
        """Return [B, T, T]: what each of ``tokens`` [B, T] sees of its document; None without a document end."""
        return None if self.document_end is None else parts.same_document(tokens, self.document_end)

    def new_cache(self, batch: int, length: int) -> parts.KVCache | None:
        """Return an empty cache for ``batch`` sequences of up to ``length`` tokens; the user's own models have none."""
        weight = self.token_embedding.weight
        c = self.config
        shape = (c.layers, batch, c.key_heads(), length, c.d_model // c.heads)
        return parts.KVCache(shape, weight.device, weight.dtype)


class OwnModel(GPT):
    """A torch module of the user's own, from tokens [B, T] to logits [B, T, V], with the interface of :class:`GPT`."""

    def __init__(self, module: nn.Module, config: ModelConfig, *, vocab_size: int) -> None:
        nn.Module.__init__(self)
        self.module, self.config, self.vocab_size = module, config, vocab_size
        self._buffers_before = [(name, b, b._version) for name, b in module.named_buffers()]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield its tensors under the names that the user's module gives them."""
        return self.module.named_parameters(*args, **kwargs)

    def forward(self, tokens: Tensor, *, cache: parts.KVCache | None = None) -> Tensor:
        self.module.train(torch.is_grad_enabled())
        logits: Tensor = self.module(tokens)
        if logits.shape != (*tokens.shape, self.vocab_size):
            raise ConfigError(
                f"model.plugin={label(self.config.plugin)} returned the shape {tuple(logits.shape)} for tokens "
                f"{tuple(tokens.shape)}: expected logits {(*tokens.shape, self.vocab_size)}"
            )
        return logits

    def loss(self, tokens: Tensor, targets: Tensor, masks: parts.Masks | None = None) -> Tensor:
        logits = self(tokens)
        if moved := [name for name, b, version in self._buffers_before if b._version != version]:
            raise ConfigError(
                f"the module changes its buffer {moved[0]!r} while it trains: checkpoints have no buffers"
            )
        if self.own_loss:
            return mean_of_own(self.own_loss, logits, targets, None)
        return F.cross_entropy(in_float32(logits.flatten(0, 1)), targets.flatten())

    def score(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | int]:
        logits, y = self(tokens).flatten(0, 1), targets.flatten()
        return F.cross_entropy(in_float32(logits), y, reduction="none"), logits.argmax(-1) == y, targets.numel()

    def new_cache(self, batch: int, length: int) -> parts.KVCache | None:
        return None


def mean_of_own(spec: Spec, logits: Tensor, targets: Tensor, scored: Tensor | None) -> Tensor:
    """Return the mean of the user's own loss of ``logits`` [B, T, V] over all ``targets`` [B, T], or those scored."""
    return parts.mean_over(losses_of(spec, in_float32(logits.flatten(0, 1)), targets.flatten()), scored)


def in_float32(logits: Tensor) -> Tensor:
    """Return ``logits`` in float32, or float64 if they are that."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def parameter_count(config: ModelConfig, *, vocab_size: int) -> int:
    """Return the number of parameters, counted on a model without memory."""
    with unallocated():
        return sum(p.numel() for p in GPT(config, vocab_size=vocab_size).parameters())


def longest_context(model: GPT) -> float:
    """Return the longest text that the model can read: its context, or any length without learned positions."""
    limited = model.config.positions == "learned" or isinstance(model, OwnModel)
    return model.config.context if limited else math.inf
