"""An exception of the user's own code while a run trains: an error of the command, which names where and when."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Final

import torch

from grok.arithmetic.run import ArithmeticRun
from grok.errors import ConfigError, GrokError, one_line
from grok.numerics.device import is_device_error
from grok.plugins import active, ends_process, is_own, label, target_of

STEP: Final = ("model.plugin", "train.loss_plugin")
"""Settings whose code computes the loss and the logits."""
UPDATE: Final = ("optim.intervention", "optim.plugin")
"""Settings whose code changes the weights."""


@contextmanager
def own_code_of(run: ArithmeticRun, *settings: str, ahead: int = 0) -> Iterator[None]:
    """Name the setting, the step and the seed in an exception of the user's own code.

    A run is deterministic: another try would raise it again.

    Args:
        run: the run in flight.
        settings: those whose code may be called.
        ahead: 1 before the run has counted the step that it trains, 0 at its evaluation.

    Raises:
        ConfigError: instead of the exception. Too little memory and a broken device pass; so does what
            :data:`STEP` raises outside the user's own code, such as an error of the compiler.
    """
    try:
        yield
    except (GrokError, MemoryError, torch.OutOfMemoryError):  # the last one is of a GPU
        raise
    except BaseException as error:
        if is_device_error(error) or not (isinstance(error, Exception) or ends_process(error)):
            raise
        named = {name: spec for name, spec in run.config.plugins().items() if name in settings}
        walked = list(traceback.walk_tb(error.__traceback__))
        frames = [(frame.f_code, line) for frame, line in walked]
        own = [(frame.f_code, line) for frame, line in walked if is_own(frame.f_globals)]
        if not named or "allocate memory" in str(error) or (settings == STEP and not own):
            raise  # on a CPU torch has no MemoryError, but a RuntimeError with these words
        by_place = [name for name, spec in named.items() if own and _is_of(own[0][0], target_of(spec))]
        setting = [*by_place, *named][0]
        code, line = (own or frames)[-1]
        words = one_line(error)
        traced = any(str(frame.f_globals.get("__name__")).startswith("torch.fx") for frame, _ in walked)
        remedy = "; torch.compile traces this code: numerics.compile=false runs it untraced" if traced else ""
        raise ConfigError(
            f"{setting}={label(named[setting])} fails at {Path(code.co_filename).name}:{line}, at step "
            f"{run.step + ahead:,} of the run with seed {run.config.seed} ({type(error).__name__}: {words}){remedy}"
        ) from error


def _is_of(code: CodeType, target: str) -> bool:
    """Return whether ``code`` is the function of ``target``, or a method of its class."""
    place = active().targets[target]
    return f"{code.co_qualname}.".startswith(f"{place.attribute}.")
