"""The benchmark of seeds measures what it says, in a tiny form of the regime."""

from __future__ import annotations

from typing import Any

from benchmarks.seeds import contender
from benchmarks.settings import default_config

REGIME: dict[str, Any] = {
    "task": {"modulus": 11},
    "model": {"d_model": 16, "heads": 2, "d_ff": 24},
    "train": {"batch_size": 24},
    "numerics": {"compile": False},
}


def test_every_contender_steps() -> None:
    config = default_config(**REGIME)
    for kind in ("plain", "ours"):
        made = contender(kind, config, 0)
        made.step()
    assert made.lane.run.step == 1
    made.evaluate()
    assert made.lane.run.step == 1
