"""Settings of a GPT's model."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Final

from grok.config.common import LARGEST_SIZE, refuse_odd_heads
from grok.config.fields import setting
from grok.errors import ConfigError

WIDE_RATIO: Final = 256
"""Width over depth above which a warning is shown. 150 to 200 is normal for large models, 512 is bad."""


@dataclass(kw_only=True)
class ModelConfig:
    """A GPT-2, and the options that later papers changed."""

    layers: int = setting(12, "Number of blocks.", minimum=1, maximum=256)
    d_model: int = setting(768, "Model width.", minimum=1, maximum=LARGEST_SIZE)
    heads: int = setting(12, "Attention heads; must divide d_model.", minimum=1)
    kv_heads: int | None = setting(
        None,
        "Heads of keys and values, each used by heads / kv_heads queries; null: as many as heads.",
        minimum=1,
        neutral=None,
    )
    d_ff: int | None = setting(
        None,
        "Inner width of the MLP; null: 4 times d_model, or 8/3 for swiglu, in multiples of 8.",
        minimum=1,
        maximum=LARGEST_SIZE,
    )
    context: int = setting(
        1024, "Tokens of one training sequence, and the rows of learned positions.", minimum=1, maximum=2**24
    )
    vocab_size: int | None = setting(
        None, "Rows of the token embedding; null: the corpus's vocabulary.", minimum=2, maximum=2**24
    )
    vocab_multiple: int = setting(
        1, "The embedding's rows are rounded up to a multiple of this.", minimum=1, maximum=LARGEST_SIZE
    )
    norm: str = setting("pre", "Position of the norms in a block.", choices=("pre", "post"))
    norm_type: str = setting("layernorm", "LayerNorm, or RMSNorm without bias.", choices=("layernorm", "rmsnorm"))
    norm_eps: float = setting(1e-5, "Number added to the variance in a norm.", above=0, neutral=1e-5)
    activation: str = setting(
        "gelu_tanh",
        "Activation of the MLP; gelu_tanh is GPT-2's, swiglu has a third matrix.",
        choices=("gelu_tanh", "gelu", "relu", "swiglu"),
    )
    positions: str = setting("learned", "Position encoding.", choices=("learned", "rotary", "alibi"))
    bias: bool = setting(True, "Biases in linear layers and norms.")
    tied: bool = setting(True, "The head shares the token embedding's weights.")
    qk_norm: bool = setting(False, "Normalise queries and keys per head before their product.")
    qk_scaling: str = setting(
        "product",
        "Divide the product of queries and keys by sqrt(K), or scale both before it, which cannot overflow.",
        choices=("product", "operands"),
    )
    softmax: str = setting(
        "fused",
        "Softmax of attention: inside the fused kernel, as separate operations in float32, or as separate "
        "operations in the activations' precision, where bf16 and fp16 round every exponential and their sum.",
        choices=("fused", "float32", "activations"),
    )
    z_loss: float = setting(
        0.0, "Factor of the mean squared log of softmax's divisor, a term of the training loss.", minimum=0, neutral=0.0
    )
    init: str = setting(
        "0.02",
        "Standard deviation of initial matrices: 0.02 (GPT-2), 0.006 (104B), 0.004 (530B), small = sqrt(2 / (5 D)).",
        choices=("0.02", "0.006", "0.004", "small"),
    )
    init_residual: bool = setting(
        True, "Divide the standard deviation of projections to the residual by sqrt(2 layers)."
    )
    dropout: float = setting(0.0, "Dropout wherever one of the three settings below is null.", minimum=0, below=1)
    dropout_embedding: float | None = setting(None, "Dropout on embeddings; null: `dropout`.", minimum=0, below=1)
    dropout_residual: float | None = setting(None, "Dropout on block outputs; null: `dropout`.", minimum=0, below=1)
    dropout_attention: float | None = setting(
        None, "Dropout on attention weights; null: `dropout`.", minimum=0, below=1
    )

    def __post_init__(self) -> None:
        if self.d_ff is None:
            self.d_ff = self.usual_d_ff()
        for kind in ("dropout_embedding", "dropout_residual", "dropout_attention"):
            if getattr(self, kind) is None:
                setattr(self, kind, self.dropout)
        refuse_odd_heads(self.heads, self.d_model)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(
                f"model.kv_heads={self.kv_heads} does not divide model.heads={self.heads}: each of them is read by the "
                "same number of queries"
            )
        if self.kv_heads == self.heads:
            self.kv_heads = None
        if self.positions == "rotary" and (self.d_model // self.heads) % 2:
            raise ConfigError(
                f"model.positions=rotary turns pairs of columns, and model.d_model={self.d_model} over "
                f"model.heads={self.heads} leaves an odd width of {self.d_model // self.heads}"
            )
        if self.d_model / self.layers > WIDE_RATIO:
            warnings.warn(
                f"model.d_model={self.d_model} over model.layers={self.layers} is {self.d_model / self.layers:.0f}: "
                f"above {WIDE_RATIO} large models train badly, 150 to 200 is usual",
                stacklevel=2,
            )

    def init_std(self) -> float:
        """Return the standard deviation of initial matrices (before ``init_residual``)."""
        return math.sqrt(2 / (5 * self.d_model)) if self.init == "small" else float(self.init)

    def usual_d_ff(self) -> int:
        """Return the default inner width of the MLP: SwiGLU's three matrices then have as many weights as two."""
        return 4 * self.d_model if self.activation != "swiglu" else -(-self.d_model // 3) * 8

    def key_heads(self) -> int:
        """Return the number of heads of keys and values."""
        return self.kv_heads or self.heads

    def drops_in_kernel(self, recompute: str) -> bool:
        """Return whether on one GPU the fused kernel drops attention's weights, without masks.

        ``recompute``: as ``train.recompute``; what is computed again must draw nothing.
        """
        return bool(self.dropout_attention) and self.softmax == "fused" and recompute == "none"

    def drops(self) -> bool:
        """Return whether any kind of dropout is on."""
        return any((self.dropout_embedding, self.dropout_residual, self.dropout_attention))
