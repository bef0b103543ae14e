"""The errors for users. Each message says what was requested, what is wrong, and what helps."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class GrokError(Exception):
    """Base class of every error that this project raises for users.

    ``exit_status`` is the exit status of a command that the error ends: 2 means that it was
    refused before anything was trained or written, 1 that something failed later.
    """

    exit_status = 2


class ConfigError(GrokError):
    """A setting is unknown, has the wrong type or an impossible value, or conflicts with another."""


class StoreError(GrokError):
    """The store cannot be opened, read or written."""


class DataError(GrokError):
    """Text or token data is missing, damaged or does not fit the settings."""


class CheckpointError(GrokError):
    """A checkpoint is missing, damaged or belongs to other settings."""


class CheckpointUnreadable(GrokError):
    """A checkpoint that may be intact cannot be read: the disk refuses, memory is short, or its format is newer.

    No CheckpointError: a run must not begin anew for that, because its next checkpoint would replace the one that
    cannot be read.
    """


class OtherRunsCheckpoint(CheckpointUnreadable):
    """A checkpoint in the folder of one run is of another one. Nothing goes on from it, and nothing removes it."""


class TrainingError(GrokError):
    """Training could not continue; finished runs are kept."""

    exit_status = 1


def one_line(error: BaseException) -> str:
    """Return an error's message in one line: of ours whole, of others at most 300 printable characters.

    >>> one_line(OSError("two\\nlines")), one_line(KeyError())
    ('two lines', 'KeyError')
    """
    text = "".join(c if c.isprintable() else " " for c in str(error))  # it may quote damaged bytes
    line = " ".join(text.split()) or type(error).__name__
    return line if isinstance(error, GrokError) else line[:300]


@contextmanager
def in_words(kind: type[GrokError], words: str, *errors: type[BaseException]) -> Iterator[None]:
    """Turn ``errors`` of the block (none given: all but our own) into one of this ``kind``: ``words``, and the reason.

    >>> with in_words(DataError, "the file cannot be read", OSError):
    ...     raise FileNotFoundError(2, "No such file")
    Traceback (most recent call last):
    grok.errors.DataError: the file cannot be read (No such file)
    """
    kinds = errors or (Exception,)
    try:
        yield
    except GrokError:
        raise
    except kinds as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {one_line(error)}"
        raise kind(f"{words} ({reason or one_line(error)})") from error


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
    """Return cause and remedy of an error of the file system by its ``errno``, or ``otherwise`` for other errors.

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
