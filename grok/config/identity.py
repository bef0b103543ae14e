"""Which runs are the same run: names made from what decides a result, and from nothing else.

``run_id`` names a run, ``trajectory_id`` the sequence of weights it
walks through (equal trajectory and equal numerics tag must mean equal bits at common
steps), ``config_id`` the settings without any seed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Final

from grok.config.common import RunConfig
from grok.config.fields import canonical_json, walk

NUMERICS_VERSION: Final = 1
"""Raised by hand whenever the same settings begin to give other bits; see tests/test_golden.py."""

_DIGITS: Final = 20  # 80 bits: no clash in any store a person will ever fill
_ALWAYS_NAMED: Final = ("split", "init", "order", "dropout", "eval", "sample", "perturb")
"""The streams of the first version: in every ``run_id``. A stream that is added later is in it only where it can move
training, so that it renames no stored run."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The three names of a run."""

    run_id: str
    trajectory_id: str
    config_id: str


def identify(config: RunConfig, data_hash: str | None = None) -> Identity:
    """Return the names of ``config``'s run; ``data_hash`` is the data manifest's hash in GPT mode."""
    by_role: dict[str, dict[str, Any]] = {"result": {}, "length": {}, "schedule": {}}
    for name, value, rule in walk(config):
        if rule.role != "none" and value != rule.neutral:
            by_role[rule.role][name] = value
    settings = {"version": NUMERICS_VERSION, "data": data_hash, "result": by_role["result"]}
    if coupled := config.coupled_schedule():
        settings["coupled"] = coupled
    # What cannot move training is not part of the trajectory: evaluation and sampling
    # never, the other streams only where something reads them.
    streams = asdict(config.stream_seeds())
    live = {name: seed for name, seed in streams.items() if name in config.live_streams()}
    named = {name: seed for name, seed in streams.items() if name in live or name in _ALWAYS_NAMED}
    layers = config.seeds.layers
    length = {} if config.length_is_free() else by_role["length"]
    return Identity(
        run_id=_hash({**settings, "streams": named, "layers": layers, **by_role}),
        trajectory_id=_hash({**settings, "streams": live, "layers": layers, "length": length}),
        config_id=_hash({**settings, "length": by_role["length"]}),
    )


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:_DIGITS]
