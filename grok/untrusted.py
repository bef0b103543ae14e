"""Safe handling of content that anybody may have written, and of secrets in text that is stored or shown.

A path is made of such content only through :func:`plain_name`, so that it cannot leave its
folder. JSON is read by :func:`read_json`, that in a table's column by :func:`read_json_text`.
Before a write, :func:`refuse_links` refuses links.
``SECURITY.md`` says what is trusted.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import stat
import types
import typing
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from grok.errors import GrokError, StoreError

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

LARGEST_JSON: Final = 1 << 27
"""Largest size of a JSON file in bytes; a larger one is not read. The record of 100,000 runs has about 10 MB."""

MOST_ENTRIES: Final = 10_000
"""Largest number of entries of a JSON map or list in a column, such as the metrics of one evaluation."""
LONGEST_NAME: Final = 200
"""Characters of a name in such a map."""
LONGEST_TEXT: Final = 1 << 24
"""Characters of such a text: more than names and numbers within these bounds have."""
DEEPEST: Final = 100
"""Levels of such a text."""


def is_plain(name: object) -> bool:
    """Return whether ``name`` may become the name of a file or folder.

    >>> is_plain("3f9a-branch.2"), is_plain("../../secret"), is_plain(".hidden"), is_plain("x.tmp-1")
    (True, False, False, False)
    """
    return isinstance(name, str) and _PLAIN.fullmatch(name) is not None and ".tmp-" not in name


def plain_name(name: object, what: str, kind: type[GrokError] = StoreError) -> str:
    """Return ``name`` if it may become the name of a file or folder.

    Raises:
        GrokError: of this ``kind``; ``name`` is not text, empty, too long, hidden, or a path.
    """
    if not is_plain(name):
        shown = name if not isinstance(name, str) or len(name) <= 80 else f"{name[:80]}..."
        raise kind(f"{what}={shown!r}: expected a name of letters, digits, '.', '_' and '-' (at most 128), not a path")
    return str(name)


def open_file(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading; with ``follow`` also a link to one. A pipe, which could block, is refused.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return open(handle, "rb")  # noqa: PTH123  (a handle, not a path)


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        OSError: see :func:`open_file`.
    """
    with open_file(path, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: Path, *, follow: bool = False) -> str:
    """Return the text of a JSON file.

    Raises:
        OSError: it cannot be read, or is a link (without ``follow``), a folder or a pipe.
        ValueError: it is not UTF-8, or larger than ``LARGEST_JSON``.
    """
    with open_file(path, follow=follow) as file:
        content = file.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise ValueError(f"larger than {LARGEST_JSON >> 20} MB")
    return content.decode()


def read_json(path: Path, *, follow: bool = False) -> Any:
    """Return the value in a JSON file.

    Raises:
        OSError: see :func:`read_text`.
        ValueError: see :func:`read_text`; also if it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_text(path, follow=follow))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json_object(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        OSError, ValueError: see :func:`read_json`; ValueError also if it is no object.
    """
    value = read_json(path, follow=follow)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, it is a {type(value).__name__}")
    return value


def has_shape(value: Any, shape: Any) -> bool:
    """Return whether a JSON value has the ``shape``.

    A type matches its instances (``float``: any number, but no boolean). ``[shape]`` matches a list
    of any length. A tuple matches if one of its shapes does. A dict matches an object with these
    keys and any others; a key with ``?`` at its end may be missing.

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


def name_problem(name: str) -> str | None:
    """Return why ``name`` cannot name a number in a column, in words behind "a name", or None.

    >>> name_problem("loss"), name_problem("x" * 2_000), name_problem(chr(0xD800))
    (None, 'of 2,000 characters, expected at most 200', 'that is not valid Unicode')
    """
    if len(name) > LONGEST_NAME:
        return f"of {len(name):,} characters, expected at most {LONGEST_NAME:,}"
    return "that is not valid Unicode" if any("\ud800" <= character <= "\udfff" for character in name) else None


def read_json_text(text: str, hint: Any) -> Any:
    """Return the value of a JSON text in a table's column.

    Args:
        text: anybody may have written it.
        hint: the type of the value: ``dict[str, ITEM]`` or ``list[ITEM]``.

    Raises:
        ValueError: it is not JSON, has another type, an invalid name, an integer of more than 64 bits, or is too large.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{len(text):,} characters, expected at most {LONGEST_TEXT:,}")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    kind, (*_, item) = typing.get_origin(hint), typing.get_args(hint)
    shape = typing.get_args(item) if isinstance(item, types.UnionType) else item
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__}, expected a {kind.__name__}")
    if len(value) > MOST_ENTRIES:
        raise ValueError(f"{len(value):,} entries, expected at most {MOST_ENTRIES:,}")
    for name, one in value.items() if kind is dict else enumerate(value):
        if shape is not Any and not has_shape(one, shape):
            raise ValueError(f"a {type(one).__name__}, expected {getattr(item, '__name__', item)}")
        if shape is not Any and isinstance(one, int) and not -(1 << 63) <= one < 1 << 63:
            raise ValueError("an integer of more than 64 bits")
        _refuse_odd(one, DEEPEST)
        if isinstance(name, str) and (problem := name_problem(name)) is not None:
            raise ValueError(f"a name {problem}")
    return value


def _refuse_odd(value: Any, levels: int) -> None:
    """Raise ValueError for a value that some reader of it cannot take."""
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError is a ValueError
    elif isinstance(value, list | dict):
        if not levels:
            raise ValueError(f"more than {DEEPEST} levels")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _refuse_odd(part, levels - 1)


def is_file(path: Path) -> bool:
    """Return whether ``path`` is a regular file, not a link."""
    return path.is_file() and not path.is_symlink()


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder, not a link."""
    return path.is_dir() and not path.is_symlink()


def refuse_links(folders: Iterable[Path], files: Iterable[Path], kind: type[GrokError] = StoreError) -> None:
    """Refuse a link or a file of another kind in the place of these folders and files; they may be missing.

    Raises:
        GrokError: of this ``kind``; the message names the path.
    """
    for wanted, paths in (("folder", folders), ("file", files)):
        for path in paths:
            try:
                mode = path.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISLNK(mode):
                raise kind(
                    f"{path} is a link to {str(path.readlink())!r}, and links are not followed for writing: "
                    f"put the {wanted} itself in its place"
                )
            if not (stat.S_ISDIR(mode) if wanted == "folder" else stat.S_ISREG(mode)):
                raise kind(f"{path} is not a {wanted}: move it away")


def unlinked(path: Path) -> Path:
    """Remove ``path`` if it is a link, so that the next write does not follow it; return ``path``."""
    if path.is_symlink():
        path.unlink()
    return path


# Masks secrets in text that is stored or shown.
#
# Masked are the password of a URL, what stands behind a name like that of a secret, tokens of well-known formats, and
# the values of environment variables with such names. Text that only looks like a secret is masked, too: stored text is
# for reading, not for connecting.

HIDDEN: Final = "***"

_PASSWORD: Final = re.compile(r"(:/+[^\s:/@?#'\"]*):\S*@")
"""``user:password@``, also where the URL was folded to ``:/`` as a path is; up to the last ``@``."""

_SECRET: Final = (
    r"(?:passwords?|passwd|passphrase|pwd|secret|credentials?|signature|(?:secret|api|access|private|account|storage)"
    r"[_-]?key|(?:access|auth|api|refresh|bearer)[_-]?token|(?:\b|_)pass)"
)
"""End of the name of a secret."""

_NAMED: Final = re.compile(rf"(?i)({_SECRET}['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;&'\"]+)")
"""``password=...`` of a setting, a URL or a connection string, and ``"password": "..."``."""

_TOKEN: Final = re.compile(r"(?i)((?:\b|_)token['\"]?\s*[=:]\s*)(['\"]?[\w.+/~-]{8,}['\"]?)")
"""``token=...``; a short value is a token of a text, not a secret."""

_NAME: Final = re.compile(rf"(?i)(?:{_SECRET}|(?:\b|_)token)$")
"""Matches the name of a setting or an environment variable whose value is a secret."""

_FORMS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|npm_[A-Za-z0-9]{20,}|AIza[\w-]{20,}|pypi-[\w-]{20,}"
    r"|ya29\.[\w-]{20,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""Tokens of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, npm, Google and PyPI, and JSON web tokens."""

_NOT_SECRET: Final = frozenset({"PWD", "OLDPWD"})
"""Variables with such a name whose value is the current folder."""


def without_passwords(text: str) -> str:
    """Return ``text`` with every secret replaced by ``***``.

    >>> without_passwords("log.plugin.url=postgresql://me:se/cr@t@host:5432/logs")
    'log.plugin.url=postgresql://me:***@host:5432/logs'
    >>> without_passwords("mysql://host/db?user=me&password=secret&ssl=1")
    'mysql://host/db?user=me&password=***&ssl=1'
    >>> without_passwords("host=db user=me password=se/cret"), without_passwords("tokenizer=gpt2 tokens=3")
    ('host=db user=me password=***', 'tokenizer=gpt2 tokens=3')
    """
    for value in _of_environment():
        if value in text:
            text = text.replace(value, HIDDEN)
    text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
    for form in (_NAMED, _TOKEN):
        text = form.sub(rf"\1{HIDDEN}", text)
    return _FORMS.sub(HIDDEN, text)


def without_secrets(value: Any) -> Any:
    """Return nested settings with every secret replaced by ``***``."""
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, Mapping):
        secret = {key for key, item in value.items() if isinstance(item, str) and item and _NAME.search(str(key))}
        return {key: HIDDEN if key in secret else without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


@functools.cache
def _of_environment() -> tuple[str, ...]:
    """Return the values of environment variables with the name of a secret, without short values and files' paths."""
    return tuple(
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and name not in _NOT_SECRET and _NAME.search(name) and not os.path.exists(value)  # noqa: PTH110  (a long value is no path, and no error)
    )
