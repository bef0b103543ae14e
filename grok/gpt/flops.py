"""A model's parameters and the FLOPs of its training, and the peak FLOP/s of devices.

Plain arithmetic; no torch, nothing measured. Sources: Kaplan et al. 2020 (6 N); Chowdhery et al. 2022, PaLM,
appendix B (attention's share, MFU).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from grok.config.gpt import ModelConfig
from grok.errors import ConfigError, nearest

CPU_CORE: Final = "cpu-core"


@dataclass(frozen=True, slots=True)
class Machine:
    """One device: the most FLOP/s it does in each arithmetic, without sparsity, and its memory."""

    name: str
    peak: dict[str, float]
    memory: float
    """Bytes."""

    def peak_of(self, precision: str) -> float:
        """Return the peak of a precision; a device without it computes in float32."""
        return self.peak.get(precision, self.peak["float32"])


MACHINES: Final[dict[str, Machine]] = {
    m.name: m
    for m in (  # makers' data sheets; of a CPU's core, what plain float32 products reached on one server
        Machine(CPU_CORE, {"float32": 110e9, "float64": 55e9}, 4e9),
        Machine("V100", {"float32": 15.7e12, "fp16": 125e12}, 16e9),
        Machine("A100", {"float32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}, 40e9),
        Machine("RTX4090", {"float32": 82.6e12, "tf32": 82.6e12, "bf16": 165.2e12, "fp16": 165.2e12}, 24e9),
        Machine("H100", {"float32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12}, 80e9),
        Machine("H200", {"float32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12}, 141e9),
    )
}


_SLOWER_FORMS: Final = {"V100": {"PCIE"}, "RTX4090": {"LAPTOP", "D"}, "H100": {"PCIE", "NVL"}, "H200": {"NVL"}}
"""Words in a driver's name that mean a form with a lower peak than the table's; the A100's forms have the same peak."""

_DRIVER_NAMES: Final = {"RTX4090": "RTX ?4090", "H200": "G?H200"}
"""Patterns of a driver's name where it is not the table's; the GPU of a GH200 has the H200's peak."""


def peak_of_device(name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a GPU by the name that its driver gives, or None where it is not in the table.

    A slower form of a GPU, and a part of one (MIG), are not in the table.

    >>> peak_of_device("NVIDIA GeForce RTX 4090", "bf16"), peak_of_device("NVIDIA T4", "float32")
    (165200000000000.0, None)
    """
    words = set(re.split(r"\W+", name.upper()))
    known = (
        m
        for m in MACHINES.values()
        # a whole word, as an RTX A1000 is no A100 and a GV100 no V100; some write GeForceRTX4090
        if re.search(rf"(?<![A-Z0-9]){_DRIVER_NAMES.get(m.name, m.name)}(?![A-Za-z0-9])", name)
        and m.name != CPU_CORE
        and not words & (_SLOWER_FORMS.get(m.name, set()) | {"MIG"})
    )
    return next((m.peak_of(precision) for m in known), None)


def machine(name: str) -> Machine:
    """Return a machine by name.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in MACHINES:
        raise ConfigError(
            f"--device {name} is not known{nearest(name, MACHINES)}: expected one of {', '.join(MACHINES)}"
        )
    return MACHINES[name]


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of a model's parameters."""

    embedding: int
    """Rows of the token embedding, padding included, times the width."""
    positions: int
    blocks: int
    final_norm: int
    head: int
    """0 where the head shares the embedding."""

    @property
    def total(self) -> int:
        """All parameters; a shared matrix counts once."""
        return self.embedding + self.positions + self.blocks + self.final_norm + self.head

    @property
    def without_positions(self) -> int:
        """All but the positions, as nanoGPT counts."""
        return self.total - self.positions

    @property
    def multiplied(self) -> int:
        """Those that a token's forward pass multiplies with: blocks and head, and not the rows it looks up."""
        return self.blocks + self.final_norm + (self.head or self.embedding)


def count_parameters(model: ModelConfig, vocab_size: int) -> Parameters:
    """Return the exact numbers of parameters of ``model`` with a vocabulary of ``vocab_size`` ids."""
    d, bias = model.d_model, int(model.bias)
    assert model.d_ff is not None
    per_column = 2 if model.norm_type == "layernorm" and model.bias else 1
    rows = -(-vocab_size // model.vocab_multiple) * model.vocab_multiple
    keys = model.key_heads() * (d // model.heads)
    matrices = 3 if model.activation == "swiglu" else 2  # SwiGLU's MLP has a gate beside the usual two
    attention = 2 * d * (d + keys) + 2 * (d + keys) * bias
    mlp = matrices * d * model.d_ff + ((matrices - 1) * model.d_ff + d) * bias
    qk_norms = 2 * per_column * (d // model.heads) if model.qk_norm else 0
    return Parameters(
        embedding=rows * d,
        positions=model.context * d if model.positions == "learned" else 0,
        blocks=model.layers * (attention + mlp + 2 * per_column * d + qk_norms),
        final_norm=per_column * d,
        head=0 if model.tied else rows * d,
    )


def gpt2_parameters(layers: int, d_model: int, vocab_size: int, context: int) -> int:
    """Return N = n (12 h² + 13 h) + v h + s h + 2 h: GPT-2's form, exact for biases, LayerNorm and a tied head."""
    n, h = layers, d_model
    return n * (12 * h**2 + 13 * h) + vocab_size * h + context * h + 2 * h


def train_flops_per_token(model: ModelConfig, parameters: Parameters, context: int | None = None) -> float:
    """Return FLOPs of forward and backward for a token: 6 a multiplied parameter, and attention's 12 n T d.

    The forward pass is a third of it. Attention is counted over the whole context T, as in PaLM; a causal kernel
    skips half of that. ``context``: T where it is not the model's.
    """
    return 6.0 * parameters.multiplied + 12.0 * model.layers * (context or model.context) * model.d_model
