"""``python -m grok.run``: one run, or with ``-m`` a sweep, by Hydra's command line.

Hydra reads the settings and nothing else; ``grok.execute`` does the work. Whatever is
refused is one line on stderr and exit status 2, without a traceback (unless
HYDRA_FULL_ERROR=1). Exit status 0: everything asked for is stored; 1: something failed
or was interrupted, and the last line says how to go on.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from grok.cli.compose import conf_source
from grok.cli.presets import announcement, refuse_another_modes, refuse_bare_words, unknown_preset, unknown_setting
from grok.config import MODES, GptConfig, load_config
from grok.config.fields import settings_of
from grok.errors import ConfigError, GrokError, TrainingError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from grok.execute import Outcome

FULL_ERROR: Final = "HYDRA_FULL_ERROR"


class Door:
    """Hydra's task function: a single run is a call, a sweep one call of :meth:`run_plan`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.outcome: Outcome | None = None
        self.refusal: GrokError | None = None

    def __call__(self, config: DictConfig) -> None:
        """Train the one run of a command without ``-m``."""
        from omegaconf import OmegaConf

        try:
            settings = OmegaConf.to_container(config, resolve=True)
            self._execute([typing.cast(dict[str, Any], settings)])
        except GrokError as refusal:  # Hydra would add lines of its own
            self.refusal = refusal

    def run_plan(self, settings: Sequence[Mapping[str, Any]]) -> Sequence[str | Exception]:
        """Train all jobs of a sweep; return each one's run_id, or what it failed with."""
        outcome = self._execute(settings)
        return [self._ended(run_id, outcome) for run_id in outcome.run_ids]

    def _execute(self, settings: Sequence[Mapping[str, Any]]) -> Outcome:
        from grok.execute import execute

        configs = [load_config(job) for job in settings]
        for line in announcement([c for c in configs if isinstance(c, GptConfig)], self.argv):
            print(line, flush=True)
        self.outcome = execute(configs, argv=self.argv)
        return self.outcome

    @staticmethod
    def _ended(run_id: str, outcome: Outcome) -> str | Exception:
        if outcome.statuses.get(run_id) == "failed":
            return TrainingError(f"run {run_id} failed: {outcome.errors.get(run_id, 'in an earlier command')}")
        return run_id


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name) and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    door = Door(["python", "-m", "grok.run", *given])
    wants_trace = os.environ.get(FULL_ERROR) == "1"
    try:
        with _interruptible(), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            if any(word.partition("=")[0] == "--again" for word in given):
                from grok.cli import again

                return again.main(given)
            refuse_another_modes(given)
            _hydra(door, [as_meant(word) for word in given])
        if door.refusal is not None:
            raise door.refusal
    except SystemExit as end:  # --help, --version, a wrong option
        return end.code if isinstance(end.code, int) else 2
    except KeyboardInterrupt:
        print("Interrupted: what was finished is stored. The same command goes on where it stopped.", flush=True)
        return 1
    except Exception as error:
        if wants_trace or not is_refusal(error):
            raise
        print(f"error: {explain(error)}", file=sys.stderr)
        return error.exit_status if isinstance(error, GrokError) else 2
    return door.outcome.exit_status if door.outcome is not None else 0


class Interrupted(KeyboardInterrupt):
    """A request to end. A class of its own: Python ends with SIGINT after some KeyboardInterrupts that were caught."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGUSR1 end a command as Ctrl-C does also while it is planned; training has its own way."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    here = threading.current_thread() is threading.main_thread()
    requests = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1) if here else ()
    heard = [number for number in requests if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hydra(door: Door, words: list[str]) -> None:
    from hydra import version
    from hydra._internal.utils import _run_hydra, get_args_parser

    version.setbase("1.3")
    parser = get_args_parser()
    parser.error = _refuse_option  # type: ignore[method-assign]  # its own prints eight lines of Hydra's options
    args = parser.parse_intermixed_args(words)  # options may stand behind overrides
    refuse_bare_words(args.overrides)
    for word in args.overrides:
        _refuse_path(word)
    if not args.multirun and (sweeps := [word for word in args.overrides if word.startswith("sweep=")]):
        raise ConfigError(f"{sweeps[0]}: a named sweep is many runs, give -m to run all of them")
    before = os.environ.get(FULL_ERROR)
    os.environ[FULL_ERROR] = "1"  # Hydra then raises instead of printing several lines and a traceback
    try:
        _run_hydra(args=args, args_parser=parser, task_function=door, config_path=conf_source(), config_name="config")
    finally:
        if before is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = before


def _refuse_option(message: str) -> NoReturn:
    raise ConfigError(f"{message}: settings are given without dashes, as NAME=VALUE (seed=7); --help lists them")


def _refuse_path(word: str) -> None:
    """Refuse a set-up from outside ``conf/``: Hydra would take any path for a name."""
    group, equals, name = word.lstrip("+~").partition("=")
    if equals and group in ("experiment", "sweep", "mode") and ".." in name:
        raise ConfigError(f"{group}={name} is a path: expected a name below conf/{group}/")


def as_meant(word: str) -> str:
    """Return an override as Hydra's grammar needs it where what people type means something else to it.

    >>> as_meant("save=init,final"), as_meant("seeds.layers={blocks.1:7}")
    ("save='init,final'", '++seeds.layers={blocks.1:7}')
    >>> as_meant("task.operation=x^2+y^2,x+y")
    "task.operation='x^2+y^2','x+y'"
    """
    name, equals, value = word.partition("=")
    if not equals:
        return word
    if name == "save" and "," in value and value.isascii() and "'" not in value and '"' not in value:
        return f"save='{value}'"  # not a sweep: what is kept is no part of a run
    if name == "task.operation" and "^" in value and not set(value) & set("'\"()[]{}"):
        return f"{name}=" + ",".join(f"'{operation}'" for operation in value.split(","))
    if name in _maps():
        return f"++{word}"  # a map takes new keys
    return word


def _maps() -> set[str]:
    return {
        name
        for mode in MODES.values()
        for name, (hint, _) in settings_of(mode).items()
        if typing.get_origin(hint) is dict
    }


def is_refusal(error: Exception) -> bool:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    return isinstance(error, (GrokError, HydraException, OmegaConfBaseException)) or (
        isinstance(error, ValueError) and "--" in str(error)  # Hydra's word about options that exclude each other
    )


def explain(error: Exception) -> str:
    """Return one line that says what was asked, what was given and what would do."""
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, GrokError):
        return " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        reason = error.message.partition("See https://hydra.cc")[0].replace("^", " ")
        return f"{error.override!r} cannot be read: {_joined(reason)} (quote values with special characters)"
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        if group == "experiment/gpt":
            return unknown_preset(f"gpt/{name}")
        known = sorted(error.options)
        return f"{group}={name} is not known{nearest(name, known)}: expected one of {', '.join(known)}"
    text = str(error) or str(error.__cause__ or "")
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        return unknown_setting(unknown[1])
    if "requires --multirun" in text or "Ambiguous value" in text:
        asked = re.search(r"'([^']+=.*?)'(?: requires|\s)", text)
        return f"{asked[1] if asked else 'several values'}: several values are a sweep, give -m to run all of them"
    cause = f": {error.__cause__}" if str(error) and error.__cause__ is not None else ""
    return _joined(text + cause)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    print(f"warning: {_joined(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
