"""The engine: trains GPT runs one after another and yields their events. It neither reads nor writes a store.

A :class:`GptRun` makes updates, evaluations, snapshots and rollbacks, in this order. A fixed function of the step
decides when each of them is due. Evaluations and logs cannot change a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from grok.config.common import NumericsConfig
from grok.config.gpt import GptConfig, LogConfig
from grok.errors import CheckpointError
from grok.gpt.harness import TaskScores
from grok.gpt.initial import build_model
from grok.gpt.log import Log, sample_text
from grok.gpt.training import checkpoint as saved
from grok.gpt.training.batches import Texts, open_data
from grok.gpt.training.numerics import Numerics
from grok.gpt.training.parallel import RankLost, Ranks, fatally
from grok.gpt.training.stability import Incident, abandoned_id, return_step
from grok.gpt.training.trainer import Trainer, start_scale
from grok.records import (
    Checkpoint,
    CurvePoint,
    Event,
    Job,
    Paused,
    Progress,
    RunResult,
    StepPoint,
    StopRequested,
    joined_tags,
)
from grok.runs import TrainingRun, evaluation_steps, never, weights_hash
from grok.streams import Stream
from grok.text.corpus import open_corpus
from grok.user import tried

PROGRESS_SECONDS = 0.5


def train(
    jobs: Sequence[Job], *, lanes: int | None = None, device: str = "cpu", stop: StopRequested = never
) -> Iterator[Event]:
    """Train every job and yield its events.

    Unless it is stopped, each job yields one ``RunResult``, and one more (status ``rolled_back``) for each branch that
    a rollback abandoned.

    Args:
        jobs: runs with GPT configs, trained in this order.
        lanes: ignored; one GPT uses the whole device.
        device: ``"cpu"`` or ``"cuda"``.
        stop: called between steps; if it returns true, the generator yields a last ``Checkpoint`` of the run in
            flight and returns.

    Raises:
        ConfigError, DataError, CheckpointError: the settings, the data or the checkpoint cannot be used.
        TrainingError: compilation failed, and ``numerics.auto_fallback`` is off.
    """
    del lanes
    ranks = Ranks.of_this_process()
    if ranks.index == 0 and stop():
        return
    for job in ranks.jobs(jobs):
        events = _train(job, device, ranks, stop)
        yield from events if ranks.size == 1 else fatally(events)
        ranks.busy = False
        if ranks.index == 0 and stop():
            return


def _train(job: Job, device: str, ranks: Ranks, stop: StopRequested) -> Iterator[Event]:
    """Train one run, together with the other processes."""
    assert isinstance(job.config, GptConfig)
    with ranks.all_or_none():
        numerics = Numerics.of(job.config, device)
    with numerics.active():
        if numerics.compile:
            torch.compiler.reset()  # torch limits the compiled versions of a function, and each run compiles its own
        with ranks.all_or_none():
            texts = open_data(job.config)
        yield from GptRun(job, job.config, texts, numerics, ranks).train(stop)


def refuse_unusable(config: GptConfig) -> None:
    """Refuse the user's own code that cannot be imported, does not keep the contracts, or fails in a step.

    Raises:
        GrokError: the message names the setting, in one line.
    """
    assert config.data.path is not None
    with tried(config):
        numerics = Numerics.of(replace(config, numerics=NumericsConfig(compile=False)), "cpu")
        with numerics.active():
            trainer = Trainer(config, open_corpus(config.data.path), numerics)
            x, y = trainer.batch(1)
            trainer.gradients(1, x[:1], y[:1])
            trainer.unscale()
            trainer.own_state()  # refuses a state that no checkpoint can keep


class GptRun(TrainingRun):
    """One run, from its job to its result."""

    def __init__(self, job: Job, config: GptConfig, texts: Texts, numerics: Numerics, ranks: Ranks) -> None:
        super().__init__(job, evaluation_steps(config.train.steps, every=config.eval.every))
        self.config, self.numerics, self.ranks = config, numerics, ranks
        self.texts, self.corpus = texts, texts.corpus
        self.trainer = Trainer(config, texts, numerics, ranks)
        self.history = saved.History()
        self.moments: list[saved.Moment] = []
        self.incident = Incident()
        self.left: list[int] = []
        """For each rollback, the step at which the new branch begins."""
        self.changes: list[str] = []
        self.saved_at: list[int] = []
        """Steps of the checkpoints that this process made or resumed from."""
        self.steps = config.train.steps
        self.keeps_weights = "final" in config.save and (ranks.index == 0 or numerics.sharded)
        share = config.eval.average_share if self.keeps_weights else 0.0
        self.averaged = saved.average_steps(share, config.eval.average_points, self.steps)
        with ranks.all_or_none():
            self.tasks = TaskScores(config, self.due, here=ranks.index == 0)
        self._progressed = time.monotonic()
        self.go()
        if job.resume is not None:
            self._restore(job.resume)
        elif config.resume.run is not None:
            raise CheckpointError(f"resume.run={config.resume.run}: the job has no checkpoint of that run")
        self.log = Log(
            job.run_id,
            config if ranks.index == 0 else replace(config, log=LogConfig(quiet=True)),
            self.corpus,
            self.trainer.model,
            from_step=self.step,
            earlier=self.history.log,
            branch=self.trainer.branch.number,
            mute=ranks.index > 0,
        )

    @property
    def step(self) -> int:
        return self.trainer.counters.step

    def train(self, stop: StopRequested) -> Iterator[Event]:
        """Train until the run ends or is stopped, and yield the run's events."""
        batches = self.trainer.batches
        sequences = batches.batch.consumed(self.steps)
        epochs = zip(self.texts.sources, batches.epochs(sequences), strict=True)
        shares = [(corpus, share, own) for (corpus, share), own in epochs]
        self.log.start(self.numerics.tag(), self.changes, sequences, shares)
        try:
            # the last checkpoint of a run that was killed before its result may be that of its end
            reason = None if self.config.resume.run else self._early_stop()
            while reason is None and self.step < self.steps:
                if self.ranks.any(stop()):
                    yield self.checkpoint()
                    if self.ranks.size > 1 and self.ranks.index == 0 and not stop():
                        raise RankLost("another process of this run was asked to end")
                    return
                hours = self.config.train.hours  # the clock of rank 0 decides for all processes
                if hours is not None and self.ranks.any(self.ranks.index == 0 and self.seconds() >= 3600 * hours):
                    yield self.checkpoint()
                    yield Paused(run_id=self.job.run_id, words=self.log.paused(self.step, self.seconds()))
                    return
                self._snapshot_if_due()
                begun = self.step
                try:
                    reason = yield from self._advance()
                except RankLost:
                    if self.step == begun and not self.numerics.sharded:  # the last step's state is complete
                        yield self.checkpoint()
                    raise
            yield from self._finish(reason or "steps")
        finally:
            self.log.close()

    def _advance(self) -> Generator[Event, None, str | None]:
        """Make one update and everything that is due after it; return the reason to end the run, or None."""
        self.texts.refuse_changed()
        k = self.step + 1
        train_acc = self.trainer.train_accuracy(k) if k in self.due else float("nan")
        with self.log.profile.around(k):
            point, wrong = self.trainer.update()
        if point.event is None and self.trainer.branch.number and k == self.trainer.branch.step + 1:
            point.event = "rolled_back"  # the first step of a new branch
        self.history.log.append(point)
        self.log.step(point)
        if wrong is not None or k in self.due or self.trainer.late is None:
            self._settle()
        if wrong is not None:
            return (yield from self._went_wrong(k, wrong))
        if k in self.averaged:
            self.history.add_to_average(k, self.trainer.model)
        reason = self._evaluate(point, train_acc) if k in self.due else None
        if reason is None and k < self.steps and self.ranks.any(self.checkpoint_due(k) and self.ranks.index == 0):
            yield self.checkpoint()
        yield from self._progress(point)
        return reason

    def _settle(self) -> None:
        """Complete the log of all steps so far, and write it to the logs."""
        self.trainer.settle()
        self.log.tell_steps()

    def _evaluate(self, point: StepPoint, train_acc: float) -> str | None:
        """Evaluate after an update; return the reason to end the run, or None."""
        curve_point = self.trainer.evaluate()
        curve_point.train_loss, curve_point.train_acc, curve_point.lr = point.train_loss, train_acc, point.lr
        model, tokenizer = self.trainer.model, self.corpus.tokenizer
        if math.isfinite(curve_point.val_loss):  # else no token can be drawn; the next step ends the run
            with self.numerics.autocast():
                if self.config.eval.sample_tokens and (self.ranks.index == 0 or self.numerics.sharded):
                    stream = Stream("sample", self.trainer.seeds.sample).at(point.step)
                    with self.ranks.watched():
                        curve_point.sample = sample_text(model, tokenizer, self.config.eval, stream=stream)
                say = partial(self.log.say, always=True)
                curve_point.metrics |= self.tasks.at(point.step, model, tokenizer, say)
        self.history.observe(curve_point, self.trainer.model if self.keeps_weights else None)
        best = self.history.best_step == point.step
        self.log.evaluation(curve_point, best=best, tokens_per_second=point.tokens_per_second)
        return self._early_stop()

    def _early_stop(self) -> str | None:
        """Return ``early_stop`` if this step's evaluation is one too many without improvement."""
        patience, curve = self.config.train.early_stop, self.history.curve
        due = patience and self.history.worse >= patience and curve and curve[-1].step == self.step
        return "early_stop" if due else None

    def _went_wrong(self, k: int, event: str) -> Generator[Event, None, str | None]:
        """Roll back and return None, or return the event as the reason to end."""
        stability = self.config.stability
        if not stability.rolls_back():
            return event
        if not self.incident.another_try(k, stability):
            why = f"stability.tries={stability.tries} rollbacks followed each other without a calm stretch between them"
            self.log.say(f"no rollback from step {k} ({event}): {why}", always=True)
            return event
        onset = k if stability.signals == "loss" else self.trainer.watch.onset(event, self.history.log)
        moment = self._state_before(onset)
        back_to = moment.step
        now = self.trainer.branch
        own_id = abandoned_id(self.job.run_id, now.number + 1)
        yield self._result("rolled_back", event, run_id=own_id, parent=(self.job.run_id, back_to))
        self.history = saved.put_back(self.trainer, moment)
        batch = self.trainer.batches.batch
        skip = batch.consumed(k + stability.skip_steps) - batch.consumed(back_to)
        self.left.append(back_to)
        self.trainer.branch = now.next(stability, back_to=back_to, skip=skip)
        self.moments = [m for m in self.moments if m.step <= back_to]
        branch = self.trainer.branch
        self.log.rolled_back(k, event, onset=onset, to_step=branch.step, branch=branch.number, log=self.history.log)
        return None

    def _state_before(self, onset: int) -> saved.Moment:
        """Return the state that a rollback returns to.

        It is one of the states in memory or, with ``stability.signals=all``, a kept checkpoint. If no state is old
        enough, it is the oldest one.
        """
        stability = self.config.stability
        in_memory = [m.step for m in self.moments]
        wanted = onset - self.incident.margin(stability)
        if min(in_memory) > wanted and stability.signals == "all":
            here, every = self.job.kept if self.ranks.index == 0 else None, self.config.checkpoint.keep_every
            say = partial(self.log.say, always=True)
            checkpoint = self.ranks.share_checkpoint(saved.kept_before(here, every, wanted, self.left, say))
            if checkpoint is not None:
                moment, older = saved.from_checkpoint(checkpoint)
                moment.history.keep_steps(self.due, self.averaged)
                self.moments = [m for m in older if m.step < moment.step] + [moment]
                return moment
        back_to = return_step(in_memory, wanted)
        return next(m for m in self.moments if m.step == back_to)

    def _finish(self, reason: str) -> Iterator[Event]:
        self._settle()
        self.texts.refuse_changed()
        status = "completed" if reason in ("steps", "early_stop") else "diverged"
        if self.config.checkpoint.keep and status == "completed":
            yield self.checkpoint()
        resume = self.config.resume
        result = self._result(status, reason, run_id=self.job.run_id, parent=(resume.run, resume.step))
        self.log.finish(result, self.saved_at)
        yield result

    def _result(self, status: str, reason: str, *, run_id: str, parent: tuple[str | None, int | None]) -> RunResult:
        made = status == "completed"
        updates = self.step if made else self.step - 1  # the step of the event made no update
        curve = list(self.history.curve)
        if not curve or curve[-1].step < updates:
            last = next((p for p in reversed(self.history.log) if p.step == updates), StepPoint(step=updates))
            point = self.trainer.evaluate()
            point.step, point.train_loss, point.lr = updates, last.train_loss, last.lr
            curve.append(point)
        return RunResult(
            run_id=run_id,
            status=status,
            stop_reason=reason,
            steps=updates,
            weights_hash=weights_hash(saved.copy_weights(self.trainer.model)),
            seconds=self.seconds(),
            device=self.numerics.device.type,
            numerics=joined_tags(self.all_tags(self._tag())),
            started_at=self.started_at,
            parent_run_id=parent[0],
            branch_step=parent[1],
            curve=curve,
            step_log=list(self.history.log),
            tensors=self._weights(),
        )

    def _weights(self) -> dict[str, saved.Weights]:
        """Return the weights to keep: ``init``, ``final``, and with ``final`` also ``best`` and ``average``."""
        kept: dict[str, saved.Weights] = {}
        if "init" in self.config.save:
            cpu, model = torch.device("cpu"), self.trainer.model
            kept["init"] = saved.copy_weights(
                build_model(self.config, vocab_size=model.vocab_size, device=cpu, dtype=self.numerics.dtype)
            )
        if self.keeps_weights:
            kept["final"] = saved.copy_weights(self.trainer.model)
            kept |= {n: w for n, w in (("best", self.history.best), ("average", self.history.average)) if w}
        return kept

    def checkpoint(self) -> Checkpoint:
        """Return a checkpoint of the present state."""
        self._settle()
        self.log.flush()
        self.saved_at.append(self.step)
        rest = {
            "data": self.corpus.hash,
            "data_path": self.config.data.path,
            "numerics": self.all_tags(self._tag()),
            "tries": self.incident.tries,
            "incident_at": self.incident.at,
            "left": self.left,
            "changes": self.changes,
            "seconds": self.seconds(),
            "started_at": self.started_at,
        }
        now = saved.capture(self.trainer, self.history)
        return saved.to_checkpoint(self.job.run_id, self.config, now, self.moments, rest, self.ranks)

    def _restore(self, checkpoint: Checkpoint) -> None:
        with self.ranks.all_or_none():
            named = saved.check_settings(checkpoint, self.config, self.corpus.hash)
            self.tags = checkpoint.state["numerics"]
            self.refuse_other_numerics(self.numerics.tag(), checkpoint.step)
        if checkpoint.shards is not None:
            with self.ranks.watched():
                shares = saved.read_checkpoint_shares(checkpoint, self.trainer)
            checkpoint = replace(checkpoint, tensors=checkpoint.tensors | shares)
        now, self.moments = saved.from_checkpoint(checkpoint)
        for moment in (now, *self.moments):
            moment.history.keep_steps(self.due, self.averaged)
            if "precision" in self.config.resume.changes:  # a loss scale is valid for one precision only
                moment.state["counters"] |= {"scale": start_scale(self.config), "scale_good": 0}
        self.history = saved.put_back(self.trainer, now)
        tries = checkpoint.state["tries"]
        # settings that were changed on purpose have not been tried yet
        self.incident = Incident() if named else Incident(tries, checkpoint.state["incident_at"])
        self.left = checkpoint.state["left"]
        self.changes = checkpoint.state["changes"] + named
        if named:  # losses under the old settings must not end a run under the new ones
            self.trainer.watch.above = self.trainer.watch.far = 0
        if checkpoint.run_id == self.job.run_id:
            self.spend(checkpoint.state["seconds"])
            self.started_at = checkpoint.state["started_at"]
            self.saved_at.append(checkpoint.step)

    def _snapshot_if_due(self) -> None:
        """Keep the present state for a rollback: every ``snapshot_every`` steps, and where there is none yet."""
        stability = self.config.stability
        due = stability.rolls_back() and (self.step % stability.snapshot_every == 0 or not self.moments)
        if due and all(m.step != self.step for m in self.moments):
            self._settle()
            self.moments = [*self.moments, saved.capture(self.trainer, self.history)][-stability.snapshots :]

    def _progress(self, point: StepPoint) -> Iterator[Progress]:
        now = time.monotonic()
        if now - self._progressed > PROGRESS_SECONDS or point.step in self.due:
            self._progressed = now
            last = self.history.curve[-1] if self.history.curve else CurvePoint(step=0)
            yield Progress(
                run_id=self.job.run_id,
                step=point.step,
                steps=self.steps,
                train_loss=point.train_loss,
                val_acc=last.val_acc,
            )

    def _tag(self) -> str:
        """Return the numerics tag of this process."""
        return self.numerics.tag(compiled=self.trainer.gradient.compiled)
