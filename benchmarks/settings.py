"""Settings of benchmarks and tests: the default regime, small runs, variants of the model. Imports no other package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grok.config import ArithmeticConfig

TINY: dict[str, Any] = {
    "task": {"operation": "x+y", "modulus": 11},
    "model": {"layers": 2, "d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"steps": 24, "batch_size": 25},  # 60 examples, so the last batch of an epoch has 10
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
"""Changes of :data:`TINY`, by their name."""


def default_config(**over: Any) -> ArithmeticConfig:
    """Return the config of the default regime with the settings ``over``."""
    from grok.config import ArithmeticConfig, load_config

    config = load_config({"mode": "arithmetic", **over})
    assert isinstance(config, ArithmeticConfig)
    return config
