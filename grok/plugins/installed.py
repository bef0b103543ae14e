"""The fingerprint of installed code: its distribution's version, and the hash of the module's file."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grok.version import __version__

OURS: Final = ("grok", "analysis", "sweeps", "hydra_plugins")
DIGITS: Final = 16


def fingerprint_of_installed(module: str) -> str:
    """Return ``NAME VERSION:`` and the hash of the file of an installed module."""
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin) if spec is not None and spec.origin is not None else None
    text = file.read_bytes() if file is not None and file.is_file() else b""
    return f"{version_of(module)}{hashlib.sha256(text).hexdigest()[:DIGITS]}"


def version_of(module: str) -> str:
    """Return ``NAME VERSION:`` of the distribution that installed ``module``, or an empty text."""
    top = module.split(".", maxsplit=1)[0]
    if top in OURS:
        return f"grok-lab {__version__}:"
    names = _distributions().get(top)
    return f"{names[0]} {importlib.metadata.version(names[0])}:" if names else ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by package; reading them takes a second."""
    return importlib.metadata.packages_distributions()
