"""The memory of a training step: weights and moments, gradients, activations, masks, logits.

Everything is computed from the settings, without torch and without measurements. Source: Korthikanti et al. 2022
(activations). The factors are those of our own step. A test compares them with the peak of torch's allocator.
"""

from __future__ import annotations

from grok.config.gpt_model import ModelConfig

LOGITS_ON_CPU, LOGITS_ON_GPU = 2**24, 2**28
"""Largest number of logits at once; ``grok.gpt.head`` has the same numbers; a test compares them."""


def weight_bytes(precision: str) -> float:
    """Return bytes of a parameter without its gradient: 4, in half precision 2 more for a copy, in float64 8."""
    return {"float64": 8.0, "bf16": 6.0, "fp16": 6.0}.get(precision, 4.0)


def gradient_bytes(precision: str) -> float:
    """Return bytes of a parameter's gradient."""
    return 8.0 if precision == "float64" else 4.0


def moment_bytes(kind: str, precision: str, *, matrices: float, others: float) -> float:
    """Return bytes of an optimiser's state for ``matrices`` parameters in the blocks and ``others`` elsewhere.

    AdamW has two moments, Muon has one for matrices. An 8-bit moment takes one byte, plus a scale for 256 moments.
    """
    each = gradient_bytes(precision)
    if kind == "adamw8bit":
        return 2 * (1 + 4 / 256) * (matrices + others)
    return each * ((1 if kind == "muon" else 2) * matrices + 2 * others)


def activation_bytes(
    model: ModelConfig,
    sequences: int,
    precision: str,
    recompute: str = "none",
    *,
    on_cpu: bool = False,
    documents: bool = False,
) -> float:
    """Return the approximate bytes that the blocks and the final norm keep for the backward pass of ``sequences``.

    For each token a block keeps 9 rows of the model width. They are the inputs of two norms (float32 also in half
    precision), the inputs of three linear layers, queries, keys, values, and the output of attention. It also keeps 2
    rows of the MLP width, or 4 for SwiGLU (two products, silu of one, and their product). Rotary positions add 3 rows,
    RMSNorm 2, norms of queries and keys 3. Outside the fused kernel, softmax adds the attention weights of all heads.
    This is also the case for attention dropout, and for ALiBi on a CPU. Dropout adds its masks (float32, drawn before
    the forward pass) and the attention weights after dropout.

    ``recompute``: ``blocks`` keeps only the input of each block, ``attention`` only the input of attention. One block
    at a time is then computed again. The masks are kept. ``on_cpu``: in half precision fused attention keeps float32
    copies. ``documents``: ``data.document_mask`` is on. Its bias, with that of ALiBi, then goes to the fused kernel.
    """
    assert model.d_ff is not None and model.dropout_attention is not None
    d, full = model.d_model, 8 if precision == "float64" else 4
    size = 2 if precision in ("bf16", "fp16") else full
    norms = 2 * d * full * (2 if model.norm_type == "rmsnorm" else 1)
    rest = norms + (2 * d + (4 if model.activation == "swiglu" else 2) * model.d_ff) * size
    attention = _attention_bytes(model, full, size, on_cpu=on_cpu, documents=documents)
    kept = {"none": rest + attention, "attention": rest, "blocks": d * full}[recompute]
    at_once = {"none": 0.0, "attention": attention, "blocks": rest + attention}[recompute]
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


def document_mask_bytes(model: ModelConfig, sequences: int, precision: str) -> float:
    """Return the bytes of ``data.document_mask``: the attention mask, and the bias of the scores for all blocks.

    The bias counts as float32. In half precision a GPU keeps it in 2 bytes, which is slightly less.
    """
    size = (8 if precision == "float64" else 4) * (model.heads if model.positions == "alibi" else 1)
    return float(sequences * model.context**2 * (1 + size))


def mask_bytes(model: ModelConfig, sequences: int) -> float:
    """Return the bytes of the dropout masks of ``sequences`` at once: float32, all drawn before the forward pass."""
    d = model.d_model
    block = 2 * d * bool(model.dropout_residual) + model.heads * model.context * bool(model.dropout_attention)
    return 4.0 * sequences * model.context * (model.layers * block + d * bool(model.dropout_embedding))


def logits_bytes(model: ModelConfig, sequences: int, vocab_size: int, *, on_cpu: bool = False) -> float:
    """Return about how many bytes the loss of ``sequences`` at once takes: logits, their softmax and their gradient.

    The loss runs in chunks of rows (``grok.gpt.head``), so the logits of a large vocabulary never exist at once.
    """
    return 3.0 * 4 * min(sequences * model.context * vocab_size, LOGITS_ON_CPU if on_cpu else LOGITS_ON_GPU)


def peak_bytes(state: float, gradients: float, activations: float, *, accumulated: bool) -> float:
    """Return the bytes of a step at its peak.

    Gradients take the place of activations while the backward pass goes on, unless those of earlier micro-batches exist
    from the start (``accumulated``).
    """
    return state + (gradients + activations if accumulated else max(gradients, activations))
