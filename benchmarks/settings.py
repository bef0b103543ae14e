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


def default_config(**over: Any) -> ArithmeticConfig:
    """Return the config of the default regime with the settings ``over``."""
    from grok.config import ArithmeticConfig, load_config

    config = load_config({"mode": "arithmetic", **over})
    assert isinstance(config, ArithmeticConfig)
    return config
