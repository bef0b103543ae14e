"""The set-ups, named sweeps and studies of the project, as their files set them: by dotted names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from grok.cli import setups


def setup_file(group: str, name: str) -> dict[str, Any] | None:
    """Return what ``conf/GROUP/NAME.yaml`` sets, by dotted name; None where there is no such file of the project."""
    file = setups.folder() / group / f"{name}.yaml"
    if re.fullmatch(r"[\w/]+", name) and file.is_file():
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        return flattened({k: v for k, v in content.items() if k != "defaults"})
    return None


def flattened(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return a tree of settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
