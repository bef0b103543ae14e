"""Output that no terminal and no pipe can stop: characters it cannot show are replaced, and its reader may leave.

What goes to stderr is about the command, and has no secrets in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

from grok.files import discard_output
from grok.masking import without_passwords

PLAIN: Final = str.maketrans(
    {"×": "x", "–": "-", "—": "-", "…": "...", "²": "^2", "≤": "<=", "≥": ">=", "→": "->", "·": "*", "±": "+-"}
)
"""How a terminal without these characters shows them."""


class _Output:
    """A text stream whose writes do not fail where a character or a reader is missing."""

    def __init__(self, stream: TextIO, *, masked: bool) -> None:
        self._stream = stream
        self._masked = masked

    def write(self, text: str) -> int:
        if self._masked:
            text = without_passwords(text)
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self._stream.write(readable(text, self._stream.encoding))
        except BrokenPipeError:
            discard_output(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            discard_output(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def readable_output() -> Iterator[None]:
    """Make stdout and stderr such streams while entered, and flush them on leaving."""
    before = sys.stdout, sys.stderr
    if isinstance(before[0], _Output):  # a command inside a command
        yield
        return
    sys.stdout = cast(TextIO, _Output(before[0], masked=False))
    sys.stderr = cast(TextIO, _Output(before[1], masked=True))
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def readable(text: str, encoding: str) -> str:
    """Return ``text`` in the characters of ``encoding``.

    >>> readable("2 × 3 – ж", "ascii")
    '2 x 3 - \\\\u0436'
    """
    return text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)
