"""The fingerprint of installed code: its distribution's version, and the hash of what the distribution installed."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from grok.version import __version__

OURS: Final = ("grok", "analysis", "sweeps", "hydra_plugins")
OWN_FILE_ONLY: Final = (*OURS, "torch")
"""Packages of which only the module's own file is hashed: stored runs carry these hashes."""
DIGITS: Final = 16


def fingerprint_of_installed(module: str) -> str:
    """Return ``NAME VERSION:`` and the hash of the code of an installed module.

    Hashed are the module's file, and the name and hash of every Python file that the distribution's ``RECORD`` lists.
    A distribution without this list (of a Linux distribution's package manager) counts by the module's file alone.
    """
    file = _file(module)
    digest = hashlib.sha256(file.read_bytes() if file is not None else b"")
    if file is not None and module.split(".", maxsplit=1)[0] not in OWN_FILE_ONLY:
        for path, text in sorted(next(_with_file(module, file), ("", {}))[1].items()):
            digest.update(f"\0{path}\0{text}".encode())
    return f"{version_of(module)}{digest.hexdigest()[:DIGITS]}"


def version_of(module: str) -> str:
    """Return ``NAME VERSION:`` of the distribution that installed ``module``, or an empty text."""
    if module.split(".", maxsplit=1)[0] in OURS:
        return f"grok-lab {__version__}:"
    names = _names(module)
    if len(names) > 1 and (file := _file(module)) is not None:  # several distributions share a namespace package
        names = [name for name, _ in _with_file(module, file)] or names
    return f"{names[0]} {importlib.metadata.version(names[0])}:" if names else ""


def _file(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
    return file if file is not None and file.is_file() else None


def _names(module: str) -> list[str]:
    return list(dict.fromkeys(_distributions().get(module.split(".", maxsplit=1)[0], [])))


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by package; reading them takes a second."""
    return importlib.metadata.packages_distributions()


def _with_file(module: str, file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each distribution that installed ``file``, the file of ``module``: its name, its Python files' hashes."""
    for name in _names(module):
        distribution = importlib.metadata.distribution(name)
        folder = Path(str(distribution.locate_file(""))).resolve()
        rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
        # not scripts outside the folder: they hold the path of this machine's Python
        hashes = {row[0]: row[1] for row in rows if len(row) > 1 and row[0].endswith(".py") and row[0][:1] not in "./"}
        if file.is_relative_to(folder) and file.relative_to(folder).as_posix() in hashes:
            yield name, hashes
