"""The identity of a run: checked configs from composed settings, and the three hashes that name a run.

``run_id`` identifies a run, ``trajectory_id`` its sequence of weights (equal trajectory and
equal numerics tag must mean equal bits at common steps), ``config_id`` the settings without
any seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from grok.config.arithmetic import ArithmeticConfig
from grok.config.common import RunConfig
from grok.config.fields import Built, build, canonical_json, recorded_of, walk
from grok.config.gpt import GptConfig, require_preset
from grok.errors import ConfigError, nearest
from grok.plugins import target_of

NUMERICS_VERSION: Final = 1
"""Raised by hand when a change of the code gives other bits for equal settings; see tests/test_golden.py."""

_DIGITS: Final = 20  # 80 bits: a collision in a store is practically impossible
_ALWAYS_NAMED: Final = ("split", "init", "order", "dropout", "eval", "sample", "perturb")
"""The streams of the first version: in every ``run_id``. A stream that is added later is in it only where it can move
training, so that it renames no stored run."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The three names of a run."""

    run_id: str
    trajectory_id: str
    config_id: str


def identify(config: RunConfig, data_hash: str | None = None, code: Mapping[str, str] | None = None) -> Identity:
    """Return the names of ``config``'s run.

    Args:
        config: the run's settings.
        data_hash: the data manifest's hash in GPT mode.
        code: the fingerprint of the code behind each import path of :meth:`RunConfig.plugins`.
    """
    by_role: dict[str, dict[str, Any]] = {"result": config.constants(), "length": {}, "schedule": {}}
    for name, value, rule in walk(config):
        if rule.role != "none" and value != rule.neutral:
            by_role[rule.role][name] = value
    result, length, schedule = (canonical_json(by_role[role]) for role in ("result", "length", "schedule"))
    settings = {"version": canonical_json(NUMERICS_VERSION), "data": canonical_json(data_hash), "result": result}
    prints = {name: code[target_of(spec)] for name, spec in config.plugins().items()} if code else {}
    measured = {name: prints.pop(name) for name in config.measuring_plugins()} if prints else {}
    if prints:
        settings["code"] = canonical_json(prints)
    measuring = {"measuring": canonical_json(measured)} if measured else {}
    if coupled := config.coupled_schedule():
        settings["coupled"] = canonical_json(coupled)
    # A stream that cannot change training is not part of the trajectory: evaluation and
    # sampling never are, the other streams only if these settings use them.
    streams = asdict(config.stream_seeds())
    switched = config.switched_streams()
    live = {name: seed for name, seed in streams.items() if name in config.live_streams()} | switched
    seeded = {name: seed for name, seed in streams.items() if name in live or name in _ALWAYS_NAMED} | switched
    layers = canonical_json(config.seeds.layers)
    run = {"streams": canonical_json(seeded), "layers": layers, "length": length, "schedule": schedule, **measuring}
    trajectory = {
        "streams": canonical_json(live),
        "layers": layers,
        "length": canonical_json({}) if config.length_is_free() else length,
    }
    return Identity(
        run_id=_hash(settings | run),
        trajectory_id=_hash(settings | trajectory),
        config_id=_hash(settings | {"length": length}),
    )


def _hash(parts: dict[str, str]) -> str:
    """Return the hash of the map of ``parts``, whose values are canonical JSON texts."""
    text = ",".join(f'"{name}":{parts[name]}' for name in sorted(parts))
    return hashlib.sha256(f"{{{text}}}".encode()).hexdigest()[:_DIGITS]


# Builds checked configs from the settings that Hydra composed, and lists the config's columns in the store.

MODES: Final[dict[str, type[RunConfig]]] = {"arithmetic": ArithmeticConfig, "gpt": GptConfig}


def load_configs(jobs: Sequence[Mapping[str, Any]]) -> list[RunConfig]:
    """Return the checked configs of many jobs; groups of settings that they share are checked once."""
    built: Built = {}
    return [load_config(job, built) for job in jobs]


def load_config(data: Mapping[str, Any], built: Built | None = None) -> RunConfig:
    """Return the checked config of nested plain ``data``; ``data["mode"]`` chooses its kind.

    ``built``: see :func:`grok.config.fields.build`.

    Raises:
        ConfigError: anything unknown, of a wrong type, out of range or impossible together.
    """
    mode = data.get("mode", "arithmetic")
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} is not known{nearest(str(mode), MODES)}: expected one of {', '.join(MODES)}")
    groups = {name: {f.name for f in fields(cls)} for name, cls in MODES.items()}
    for other in MODES:
        if elsewhere := sorted(data.keys() & groups[other] - groups[mode]):  # a named sweep may be for that mode
            raise ConfigError(
                f"{elsewhere[0]} belongs to mode={other}, and this is mode={mode}: add mode={other}, or leave "
                f"{elsewhere[0]} out"
            )
    config = build(MODES[mode], data, built=built)
    if isinstance(config, GptConfig):
        require_preset(config)
    return config


def config_columns() -> dict[str, Any]:
    """Return every recorded setting of every mode by dotted name with its type: the store's ``config.*`` columns.

    A name that two modes share has one type; the schema depends on it.
    """
    columns: dict[str, Any] = {}
    for cls in MODES.values():
        for name, (hint, _) in recorded_of(cls).items():
            assert columns.setdefault(name, hint) == hint, f"setting {name} has two types"
    return columns
