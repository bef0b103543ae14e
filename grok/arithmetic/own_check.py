"""Checks the user's own code before a sweep: constructs everything and takes one training step."""

from __future__ import annotations

from dataclasses import replace

import torch

from grok.arithmetic.engine import seat
from grok.arithmetic.own_program import ModuleProgram, OwnLaneProgram, losses_of
from grok.arithmetic.table import shapes_of
from grok.config.arithmetic import ArithmeticConfig
from grok.config.common import NumericsConfig
from grok.errors import ConfigError, GrokError
from grok.plugins import label, load
from grok.records import Job


def refuse_unusable(config: ArithmeticConfig) -> None:
    """Refuse code that cannot be imported, does not keep the contracts, or fails.

    Raises:
        GrokError: the message names the setting, in one line.
    """
    for spec in config.plugins().values():
        if not callable(load(spec)):
            raise ConfigError(f"{label(spec)} cannot be called: expected a class or a function")
    task = config.task
    if not 1 <= task.train_examples() < task.examples():
        raise ConfigError(
            f"task.train_fraction={task.train_fraction} of {task.examples()} examples leaves {task.train_examples()} "
            "for training: expected at least one for training and one for validation"
        )
    config.refuse_large_batch()
    config = replace(config, numerics=NumericsConfig(compile=False))
    try:
        lane = seat(Job(run_id="planned", config=config), {})
        lane.optimizer.tensors()  # refuses a state that no checkpoint can keep
        if isinstance(lane.program, (ModuleProgram, OwnLaneProgram)):
            lane.gradients(1)
        elif config.train.loss_plugin:
            losses_of(config, torch.zeros(2, shapes_of(task).tokens), torch.zeros(2, dtype=torch.int64))
    except GrokError:
        raise
    except Exception as error:
        named = ", ".join(f"{name}={label(spec)}" for name, spec in config.plugins().items())
        raise ConfigError(f"{named}: a trial step fails ({type(error).__name__}: {error})") from error
