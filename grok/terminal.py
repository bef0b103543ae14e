"""Text output that never fails: characters that the terminal lacks are replaced, and a closed pipe is ignored.

Secrets in the output to stderr are masked. Control characters are escaped, because a store or a text may have
them: :func:`visible`. Code that draws (a progress bar, a live view) gets its console from :func:`drawing_console`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from grok.files import discard_output
from grok.untrusted import without_passwords

if TYPE_CHECKING:
    from rich.console import Console

PLAIN: Final = str.maketrans(
    {"×": "x", "–": "-", "—": "-", "…": "...", "²": "^2", "≤": "<=", "≥": ">=", "→": "->", "·": "*", "±": "+-"}
)
"""Replacements of characters that the output's encoding lacks."""

CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What steers a terminal or hides text: all control characters except tab and line end, and marks of direction."""

_COLOUR: Final = r"(?:[0-4]|2[1-4]|3[0-79]|9[0-7])"
BESIDE_LOGS: Final = re.compile(rf"\x1b(?!\[(?:{_COLOUR}(?:;{_COLOUR})*)?m)|(?![\x08\r\x1b]){CONTROL.pattern}")
"""The same for stderr, where argparse and log handlers write colours, and other packages bars that begin with a return.

Colours hide no text. A message of this project has none of these: see :func:`one_line`.
"""

LONGEST_WORD: Final = 200
"""Characters of one word of a message; longer ones are cut."""
LONGEST_LINE: Final = 1200


class Output:
    """A text stream whose writes do not fail for a character that the encoding lacks, a closed pipe or terminal."""

    def __init__(self, stream: TextIO, *, masked: bool, escaped: re.Pattern[str] | None) -> None:
        """``masked``: replace secrets; ``escaped``: the characters that are written as escape sequences."""
        self._stream = stream
        self._masked = masked
        self._escaped = escaped

    def write(self, text: str) -> int:
        if self._masked:
            text = without_passwords(text)
        if self._escaped is not None:
            text = visible(text, self._escaped)
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self._stream.write(readable(text, self._stream.encoding))
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        if error.errno not in (errno.EPIPE, errno.EIO):  # nobody reads the pipe; the terminal is closed
            raise error
        discard_output(self._stream)

    def unescaped(self) -> Output:
        """Return the same stream without escaping, for code that draws with control characters."""
        return Output(self._stream, masked=self._masked, escaped=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def readable_output() -> Iterator[None]:
    """Replace stdout and stderr by :class:`Output` in this context and flush them at its end; a closed one discards."""
    before = sys.stdout, sys.stderr
    if isinstance(before[0], Output):  # a command inside a command
        yield
        return
    with ExitStack() as stack:
        streams = [stack.enter_context(Path(os.devnull).open("w")) if stream is None else stream for stream in before]
        sys.stdout = cast(TextIO, Output(streams[0], masked=False, escaped=CONTROL if streams[0].isatty() else None))
        sys.stderr = cast(TextIO, Output(streams[1], masked=True, escaped=BESIDE_LOGS))
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = before


def drawing_console(stream: TextIO) -> Console:
    """Return a rich console on ``stream`` whose control characters are not escaped."""
    from rich.console import Console

    return Console(file=cast(TextIO, stream.unescaped()) if isinstance(stream, Output) else stream)


def escape_beside_drawing() -> None:
    """Escape printed text while a live view of rich replaces stdout and stderr by its own streams."""
    sys.stdout = cast(TextIO, Output(sys.stdout, masked=False, escaped=CONTROL))
    sys.stderr = cast(TextIO, Output(sys.stderr, masked=True, escaped=BESIDE_LOGS))


def visible(text: str, escaped: re.Pattern[str] = CONTROL) -> str:
    """Return ``text`` with control characters as escape sequences: a store's text may have any.

    >>> print(visible("all is well" + chr(13) + "error" + chr(0x2028)))
    all is well\\rerror\\u2028
    """
    return escaped.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def readable(text: str, encoding: str) -> str:
    """Return ``text`` with replacements or escapes for characters that ``encoding`` lacks.

    >>> readable("2 × 3 – ж", "ascii")
    '2 x 3 - \\\\u0436'
    """
    return text.translate(PLAIN).encode(encoding, "backslashreplace").decode(encoding)


def one_line(message: object) -> str:
    """Return a message as one line that a person can read: long words in it are cut, and so is the line.

    >>> one_line("two\\nlines"), len(one_line("x" * 10_000)), len(one_line("word " * 10_000)) <= LONGEST_LINE
    ('two lines', 122, True)
    """
    words = [
        word if len(word) <= LONGEST_WORD else f"{word[:100]}...({len(word):,} characters)"
        for word in visible(" ".join(str(message).split())).split()
    ]
    line = " ".join(words)
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 4]} ..."


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print warnings as one line each, without the place in the code."""
    with warnings.catch_warnings():
        print_warnings_in_one_line()
        yield


def print_warnings_in_one_line() -> None:
    """As :func:`warnings_in_one_line`, for the rest of the process."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {one_line(message)}", file=sys.stderr)


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(11400), duration(200), duration(7)
    ('3 h 10 min', '3 min 20 s', '7 s')
    """
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole % 60} s"
    return f"{whole} s"


def size(count: float) -> str:
    """Return a number of bytes as people say it.

    >>> size(999), size(2_500_000), size(80e9)
    ('999 B', '2.5 MB', '80.0 GB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
