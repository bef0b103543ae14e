"""The state of one run in flight without its tensors: schedule, data order, curve, end."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from dataclasses import asdict, replace
from typing import Any

from grok.arithmetic.order import BatchOrder
from grok.arithmetic.outcome import GENERALISED_VAL_ACC, PERSISTENCE, event_times
from grok.config.arithmetic import ArithmeticConfig
from grok.records import Checkpoint, CurvePoint, Job, Progress, RunResult, joined_tags
from grok.runs import TrainingRun, evaluation_steps


def at_own_numerics(job: Job, tag: str) -> Job:
    """Return ``job``; without the checkpoint of its trunk, if that was not computed under the numerics ``tag``.

    The run must equal its trunk to the bit. What a run leaves for itself may have any tag: the row says so.
    """
    if job.resume is None or job.resume.run_id == job.run_id or job.resume.state["numerics"] == [tag]:
        return job
    warnings.warn(
        f"a checkpoint to switch from was computed by '{joined_tags(job.resume.state['numerics'])}', this is '{tag}': "
        "the run begins at step 0",
        stacklevel=2,
    )
    return replace(job, resume=None)


class ArithmeticRun(TrainingRun):
    """One arithmetic run without its tensors: its schedule, its data order, its curve and its end."""

    def __init__(self, job: Job) -> None:
        assert isinstance(job.config, ArithmeticConfig)
        self.config = job.config
        schedule, points = job.config.eval, job.config.eval.points
        log_points = points if schedule.schedule == "log" else None
        regular = evaluation_steps(job.config.train.steps, every=schedule.every, log_points=log_points)
        super().__init__(job, regular | {step for step in schedule.steps if step <= job.config.train.steps})
        self.streams = job.config.stream_seeds()
        self.step = 0
        self.curve: list[CurvePoint] = []
        self.stop_reason: str | None = None
        self.diverged = False
        self._good_in_a_row = 0
        self._steps = sorted(self.due)
        self.order = BatchOrder(
            self.config.task.train_examples(),
            self.config.train.batch_size,
            seed=self.streams.order,
            moved=self._evaluations_until if self.config.eval.couple_order else None,
            switch=self.config.switch.to_order(),
        )
        if job.resume is not None:
            self._restore(job.resume)

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.step, state = checkpoint.step, checkpoint.state
        # The shorter run was evaluated at its last step, which may not be on the longer run's schedule.
        self.curve = [CurvePoint(**point) for point in state["curve"] if point["step"] in self.due]
        self._good_in_a_row = state["good_in_a_row"]
        self.tags = list(state["numerics"])
        if checkpoint.run_id == self.job.run_id:  # else the trunk's time, and not this run's
            self.spend(state["seconds"])
            self.started_at = state["started_at"]

    def _evaluations_until(self, step: int) -> int:
        """Return the number of passes over the validation set up to ``step``: a function of the schedule."""
        return self.config.eval.passes * sum(1 for due in self.due if due <= step)

    def state(self, tag: str) -> dict[str, Any]:
        """Return the JSON part of a checkpoint that is made under the numerics ``tag``."""
        return {
            "numerics": self.all_tags(tag),
            "curve": [asdict(point) for point in self.curve],
            "good_in_a_row": self._good_in_a_row,
            "seconds": self.seconds(),
            "started_at": self.started_at,
        }

    def move_due(self) -> bool:
        """Return whether the weights are moved (``switch.ulps``) before the next update.

        Evaluation and checkpoint of the present step come before that, so a resumed run moves them, too, and once.
        """
        return self.config.switch.ulps > 0 and self.step == self.config.switch.step

    def decision_due(self) -> bool:
        """Return whether the early stop evaluates at this step (every ``train.stop_every`` steps)."""
        train = self.config.train
        return train.stop_when_generalised and self.step % train.stop_every == 0

    def evaluation_due(self) -> bool:
        """Return whether the run is evaluated at the present step."""
        return self.step in self.due

    def start_due(self) -> bool:
        """Return whether the initial weights are still to be evaluated."""
        return self.step == 0 and 0 in self.due and not self.curve

    def next_due(self) -> int:
        """Return the step of the next evaluation, early-stop decision, checkpoint or move of weights, or of the end."""
        train, checkpoint = self.config.train, self.config.checkpoint
        later = self._steps[bisect_right(self._steps, self.step) :][:1]
        decisions = train.stop_every if train.stop_when_generalised else 0
        cadences = [n for n in (decisions, checkpoint.every, checkpoint.keep_every) if n > 0]
        switch = self.config.switch
        marks = [*checkpoint.keep_steps, *([switch.step] if switch.ulps and switch.step is not None else [])]
        later += [step for step in marks if step > self.step]
        return min([*later, max(train.steps, self.step + 1), *[(self.step // n + 1) * n for n in cadences]])

    def decide(self, val_acc: float) -> None:
        """Record a validation accuracy for the early stop; the run stops after ``PERSISTENCE`` high ones in a row."""
        self._good_in_a_row = self._good_in_a_row + 1 if val_acc >= GENERALISED_VAL_ACC else 0
        if self._good_in_a_row >= PERSISTENCE and self.step >= self.config.train.stop_horizon:
            self.stop_reason = "generalised"

    def diverge(self) -> None:
        """End the run because its loss is not finite."""
        self.stop_reason, self.diverged = "not_finite", True

    def observe(self, point: CurvePoint) -> Progress:
        """Add an evaluation to the curve and return the progress event."""
        self.curve.append(point)
        return Progress(
            run_id=self.job.run_id,
            step=self.step,
            steps=self.config.train.steps,
            train_loss=point.train_loss,
            val_acc=point.val_acc,
        )

    def ended(self) -> bool:
        """Return whether the run has ended; sets ``stop_reason`` at its last step."""
        if self.stop_reason is None and self.step >= self.config.train.steps:
            self.stop_reason = "steps"
        return self.stop_reason is not None

    def result(self, *, weights_hash: str, device: str, numerics: str) -> RunResult:
        """Return the finished run's record."""
        assert self.stop_reason is not None
        result = RunResult(
            run_id=self.job.run_id,
            status="diverged" if self.diverged else "completed",
            stop_reason=self.stop_reason,
            steps=self.step,
            weights_hash=weights_hash,
            seconds=self.seconds(),
            device=device,
            numerics=joined_tags(self.all_tags(numerics)),
            started_at=self.started_at,
            curve=self.curve,
        )
        for name, step in event_times(self.curve).items():
            setattr(result, name, step)
        return result
