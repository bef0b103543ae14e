"""What every command does around its work: refusals in one line, a clean end on Ctrl-C, output files.

Exit status: 0 done, 1 something failed or was interrupted, 2 refused. With HYDRA_FULL_ERROR=1
an error is raised with its traceback instead.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from grok.config.common import StoreConfig
from grok.config.fields import Rule, accepted_values, check
from grok.errors import ConfigError, GrokError, in_words
from grok.plugins import exits_refused
from grok.processes import Rank
from grok.terminal import one_line, readable_output, warnings_in_one_line

FULL_ERROR: Final = "HYDRA_FULL_ERROR"
"""Environment variable: ``1`` shows tracebacks."""

AGAIN: Final = "the same command starts again"
GO_ON: Final = "what was finished is stored. The same command goes on where it stopped."


class Main(Protocol):
    """A command: takes the words behind its name (None: those of the process) and returns its exit status."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


class Interrupted(KeyboardInterrupt):
    """A request to end. Not KeyboardInterrupt itself, because Python may still end with SIGINT after one was caught."""


def command(*, interrupted: str = AGAIN) -> Callable[[Callable[[list[str]], int]], Main]:
    """Make a command of a function from words to an exit status.

    ``interrupted`` says how to go on after Ctrl-C, SIGTERM, SIGUSR1 or a closed terminal (SIGHUP).
    """

    def decorate(body: Callable[[list[str]], int]) -> Main:
        @functools.wraps(body)
        def main(argv: Sequence[str] | None = None) -> int:
            words = list(sys.argv[1:] if argv is None else argv)
            if sys.__stderr__ is not None and not faulthandler.is_enabled():
                # names the line of the user's own code that kills the process
                faulthandler.enable(sys.__stderr__, all_threads=False)
            with readable_output(), warnings_in_one_line():
                try:
                    with _interruptible(), exits_refused():
                        return body(words)
                except SystemExit as end:  # --help
                    return end.code if isinstance(end.code, int) else 0 if end.code is None else 2
                except KeyboardInterrupt:
                    print(f"Interrupted: {interrupted}", file=sys.stderr, flush=True)
                    return 1
                except GrokError as error:
                    if os.environ.get(FULL_ERROR) == "1":
                        raise
                    if Rank.of_this_process().index == 0:  # the others would say the same
                        print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
                    return error.exit_status
                except (OSError, MemoryError) as error:
                    if os.environ.get(FULL_ERROR) == "1":
                        raise
                    print(f"error: {one_line(_outside_reason(error))}", file=sys.stderr, flush=True)
                    return 2 if isinstance(error, OSError) and error.errno in _ABOUT_A_NAME else 1

        return main

    return decorate


def _path(text: str) -> Path:
    if not text:  # of a variable that was not set; as a path it would be the current folder
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return Path(text)


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses as every command does: in one line. Texts of several lines keep them."""

    def __init__(self, **settings: Any) -> None:
        if "\n" in f"{settings.get('description')}{settings.get('epilog')}":
            settings["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**settings)
        self.register("type", Path, _path)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (-[^:]+): ", r"\1 ", message)
        raise ConfigError(f"{message} (`{self.prog} --help` says what is accepted)")


def number(kind: type[int] | type[float], **bounds: float) -> Callable[[str], Any]:
    """Return the type of an option that takes a number within the bounds of a :class:`Rule`."""
    rule = Rule(doc="", **bounds)  # type: ignore[arg-type]

    def typed(text: str) -> Any:
        try:
            return check("", kind(text), kind, rule)
        except (ValueError, ConfigError):
            raise argparse.ArgumentTypeError(f"{text}: expected {accepted_values(kind, rule)}") from None

    return typed


natural, positive = number(int, minimum=0), number(int, minimum=1)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Let a command that reads one store name it both ways; :func:`store_of` says which it is."""
    default = StoreConfig().path
    parser.add_argument("store", nargs="?", metavar="STORE", help=f"folder of the store (default: {default})")
    parser.add_argument("--store", dest="named_store", metavar="STORE", help="the same as the position STORE")


def store_of(arguments: argparse.Namespace) -> Path:
    """Return the store that a command's words name.

    Raises:
        ConfigError: they name two.
    """
    if arguments.store is not None and arguments.named_store not in (None, arguments.store):
        raise ConfigError(f"two stores: {arguments.store} and --store {arguments.named_store}; give one of them")
    return Path(arguments.store or arguments.named_store or StoreConfig().path)


_ABOUT_A_NAME: Final = frozenset(
    {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM}
    | {errno.ELOOP, errno.EROFS, errno.ENXIO, errno.EINVAL}
)
"""Errors of a path that cannot be what was asked for: a refusal. Others (a full disk) come on the way."""


def _outside_reason(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory ({error})" if str(error) else "not enough memory"
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror or error}"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP end a command like Ctrl-C; training handles signals itself."""

    asked = []

    def interrupt(number: int, frame: object) -> None:
        asked.append(number)
        raise Interrupted

    here = threading.current_thread() is threading.main_thread()
    requests = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP) if here else ()
    heard = [number for number in requests if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    except Exception as error:  # of a library whose own cleaning up failed when the request came in its midst
        if asked:
            raise Interrupted from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Output files and folders of commands: refused before the work, or in one line after it.


def refuse_unwritable(option: str, place: Path, *, folder: bool = False) -> None:
    """Refuse ``option PLACE`` where no file (or ``folder``) can be written. Folders that are missing are made later.

    Raises:
        ConfigError: it is a folder, a part of its path is a file, its name is too long, or nobody may write there.
    """
    with in_words(ConfigError, f"{option} {place}: nothing can have this name", OSError):
        nearest = next(path for path in (place, *place.absolute().parents) if path.exists())
        if nearest == place and nearest.is_dir() != folder:
            raise ConfigError(f"{option} {place} is {'no folder' if folder else 'a folder'}: give another name")
        if nearest != place and not nearest.is_dir():
            raise ConfigError(f"{option} {place}: {nearest} is no folder; give another place")
        if not os.access(nearest, os.W_OK):
            raise ConfigError(f"{option} {place}: no permission to write there; give another place")


def write_text(option: str, file: Path, text: str) -> None:
    """Write ``text`` to the file that ``option`` names.

    Raises:
        ConfigError: the disk refuses.
    """
    with in_words(ConfigError, f"{option} {file} cannot be written: give another file", OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
