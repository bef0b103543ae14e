"""One run in training: its schedule, data order, curve and end, and its lane on a CPU."""

from __future__ import annotations

import functools
import math
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grok.arithmetic import measures, optimizer
from grok.arithmetic.outcome import GENERALISED_VAL_ACC, PERSISTENCE, event_times
from grok.arithmetic.program import Program, dropout_noise, evaluation_passes
from grok.arithmetic.rows import Batch, shares, words_of
from grok.arithmetic.task import BatchOrder, split
from grok.arithmetic.weights import Parameters, initial_parameters, norms
from grok.config.arithmetic import ArithmeticConfig
from grok.errors import CheckpointError, CheckpointUnreadable
from grok.records import Checkpoint, CurvePoint, Event, Job, Progress, RunResult, StopRequested, joined_tags
from grok.runs import TrainingRun, evaluation_steps, weights_hash
from grok.streams import Stream


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


Measured = tuple[float, float]
"""(mean loss, accuracy) on a set."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is due at a step, in this order."""

    observed: bool
    """A point of the curve."""
    kept: bool
    """A checkpoint."""
    ended: bool
    """The result."""


class ArithmeticRun(TrainingRun):
    """One arithmetic run without its tensors: its schedule and data order, its curve, what is due, and its end.

    A lane asks it after each update (:meth:`reach`, :meth:`judge`), be it looped or stacked.
    """

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

    @functools.cached_property
    def order(self) -> BatchOrder:
        """The order of the training examples; under the diary's bug each pass over the validation set moves it."""
        config = self.config

        def passes_until(step: int) -> int:
            return config.eval.passes * sum(1 for due in self.due if due <= step)

        return BatchOrder(
            config.task.train_examples(),
            config.train.batch_size,
            seed=self.streams.order,
            moved=passes_until if config.eval.couple_order else None,
            switch=config.switch.to_order(),
        )

    def checkpoint(self, tensors: dict[str, Tensor], tag: str) -> Checkpoint:
        """Return a checkpoint that is made under the numerics ``tag``."""
        state = {
            "numerics": self.all_tags(tag),
            "curve": [asdict(point) for point in self.curve],
            "good_in_a_row": self._good_in_a_row,
            "seconds": self.seconds(),
            "started_at": self.started_at,
        }
        return Checkpoint(run_id=self.job.run_id, step=self.step, tensors=tensors, state=state)

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

    def reach(self, step: int, *, finite: bool) -> bool:
        """Record that update ``step`` is made; return whether the validation set is to be read before :meth:`judge`."""
        self.step = step
        if not finite:
            self._diverge()
        return self.evaluation_due() or self.decision_due() or self.diverged

    def judge(self, val: Measured | None) -> Verdict:
        """Return what is due at the present step; ``val`` where :meth:`reach` asked for it.

        The early stop takes ``PERSISTENCE`` decisions of high accuracy in a row.
        """
        if val is not None and not math.isfinite(val[0]):  # the update made the weights not finite
            self._diverge()
        if val is not None and self.decision_due() and not self.diverged:
            self._good_in_a_row = self._good_in_a_row + 1 if val[1] >= GENERALISED_VAL_ACC else 0
            if self._good_in_a_row >= PERSISTENCE and self.step >= self.config.train.stop_horizon:
                self.stop_reason = "generalised"
        ended = self.ended()
        goes_on = self.config.checkpoint.keep and self.stop_reason == "steps"  # in a longer run
        return Verdict(
            observed=val is not None and (self.evaluation_due() or ended),
            kept=goes_on if ended else self.checkpoint_due(self.step),
            ended=ended,
        )

    def _diverge(self) -> None:
        """End the run because its loss is not finite."""
        self.stop_reason, self.diverged = "not_finite", True

    def observe(
        self,
        train: Measured,
        val: Measured,
        norms: tuple[float, float, dict[str, float]],
        metrics: dict[str, float] | None = None,
    ) -> Progress:
        """Add the present step to the curve and return the progress event; ``norms`` as :func:`weights.norms`."""
        weight_norm, weight_norm_all, block_norms = norms
        point = CurvePoint(
            step=self.step,
            train_loss=train[0],
            train_acc=train[1],
            val_loss=val[0],
            val_acc=val[1],
            weight_norm=weight_norm,
            weight_norm_all=weight_norm_all,
            lr=optimizer.learning_rate(self.config.optim, self.step) if self.step else math.nan,
            block_norms=block_norms,
            metrics=metrics or {},
        )
        return self.add(point)

    def add(self, point: CurvePoint) -> Progress:
        """Add the evaluation of the present step to the curve and return the progress event."""
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

    def result(self, initial: Parameters | None, final: Parameters, *, device: str, numerics: str) -> RunResult:
        """Return the finished run's record, with the weights of ``save``."""
        assert self.stop_reason is not None
        result = RunResult(
            run_id=self.job.run_id,
            status="diverged" if self.diverged else "completed",
            stop_reason=self.stop_reason,
            steps=self.step,
            weights_hash=weights_hash(final) if final else None,
            seconds=self.seconds(),
            device=device,
            numerics=joined_tags(self.all_tags(numerics)),
            started_at=self.started_at,
            curve=self.curve,
        )
        for name, step in event_times(self.curve).items():
            setattr(result, name, step)
        kept = {"init": initial, "final": final}
        result.tensors = {moment: w for moment, w in kept.items() if w and moment in self.config.save}
        return result


# A lane on a CPU: one run with its tensors, trained from one evaluation to the next.


class Lane:
    """One run with its data, weights and optimiser."""

    def __init__(self, run: ArithmeticRun, program: Program) -> None:
        self.run = run
        self.program = program
        config = run.config
        self.train_set, self.val_set = self.sets()
        self._columns = self.columns()
        self._shares: dict[int, Tensor] = {}
        self.parameters: Parameters = self.initial_parameters()
        self.initial = {n: p.clone() for n, p in self.parameters.items()} if "init" in config.save else None
        for p in self.parameters.values():
            p.requires_grad_()
        self.optimizer = self.make_optimizer()
        self.filter = optimizer.SlowGradients(config.optim)
        run.refuse_other_numerics(program.tag(), run.step)
        multiple = config.optim.norm_clamp
        self.clamp = None if multiple is None else multiple * norms(self.parameters)[1]
        if run.job.resume is not None:
            self._restore(run.job.resume.tensors)

    def sets(self) -> tuple[Any, Any]:
        """Return the training and the validation set."""
        return split(self.run.config.task, self.run.streams.split)

    def columns(self) -> list[Tensor]:
        """Return the training set as tensors [n]; batches are rows of these."""
        return words_of(self.train_set)

    def initial_parameters(self) -> Parameters:
        """Return the weights at step 0."""
        return initial_parameters(self.run.config, self.program.dtype)

    def make_optimizer(self) -> optimizer.Optimizer:
        return optimizer.AdamW(self.parameters, self.run.config.optim)

    @torch.no_grad()
    def _restore(self, tensors: dict[str, Tensor]) -> None:
        self.optimizer.restore(tensors)
        for name, p in self.parameters.items():
            p.copy_(tensors[f"parameters.{name}"])
            if f"slow_gradient.{name}" in tensors:
                self.filter.memory[name] = tensors[f"slow_gradient.{name}"].clone()

    def batch(self, step: int) -> Any:
        """Return the mini-batch of update ``step``, padded to ``train.batch_size``."""
        index, size = self.run.order.padded_batch(step)
        rows = torch.from_numpy(index)
        if size not in self._shares:
            self._shares[size] = shares(len(index), size, self.program.dtype)
        return self.batch_of([column.index_select(0, rows) for column in self._columns], self._shares[size], step)

    def batch_of(self, columns: list[Tensor], share: Tensor, step: int) -> Any:
        """Return the batch with these rows of :meth:`columns` and each example's ``share`` of the loss."""
        a, b, answer = columns
        return Batch(a, b, answer, share)

    def advance(self, stop: StopRequested) -> Iterator[Event]:
        """Train until this run's next evaluation, its end or a stop; yield the events."""
        run, config = self.run, self.run.config
        if run.ended():  # resumed at its last step: it was killed before its row was written
            yield self.result()
            return
        if run.start_due() and not stop():
            yield run.observe((math.nan, math.nan), self.evaluate(), norms(self.parameters), self.metrics({}))
        while not run.ended() and not stop():
            if run.move_due():
                optimizer.move_weights(self.parameters, config)
            step = run.step + 1
            loss, accuracy, gradients = self.gradients(step)
            self.update(gradients, step)
            if self.clamp is not None:
                optimizer.clamp_norm(self.parameters, self.clamp)
            val = self.evaluate() if run.reach(step, finite=math.isfinite(loss)) else None
            verdict = run.judge(val)
            if verdict.observed:
                assert val is not None
                yield run.observe((loss, accuracy), val, norms(self.parameters), self.metrics(gradients))
            if verdict.kept:
                yield self.checkpoint()
            if verdict.ended:
                yield self.result()
            if verdict.observed:
                return

    def gradients(self, step: int) -> tuple[float, float, dict[str, Tensor]]:
        """Return (loss, accuracy, gradient by name) of the mini-batch of update ``step``."""
        noise = dropout_noise(self.run.config, self.run.streams.dropout, step)
        return self.program.gradients(self.parameters, self.batch(step), noise)

    def update(self, gradients: dict[str, Tensor], step: int) -> None:
        """Apply update ``step`` (counted from 1) to the weights in place."""
        self.optimizer.update(self.changed(gradients, step), step)

    def changed(self, gradients: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """Return the gradients after the interventions that act on them."""
        gradients = self.filter.filtered(gradients, step)
        if self.run.config.optim.orthogonal_gradient:
            gradients = optimizer.orthogonal_gradients(self.parameters, gradients)
        return gradients

    def logits(self, examples: Any) -> Tensor:
        """Return the logits [n, V] of a set."""
        return self.program.logits(self.parameters, examples)

    def metrics(self, gradients: dict[str, Tensor]) -> dict[str, float]:
        """Return the measurements of ``eval.metrics`` by name."""
        wanted = self.run.config.eval.metrics
        metrics = measures.measured(self.run.config, self.parameters, self.train_set, self.logits)
        if "gradient" in wanted and gradients:  # none before the first update
            metrics["gradient_norm"] = norms(gradients)[1]
        return metrics

    def evaluate(self) -> tuple[float, float]:
        """Return (loss, accuracy) on the validation set; random draws come from the eval stream only."""
        settings = self.run.config.eval
        stream = Stream("eval", self.run.streams.eval)
        for repeat in range(settings.passes):
            visit = None
            if settings.shuffle:
                visit = stream.at(self.run.step, repeat).permutation(evaluation_passes(len(self.val_set)))
            evaluation = self.program.evaluate(self.parameters, self.val_set, visit)
        return evaluation

    def checkpoint(self) -> Checkpoint:
        """Return a copy of the run's complete state."""
        groups = {"parameters": self.parameters, "slow_gradient": self.filter.memory}
        tensors = {f"{group}.{n}": t.detach().clone() for group, named in groups.items() for n, t in named.items()}
        tensors |= self.optimizer.tensors()
        return self.run.checkpoint(tensors, self.program.tag())

    def result(self) -> RunResult:
        """Return the finished run's result, with the weights of ``save``."""
        final = {n: p.detach() for n, p in self.parameters.items()}
        result = self.run.result(self.initial, final, device="cpu", numerics=self.program.tag())
        # a network that has not generalised has no circuit, and so no key frequencies
        generalised = result.status == "completed" and result.grokked_step is not None
        if generalised and self.run.config.measures_kept_weights():
            task, kept = self.run.config.task, self.kept_weights()
            measures.add_final_losses(task, self.train_set, result.curve, final, kept, self.logits_of)
        return result

    def kept_weights(self) -> Iterator[tuple[int, Parameters]]:
        """Yield step and weights of the checkpoints of ``checkpoint.keep_every``, with a warning for a damaged one."""
        checkpoints, group = self.run.job.kept, "parameters."
        if checkpoints is None:
            return
        for step in checkpoints.steps():
            if step % self.run.config.checkpoint.keep_every:
                continue
            try:
                tensors = checkpoints.load(step).tensors
            except (CheckpointError, CheckpointUnreadable) as error:
                run = self.run.job.run_id
                warnings.warn(f"weights of run {run} at step {step} are not measured: {error}", stacklevel=2)
                continue
            yield step, {n.removeprefix(group): t for n, t in tensors.items() if n.startswith(group)}

    def logits_of(self, weights: Parameters, examples: Any) -> Tensor:
        """Return the logits [n, V] of a set under other weights."""
        return self.program.logits(weights, examples)
