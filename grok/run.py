"""``grok run``: one run, or with ``-m`` a sweep, with Hydra's command line.

Hydra composes the settings; ``grok.execute`` does the work. Exit status 0: all runs are
stored; 1: a run failed or was interrupted, and the last line says how to continue; 2: the
command was refused, in one line.

The module is callable, so that ``grok.run(...)`` is a function in a notebook: see ``grok.run.run``.
"""

from __future__ import annotations

import os
import sys
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grok.commands.command import GO_ON, command
from grok.commands.compose import Task
from grok.commands.reference import run_help
from grok.commands.words import as_value, hint_of, store_as_setting
from grok.config.values import literal
from grok.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Run a command line; the words are overrides and Hydra's options."""
    again = any(word.partition("=")[0] == "--again" for word in argv)
    if not again and not {"-h", "--help"}.isdisjoint(argv):
        print(run_help(argv))
        return 0
    if again:
        from grok.commands.again import main as train_again

        return train_again(argv)
    outcome = Task(["python", "-m", "grok.run", *argv]).carry_out(store_as_setting(argv))
    return 0 if outcome is None else outcome.exit_status


class _CallableModule(types.ModuleType):
    """A callable module: ``grok.run`` is both the module of the command and a function."""

    def __call__(self, *words: str, **settings: Any) -> pd.Series:
        """See ``grok.run.run``."""

        return run(*words, **settings)


sys.modules[__name__].__class__ = _CallableModule

# Runs and sweeps from Python, for notebooks and scripts.
#
# Both functions accept the words of the command line, or values: ``sweep("experiment=quickstart", seed=range(0, 64),
# optim__lr=[1e-3, 3e-3], store="results/rates")``. Two underscores mean the dot in a setting's name. Runs in the store
# are not trained again.


def run(*words: str, **settings: Any) -> pd.Series:
    """Train one run, unless it is in the store, and return its row.

    Args:
        words: settings as on the command line: ``"experiment=quickstart"``, ``"optim.lr=1e-3"``.
        settings: settings as values; ``store`` is the folder of the store.

    Returns:
        The run's row in ``runs``, indexed by column; empty for ``dry_run=True``.

    Raises:
        GrokError: a setting is refused, or the store cannot be used.
        KeyboardInterrupt: the run was interrupted; the same call continues it.
    """
    import pandas as pd

    rows = _rows([*words, *_as_words(settings)])
    if rows is None:
        return pd.Series(dtype=object)
    if rows.empty:
        raise KeyboardInterrupt("the run was interrupted; the same call continues it")
    return rows.iloc[0]


def sweep(*words: str, **settings: Any) -> pd.DataFrame:
    """Train the product of all settings with several values, and return one row per run, in the product's order.

    Args:
        words: settings as on the command line: ``"sweep=census"``, ``"seed=range(0,64)"``, ``"optim.lr=1e-3,3e-3"``.
        settings: settings as values; the sweep has a run for each element of a ``range``, list, tuple or array.

    Returns:
        The rows in ``runs``; empty for ``dry_run=True``. After an interruption the rows of the finished runs; the
        same call continues.

    Raises:
        GrokError: a setting is refused, or the store cannot be used.
    """
    import pandas as pd

    rows = _rows(["-m", *words, *_as_words(settings)])
    return pd.DataFrame() if rows is None else rows


def _rows(words: list[str]) -> pd.DataFrame | None:
    """Return the stored rows of the runs that ``words`` describe; None after a dry run."""
    from grok.store import open_store

    task = Task(["python", "-m", "grok.run", *words])
    outcome = task.carry_out(words)
    if outcome is None or task.configs[0].dry_run:
        return None
    stored = open_store(task.configs[0].store.path).runs()
    order = {run_id: number for number, run_id in enumerate(dict.fromkeys(outcome.run_ids))}
    mine = stored[stored["run_id"].isin(order)]
    return mine.sort_values("run_id", key=lambda ids: ids.map(order)).reset_index(drop=True)


def _as_words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings, which are values, as words of the command line.

    >>> _as_words({"seed": range(3), "optim__lr": [0.001, 0.003], "optim__betas": [0.9, 0.98], "dry_run": True})
    ['seed=range(0,3,1)', 'optim.lr=0.001,0.003', 'optim.betas=[0.9,0.98]', 'dry_run=true']
    """
    words = []
    plain = {key: value.tolist() if getattr(value, "ndim", 0) else value for key, value in settings.items()}  # arrays
    for key, value in plain.items():
        name = "store.path" if key == "store" else key.replace("__", ".")
        if isinstance(value, range):
            text = f"range({value.start},{value.stop},{value.step})"
        elif isinstance(value, (list, tuple)) and (
            typing.get_origin(hint_of(name)) is not list or any(isinstance(v, (list, tuple)) for v in value)
        ):
            if not value:
                raise ConfigError(f"{name}={value!r} is empty: expected at least one value to sweep over")
            text = ",".join(_typed(name, v) for v in value)
        else:
            text = _typed(name, value)
        words.append(f"{name}={text}")
    return words


def _typed(name: str, value: Any) -> str:
    """Return a setting's value as it is typed; text for a number or a flag may be one."""
    if isinstance(value, (str, os.PathLike)):
        return as_value(name, str(value))
    try:
        return literal(value)
    except TypeError as error:
        raise ConfigError(f"{name}={value!r}: expected a number, text, or a list of them, not {error}") from error


if __name__ == "__main__":
    sys.exit(main())
