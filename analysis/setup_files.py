"""The settings in the project's files of experiments, sweeps and studies, by dotted name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from grok.cli import setups


def setup_file(group: str, name: str) -> dict[str, Any] | None:
    """Return the settings of ``conf/GROUP/NAME.yaml`` by dotted name; None if the project has no such file."""
    file = setups.folder() / group / f"{name}.yaml"
    if re.fullmatch(r"[\w/]+", name) and file.is_file():
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        return flattened({k: v for k, v in content.items() if k != "defaults"})
    return None


def flattened(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
