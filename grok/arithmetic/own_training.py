"""Runs that a function of the user's own trains as a whole: ``train(config, streams, ...)`` named by ``task.plugin``.

The slow path: one run after the other, uncompiled, as fast as that function. A run that is interrupted begins again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import torch

from grok.arithmetic.outcome import event_times
from grok.arithmetic.program import cpu_tag
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import ConfigError
from grok.plugins import Seeds, build
from grok.records import CurvePoint, Event, Job, Progress, RunResult, StopRequested
from grok.runs import TrainingRun, evaluation_steps, weights_hash
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


class OwnTraining(TrainingRun):
    """One run: what its function says becomes its curve."""

    def __init__(self, job: Job) -> None:
        assert isinstance(job.config, ArithmeticConfig)
        super().__init__(job, evaluation_steps(job.config.train.steps, every=job.config.eval.every))
        self.config = job.config
        self.step = 0
        self.curve: list[CurvePoint] = []
        self.weights: dict[str, torch.Tensor] = {}

    def events(self, stop: StopRequested) -> Iterator[Event]:
        """Yield the progress and the result; nothing more once ``stop`` says so."""
        seeds = self.config.stream_seeds()
        self.go()
        draws = drawing(Stream("init", seeds.init).at("own training").seed64())
        with own_code_of(self, "task.plugin"), draws:
            made = build(self.config.task.plugin, self.config, Seeds(seeds.split, seeds.init, seeds.order))
            for metrics in [made] if isinstance(made, Mapping) else made:
                point = self.observe(dict(metrics))
                self.pause()
                yield Progress(
                    run_id=self.job.run_id, step=self.step, steps=self.config.train.steps,
                    train_loss=point.train_loss, val_acc=point.val_acc,
                )  # fmt: skip
                if stop():
                    return
                self.go()
        self.pause()
        yield self.result()

    def observe(self, metrics: dict[str, Any]) -> CurvePoint:
        """Add what the function said at one step to the curve."""
        step = int(metrics.pop("step", self.config.train.steps))
        if step < self.step or (self.curve and step == self.step):
            raise ConfigError(f"step {step} comes after step {self.step}: expected steps that rise")
        if weights := metrics.pop("weights", None):
            self.weights = {name: torch.as_tensor(value).detach().clone() for name, value in weights.items()}
        point = CurvePoint(step=step)
        for name, value in metrics.items():
            if name in NUMBERS:
                setattr(point, name, float(value))
            else:
                point.metrics[name] = float(value)
        self.step = step
        self.curve.append(point)
        return point

    def result(self) -> RunResult:
        """Return the record of the run, which has ended."""
        if not self.curve:
            raise ConfigError("the function of task.plugin gave no metrics: expected at least those of the last step")
        last = self.curve[-1]
        result = RunResult(
            run_id=self.job.run_id,
            status="diverged" if math.inf in (abs(last.train_loss), abs(last.val_loss)) else "completed",
            stop_reason="steps",
            steps=self.step,
            weights_hash=weights_hash(self.weights) if self.weights else None,
            seconds=self.seconds(),
            numerics=cpu_tag(self.config, rows="own", products="plain", compiled=False),
            started_at=self.started_at,
            curve=self.curve,
        )
        for name, step in event_times(self.curve).items():
            setattr(result, name, step)
        if "final" in self.config.save and self.weights:
            result.tensors["final"] = self.weights
        return result
