"""``grok run``: one run, or with ``-m`` a sweep, with Hydra's command line.

Hydra composes the settings; ``grok.execute`` does the work. Exit status 0: all runs are
stored; 1: a run failed or was interrupted, and the last line says how to continue; 2: the
command was refused, in one line.

The module is callable, so that ``grok.run(...)`` is a function in a notebook: see ``grok.api.run``.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any, Final

from grok.cli.command import GO_ON, command
from grok.cli.reference import run_help
from grok.cli.task import Task
from grok.cli.words import store_as_setting

if TYPE_CHECKING:
    import pandas as pd

OPTIONS: Final = ("--store", "--again", "--multirun", "--cfg", "--help", "--hydra-help")
"""Options for completion, beside settings."""


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Run a command line; the words are overrides and Hydra's options."""
    again = any(word.partition("=")[0] == "--again" for word in argv)
    if not again and not {"-h", "--help"}.isdisjoint(argv):
        print(run_help(argv))
        return 0
    if again:
        from grok.cli.again import main as train_again

        return train_again(argv)
    outcome = Task(["python", "-m", "grok.run", *argv]).carry_out(store_as_setting(argv))
    return 0 if outcome is None else outcome.exit_status


class _CallableModule(types.ModuleType):
    """A callable module: ``grok.run`` is both the module of the command and a function."""

    def __call__(self, *words: str, **settings: Any) -> pd.Series:
        """See ``grok.api.run``."""
        from grok.api import run

        return run(*words, **settings)


sys.modules[__name__].__class__ = _CallableModule

if __name__ == "__main__":
    sys.exit(main())
