"""What the content of a store, a corpus or a checkpoint may do: never name a path outside, never lead along a link.

Stores are passed around, so whatever lies in one may have been written by anybody. Every
path that is made of such content is made of a :func:`plain_name`, JSON is read by
:func:`read_json`, and before anything is written, :func:`refuse_links` has looked. What
is trusted and what is not: ``SECURITY.md``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final

from grok.errors import GrokError, StoreError

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

LARGEST_JSON: Final = 1 << 30
"""Bytes of a JSON file above which it is not read: the record of 100,000 runs has some 10 MB."""


def is_plain(name: object) -> bool:
    """Return whether ``name`` may become the name of a file or folder.

    >>> is_plain("3f9a-branch.2"), is_plain("../../secret"), is_plain(".hidden"), is_plain("x.tmp-1")
    (True, False, False, False)
    """
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None and ".tmp-" not in name


def plain_name(name: object, what: str, kind: type[GrokError] = StoreError) -> str:
    """Return ``name`` if it may become the name of a file or folder.

    Raises:
        GrokError: of this ``kind``; it is not text, empty, too long, hidden, or could point elsewhere.
    """
    if not is_plain(name):
        shown = name if not isinstance(name, str) or len(name) <= 80 else f"{name[:80]}..."
        raise kind(f"{what}={shown!r}: expected a name of letters, digits, '.', '_' and '-' (at most 128), not a path")
    return str(name)


def open_file(path: Path, *, follow: bool = False) -> IO[bytes]:
    """Open a file for reading: no pipe, which would keep the reader waiting, and a link only to ``follow`` it.

    Raises:
        OSError: it cannot be opened, or is something else.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return open(handle, "rb")  # noqa: PTH123  (a handle, not a path)


def read_json(path: Path, *, follow: bool = False) -> Any:
    """Return what a JSON file says.

    Raises:
        OSError: it cannot be read; a link (unless to ``follow`` it), a folder or a pipe is not.
        ValueError: it is not JSON, or nested deeper or larger than anything that this project writes.
    """
    with open_file(path, follow=follow) as file:
        content = file.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise ValueError(f"larger than {LARGEST_JSON >> 20} MB")
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json_object(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """Return what a JSON file says, which must be an object. Raises: see :func:`read_json`."""
    value = read_json(path, follow=follow)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, it is a {type(value).__name__}")
    return value


def has_shape(value: Any, shape: Any) -> bool:
    """Return whether a JSON value is made as ``shape`` says.

    A type is an instance of it (``float``: any number, never a flag); ``[shape]`` a list of any
    length; a tuple any one of its shapes; a dict an object with these keys and any others,
    where a key with ``?`` at its end may be missing.

    >>> has_shape({"runs": [1, 2.5], "more": 0}, {"runs": [float], "name?": str})
    True
    >>> has_shape({"runs": 7}, {"runs": [float]}), has_shape(True, int), has_shape(None, (int, None))
    (False, False, True)
    """
    if isinstance(shape, tuple):
        return any(has_shape(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            (key.endswith("?") and key[:-1] not in value) or has_shape(value.get(key.rstrip("?")), one)
            for key, one in shape.items()
        )
    if shape is None:
        return value is None
    if isinstance(value, bool):
        return shape is bool
    return isinstance(value, (int, float) if shape is float else shape)


def is_file(path: Path) -> bool:
    """Return whether there is a file of this name: not a link to one, nor a folder or a pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether there is a folder of this name, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def refuse_links(folders: Iterable[Path], files: Iterable[Path], kind: type[GrokError] = StoreError) -> None:
    """Refuse to write where one of these is a link, or something else than it should be. What is missing is fine.

    Raises:
        GrokError: of this ``kind``, with the name.
    """
    for wanted, paths in (("folder", folders), ("file", files)):
        for path in paths:
            try:
                mode = path.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISLNK(mode):
                raise kind(
                    f"{path} is a link to {str(path.readlink())!r}, and links are not followed when something is "
                    f"written: put the {wanted} itself in its place"
                )
            if not (stat.S_ISDIR(mode) if wanted == "folder" else stat.S_ISREG(mode)):
                raise kind(f"{path} is not a {wanted}: move it away")


def unlinked(path: Path) -> Path:
    """Return ``path`` after removing a link of that name, so that what is written next does not go where it points."""
    if path.is_symlink():
        path.unlink()
    return path
