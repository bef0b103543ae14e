"""Output that no terminal and no pipe can stop: characters it cannot show are replaced, and its reader may leave.

What goes to stderr is about the command, and has no secrets in it. Characters that steer a terminal
are shown instead of obeyed: they may come from a store or a text of somebody else.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TextIO, cast

from grok.files import discard_output
from grok.masking import without_passwords

PLAIN: Final = str.maketrans(
    {"×": "x", "–": "-", "—": "-", "…": "...", "²": "^2", "≤": "<=", "≥": ">=", "→": "->", "·": "*", "±": "+-"}
)
"""How a terminal without these characters shows them."""


STEERING: Final = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but for tab, line end, return and backspace, and those that turn the direction of text."""


class _Output:
    """A text stream whose writes do not fail where a character or a reader is missing."""

    def __init__(self, stream: TextIO, *, masked: bool) -> None:
        self._stream = stream
        self._masked = masked

    def write(self, text: str) -> int:
        if self._masked:
            text = without_passwords(text)
        if self._masked or self._stream.isatty():
            text = STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
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
    """Make stdout and stderr such streams while entered, and flush them on leaving; closed ones lead nowhere."""
    before = sys.stdout, sys.stderr
    if isinstance(before[0], _Output):  # a command inside a command
        yield
        return
    with ExitStack() as stack:
        streams = [stack.enter_context(Path(os.devnull).open("w")) if stream is None else stream for stream in before]
        sys.stdout = cast(TextIO, _Output(streams[0], masked=False))
        sys.stderr = cast(TextIO, _Output(streams[1], masked=True))
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
