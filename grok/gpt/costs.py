"""What a model and its training need, computed before it starts: parameters, FLOPs, memory, time and tokens.

Everything is computed from the settings, without torch and without measurements. Sources: Kaplan et al. 2020
(6 N); Chowdhery et al. 2022, PaLM, appendix B (attention's share, MFU);
Hoffmann et al. 2022, Chinchilla (tokens per parameter, loss of a model size and number of tokens).
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from grok.config.gpt import SHARDING, GptConfig, ModelConfig
from grok.errors import ConfigError, nearest
from grok.gpt.schedules import batch_ramp

# A model's parameters and the FLOPs of its training, and the peak FLOP/s of devices.

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


# The memory of a training step: weights and moments, gradients, activations, masks, logits.
#
# Source: Korthikanti et al. 2022 (activations). The factors are those of our own step. A test compares them with the
# peak of torch's allocator.

LOGITS_ON_CPU, LOGITS_ON_GPU = 2**24, 2**28
"""Largest number of logits at once; ``grok.gpt.parts`` has the same numbers; a test compares them."""


def gradient_bytes(precision: str) -> float:
    """Return bytes of a parameter's gradient."""
    return 8.0 if precision == "float64" else 4.0


def moment_bytes(kind: str, precision: str) -> float:
    """Return bytes of both moments of a parameter. One of 8 bits takes a byte, plus a scale for 256 moments."""
    return 2 * (1 + 4 / 256) if kind == "adamw8bit" else 2 * gradient_bytes(precision)


def activation_bytes(config: GptConfig, model: ModelConfig, sequences: int, *, on_cpu: bool) -> float:
    """Return the approximate bytes that the blocks and the final norm keep for the backward pass of ``sequences``.

    For each token a block keeps 9 rows of the model width. They are the inputs of two norms (float32 also in half
    precision), the inputs of three linear layers, queries, keys, values, and the output of attention. It also keeps 2
    rows of the MLP width, or 4 for SwiGLU (two products, silu of one, and their product). Rotary positions add 3 rows,
    RMSNorm 2, norms of queries and keys 3. Outside the fused kernel, softmax adds the attention weights of all heads.
    This is also the case for attention dropout, and for ALiBi on a CPU. Dropout adds its masks (float32, drawn before
    the forward pass) and the attention weights after dropout.

    ``train.recompute``: ``blocks`` keeps only the input of each block, ``attention`` only the input of attention. One
    block at a time is then computed again. The masks are kept. ``on_cpu``: in half precision fused attention keeps
    float32 copies. The bias of ``data.document_mask``, with that of ALiBi, goes to the fused kernel. ``model``: the
    settings' model, or one that drops nothing in attention.
    """
    assert model.d_ff is not None and model.dropout_attention is not None
    d, full = model.d_model, 8 if config.precision == "float64" else 4
    size = 2 if config.precision in ("bf16", "fp16") else full
    norms = 2 * d * full * (2 if model.norm_type == "rmsnorm" else 1)
    rest = norms + (2 * d + (4 if model.activation == "swiglu" else 2) * model.d_ff) * size
    attention = _attention_bytes(model, full, size, on_cpu=on_cpu, documents=config.data.document_mask)
    kept = {"none": rest + attention, "attention": rest, "blocks": d * full}[config.train.recompute]
    at_once = {"none": 0.0, "attention": attention, "blocks": rest + attention}[config.train.recompute]
    rows = model.layers * kept + at_once + 2 * d * full
    return float(sequences * model.context * rows) + mask_bytes(model, sequences)


def _attention_bytes(model: ModelConfig, full: int, size: int, *, on_cpu: bool, documents: bool) -> float:
    """Return the bytes that attention keeps for a token; a value has ``size`` bytes, or ``full`` in full precision."""
    d, share = model.d_model, model.key_heads() / model.heads
    written_out = model.softmax != "fused" or bool(model.dropout_attention)
    copied = share < 1 and (written_out or not on_cpu)  # keys and values of grouped queries, for each of the queries
    rows = (3 + 2 * share + 2 * copied) * d * size
    if model.positions == "rotary":
        rows += (3 if share == 1 else 1 - share) * d * full
    if model.qk_norm:
        rows += 3 * d * full
    if on_cpu and size < full and not written_out:
        rows += 4 * d * full
    if written_out or (on_cpu and model.positions == "alibi" and not documents):
        weights = 2 * size if model.softmax == "activations" else full + (size if size < full else 0)
        rows += model.heads * model.context * weights
    if model.dropout_attention:
        rows += model.heads * model.context * size
    return rows


def mask_bytes(model: ModelConfig, sequences: int) -> float:
    """Return the bytes of the dropout masks of ``sequences`` at once: float32, all drawn before the forward pass."""
    d = model.d_model
    block = 2 * d * bool(model.dropout_residual) + model.heads * model.context * bool(model.dropout_attention)
    return 4.0 * sequences * model.context * (model.layers * block + d * bool(model.dropout_embedding))


# The plan of a run.

CHINCHILLA_TOKENS_PER_PARAMETER: Final = 20.0
FITTED_FROM: Final = 44e6
"""Parameters of the smallest model in Chinchilla's fit of the loss."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is distributed over devices, and its cost for each device."""

    state: float
    """Bytes of weights and moments."""
    gradients: float
    activations: float
    """Bytes of activations, masks and logits of a micro-batch."""
    accumulated: bool
    """Whether gradients exist during a micro-batch: those of earlier micro-batches, or DDP's buckets."""
    traffic: float
    """Bytes that a device sends in a step."""

    @property
    def bytes(self) -> float:
        """All bytes of a device at the peak of a step.

        Gradients take the place of activations while the backward pass goes on, unless those of earlier micro-batches
        exist from the start.
        """
        both = self.gradients + self.activations
        return self.state + (both if self.accumulated else max(self.gradients, self.activations))


def layout(
    config: GptConfig, parameters: Parameters, devices: int, micro_batch: int, *, on_cpu: bool = False
) -> Layout:
    """Return the cost of this layout for each of ``devices``.

    DDP sums gradients: a device sends 2 (N - 1) / N of their float32 bytes in a step. FSDP2 gathers the weights of a
    block for the forward and the backward pass of every micro-batch, or once in a step, and scatters the sums of its
    gradients for every micro-batch, or once (``train.parallel``). In addition to its shards a
    device has two gathered blocks, and the complete embedding and head with their gradients; and what it keeps.
    On one GPU without recomputation the fused kernel applies attention dropout, which then needs no masks.
    """
    model, n, low = config.model, parameters, config.precision in ("bf16", "fp16")
    if devices == 1 and not on_cpu and model.drops_in_kernel(config.train.recompute):
        model = copy.copy(model)
        model.dropout_attention = 0.0
    travels, others = 2 if low else 4, (devices - 1) / devices
    weight = {"float64": 8.0, "bf16": 6.0, "fp16": 6.0}.get(config.precision, 4.0)  # half precision has a copy
    state = (weight + moment_bytes(config.optim.kind, config.precision)) * n.total
    gradients = gradient_bytes(config.precision) * n.total
    kept = activation_bytes(config, model, micro_batch, on_cpu=on_cpu)
    if config.data.document_mask:
        # the mask, and the bias of the scores for all blocks, as float32: in half precision a GPU keeps it in 2 bytes
        size = (8 if config.precision == "float64" else 4) * (model.heads if model.positions == "alibi" else 1)
        kept += float(micro_batch * model.context**2 * (1 + size))
    # logits, their softmax and their gradient, in chunks of rows: those of a large vocabulary never exist at once
    logits = micro_batch * model.context * (n.embedding // model.d_model)
    kept += 3.0 * 4 * min(logits, LOGITS_ON_CPU if on_cpu else LOGITS_ON_GPU)
    rounds = -(-config.train.batch_size // (devices * micro_batch))
    keeps, ends = SHARDING[config.train.parallel], n.total - n.blocks
    if devices == 1 or keeps is None:
        traffic = 2 * others * 4.0 * n.total
        return Layout(state, gradients, kept, rounds > 1 or devices > 1, traffic)
    held = (1 if keeps == "weights" else 2 / model.layers) * n.blocks * travels + 4.0 * ends
    if rounds == 1 or keeps == "nothing":
        gradients, held = gradients / devices, held + 4.0 * ends
    gathers, sums = 1 if keeps == "weights" else rounds, rounds if keeps == "nothing" else 1
    passes = 1 if keeps == "weights" else 2
    traffic = others * (gathers * (passes * travels * n.blocks + 4.0 * ends) + sums * 4.0 * n.total)
    return Layout(state / devices + held, gradients, kept, True, traffic)


@dataclass(frozen=True)
class Plan:
    """What a run needs.

    A step counts at its full size, the tokens of the run by the batch ramp. With a context ramp they are the most.
    """

    config: GptConfig
    vocab_size: int
    machine: Machine
    devices: int = 1
    mfu: float = 0.4
    """Assumed share of the peak FLOP/s."""
    corpus_tokens: int | None = None

    @cached_property
    def parameters(self) -> Parameters:
        return count_parameters(self.config.model, self.vocab_size)

    @property
    def formula(self) -> int:
        """The count by the formula, which is exact for GPT-2's architecture."""
        model = self.config.model
        return gpt2_parameters(model.layers, model.d_model, self.vocab_size, model.context)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step after the ramps."""
        return self.config.train.batch_size * self.config.model.context

    @property
    def tokens(self) -> int:
        """Tokens of all steps; with a context ramp at most these."""
        return batch_ramp(self.config).consumed(self.config.train.steps) * self.config.model.context

    @property
    def flops_per_token(self) -> float:
        return train_flops_per_token(self.config.model, self.parameters)

    @property
    def flops(self) -> float:
        """FLOPs of the run."""
        return self.flops_per_token * self.tokens

    @property
    def six_n(self) -> float:
        """FLOPs by the rule of thumb, 6 N tokens, with N all parameters."""
        return 6.0 * self.parameters.total * self.tokens

    @property
    def seconds(self) -> float:
        """Seconds of the run on all devices."""
        return self.flops / (self.devices * self.mfu * self.machine.peak_of(self.config.precision))

    @property
    def device_hours(self) -> float:
        """Hours multiplied by devices."""
        return self.devices * self.seconds / 3600

    @property
    def epochs(self) -> float | None:
        """Passes over the training tokens, or None without a corpus."""
        return None if not self.corpus_tokens else self.tokens / self.corpus_tokens

    @property
    def chinchilla_tokens(self) -> float:
        """Tokens at which this size is compute-optimal by the rule of 20 tokens per parameter."""
        return CHINCHILLA_TOKENS_PER_PARAMETER * self.parameters.total

    @cached_property
    def layout(self) -> Layout:
        """The layout of the settings."""
        train, on_cpu = self.config.train, self.machine.name == CPU_CORE
        at_once = min(train.micro_batch or train.batch_size, -(-train.batch_size // self.devices))
        return layout(self.config, self.parameters, self.devices, at_once, on_cpu=on_cpu)


def chinchilla_loss(parameters: float, tokens: float) -> float:
    """Return the loss in nats that Chinchilla's third fit predicts for this model size and number of tokens.

    The fit is for web text, with each token used once, and for models of ``FITTED_FROM`` to 16B parameters.
    """
    return float(1.69 + 406.4 / parameters**0.34 + 410.7 / tokens**0.28)
