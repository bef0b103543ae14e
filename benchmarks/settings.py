"""Small runs, and kinds of models and steps, that benchmarks and tests try; it imports nothing that may be missing."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "task": {"operation": "x+y", "modulus": 11},
    "model": {"layers": 2, "d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"steps": 24, "batch_size": 25},  # 60 examples: the last batch of an epoch has 10
    "eval": {"every": 8},
    "numerics": {"compile": False},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "pre-norm, tied, sines, relu": {
        "model": {"norm": "pre", "tied": True, "positions": "sinusoidal", "activation": "relu"}
    },
    "no norm, no bias": {"model": {"norm": "none", "final_norm": False, "bias": False}},
    "bf16": {"precision": "bf16"},
    "division": {"task": {"operation": "x/y"}},
    "dropout": {"model": {"dropout": 0.2}},
}
"""Models and steps of one run of :data:`TINY`, by what they change in it."""
