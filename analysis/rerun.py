"""The command that trains a stored run again."""

from __future__ import annotations

import json
import re
import shlex
from typing import Final

import pandas as pd

from analysis.observations import differing_settings
from grok.config import ArithmeticConfig
from grok.config.fields import settings_of

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+*%@?|$-]+")
"""Values that Hydra's grammar takes unquoted."""

REPEATED: Final = tuple(
    name for name, (_, rule) in settings_of(ArithmeticConfig).items() if rule.role != "none" and name != "replicate"
)
SEED_STREAMS: Final = ("split", "init", "order", "dropout", "eval", "sample", "perturb")


def rerun_command(row: pd.Series) -> str:
    """Return the shell command of a stored arithmetic run: its seeds and all that differs from the defaults."""
    words = [f"seed={int(row['config.seed'])}"]
    for stream in SEED_STREAMS:
        given = row.get(f"config.seeds.{stream}")
        if given is not None and pd.notna(given):
            words.append(f"seeds.{stream}={int(given)}")
    layers = json.loads(row.get("config.seeds.layers") or "{}")
    if layers:
        inside = ",".join(f"{name}:{seed}" for name, seed in sorted(layers.items()))
        words.append(f"seeds.layers={{{inside}}}")
    words += [f"{name}={override_value(value)}" for name, value in differing_settings(row, REPEATED).items()]
    return " ".join(["python -m grok.run", *(shlex.quote(word) for word in words)])


def override_value(value: object) -> str:
    """Return a stored setting in Hydra's override grammar."""
    if value is None or value is pd.NA:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    text = str(value)
    if text.startswith(("[", "{")) or _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
