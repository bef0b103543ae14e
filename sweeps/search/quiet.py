"""Keeps Optuna's own log lines and its notes on experimental features off the user's screen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.exceptions import ExperimentalWarning


@contextmanager
def quiet() -> Iterator[None]:
    """Show errors only while entered."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
