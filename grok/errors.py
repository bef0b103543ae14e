"""The errors that users meet. Each message says what was asked, what was given and what would do."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class GrokError(Exception):
    """Root of every error that this project raises on purpose.

    ``exit_status`` is what a command ends with when the error reaches the door:
    2 means refused before anything was trained or written, 1 that something
    failed on the way.
    """

    exit_status = 2


class ConfigError(GrokError):
    """A setting is unknown, of the wrong type, impossible, or clashes with another."""


class StoreError(GrokError):
    """The store cannot be opened, read or written as asked."""


class DataError(GrokError):
    """Text or token data is missing, damaged or does not fit the settings."""


class CheckpointError(GrokError):
    """A checkpoint is missing, damaged or belongs to other settings."""


class TrainingError(GrokError):
    """Training could not go on; what was finished before is kept."""

    exit_status = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the closest known name, or an empty string.

    >>> nearest("modulos", ["modulus", "operation"])
    ", did you mean 'modulus'?"
    >>> nearest("lr", ["seed", "optim.lr"])
    ", did you mean 'optim.lr'?"
    >>> nearest("zzz", ["modulus"]), nearest("model.contex", ["model.tied"])
    ('', '')
    """
    names = list(known)
    inside = [dotted for dotted in names if dotted.endswith(f".{name}")]  # typed without its group
    leaf = name.rpartition(".")[2]
    near = [
        dotted
        for dotted in names
        if len(leaf) < 3 or difflib.SequenceMatcher(None, leaf, dotted.rpartition(".")[2]).ratio() >= 0.6
    ]
    match = inside[:1] or difflib.get_close_matches(name, near, n=1, cutoff=0.6)
    return f", did you mean '{match[0]}'?" if match else ""


def disk_remedy(number: int | None, otherwise: str) -> str:
    """Return what would do about an error of the file system (its ``errno``), or ``otherwise`` where nothing is known.

    >>> disk_remedy(28, "No space left on device")
    'the disk is full: free some space'
    >>> disk_remedy(None, "not a file system's error")
    "not a file system's error"
    """
    return {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the disk quota is used up: free some space",
        errno.EFBIG: "the file would be larger than this process or file system may write",
        errno.EROFS: "the file system is read-only: choose another store.path or remount it",
        errno.EACCES: "no permission: choose another store.path or change its owner",
        errno.EPERM: "no permission: choose another store.path or change its owner",
    }.get(number or 0, otherwise)
