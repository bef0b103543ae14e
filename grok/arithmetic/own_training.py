"""Runs that a function of the user's own trains as a whole: ``train(config, streams, ...)`` named by ``task.plugin``.

The slow path: one run after the other, uncompiled, as fast as that function. A run that is interrupted begins again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import torch

from grok.arithmetic.program import cpu_tag
from grok.arithmetic.run import ArithmeticRun
from grok.errors import ConfigError
from grok.plugins import Seeds, build
from grok.records import CurvePoint, Event, Job, Progress, StopRequested
from grok.streams import Stream
from grok.user import drawing, own_code_of

NUMBERS: Final = {point.name for point in fields(CurvePoint)} - {"step", "block_norms", "metrics", "sample"}
"""Names that have a column of their own in the curves; others are in ``metrics``."""


def train_own(jobs: Sequence[Job], stop: StopRequested) -> Iterator[Event]:
    """Train every job with its own function, and yield its events.

    Raises:
        ConfigError: the function fails, or what it gives are no numbers.
    """
    for job in jobs:
        if stop():
            return
        yield from OwnTraining(job).events(stop)


class OwnTraining(ArithmeticRun):
    """One run: what its function says becomes its curve."""

    def events(self, stop: StopRequested) -> Iterator[Event]:
        """Yield the progress and the result; nothing more once ``stop`` says so."""
        seeds = self.streams
        weights: dict[str, torch.Tensor] = {}
        self.go()
        draws = drawing(Stream("init", seeds.init).at("own training").seed64())
        with own_code_of(self, "task.plugin"), draws:
            made = build(self.config.task.plugin, self.config, Seeds(seeds.split, seeds.init, seeds.order))
            for said in [made] if isinstance(made, Mapping) else made:
                metrics = dict(said)
                if given := metrics.pop("weights", None):
                    weights = {name: torch.as_tensor(value).detach().clone() for name, value in given.items()}
                progress = self.measured(metrics)
                self.pause()
                yield progress
                if stop():
                    return
                self.go()
        self.pause()
        if not self.curve:
            raise ConfigError("the function of task.plugin gave no metrics: expected at least those of the last step")
        self.stop_reason = "steps"
        self.diverged = math.inf in (abs(self.curve[-1].train_loss), abs(self.curve[-1].val_loss))
        tag = cpu_tag(self.config, rows="own", products="plain", compiled=False)
        yield self.result(None, weights, device="cpu", numerics=tag)

    def measured(self, metrics: dict[str, Any]) -> Progress:
        """Add what the function measured at one step to the curve."""
        step = int(metrics.pop("step", self.config.train.steps))
        if step < self.step or (self.curve and step == self.step):
            raise ConfigError(f"step {step} comes after step {self.step}: expected steps that rise")
        point = CurvePoint(step=step)
        for name, value in metrics.items():
            if name in NUMBERS:
                setattr(point, name, float(value))
            else:
                point.metrics[name] = float(value)
        self.step = step
        return self.add(point)
