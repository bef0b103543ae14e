"""What a run prints and writes while it trains: lines, sampled text, a trace of a few updates.

The store is the record. A sink that fails (a lost server, a full disk) is named once and then left out: the run
continues without it.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from grok.config.gpt import EVENTS, EvalConfig, GptConfig, LogConfig
from grok.errors import ConfigError, DataError, in_words, one_line
from grok.gpt.generate import Sampler, generate
from grok.gpt.model import GPT, parameter_count
from grok.gpt.sinks import Sink, Used, open_sinks
from grok.plugins import exits_refused
from grok.records import TASK, VAL_LOSS, CurvePoint, RunResult, StepPoint
from grok.streams import Stream
from grok.terminal import duration
from grok.text.corpus import Corpus
from grok.text.tokenizers import Tokenizer

# Text sampled at an evaluation. It uses the sample stream at that step, so it cannot change training.


SAMPLER: Final = Sampler(temperature=0.8, top_k=50)


def sample_text(model: GPT, tokenizer: Tokenizer, config: EvalConfig, *, stream: Stream) -> str:
    """Return ``config.prompt`` and up to ``sample_tokens`` tokens sampled after it; ``stream`` is at the step."""
    prompt, _ = known_prompt(tokenizer, config.prompt)
    (sample,) = generate(
        model,
        [prompt],
        tokens=config.sample_tokens,
        sampler=SAMPLER,
        seed=stream.seed64(),
        eot_id=tokenizer.eot_id,
        vocab_size=tokenizer.vocab_size,  # the model may have more ids than the tokeniser
    )
    return tokenizer.decode([*prompt, *sample.ids])


def known_prompt(tokenizer: Tokenizer, prompt: str) -> tuple[list[int], bool]:
    """Return the prompt's tokens, or one token to start from; and whether this tokeniser can encode the prompt."""
    try:
        tokens, known = [int(i) for i in tokenizer.encode(prompt)], True
    except DataError:  # a character outside the tokeniser's vocabulary
        tokens, known = [], False
    return tokens or [tokenizer.eot_id or 0], known


# One setting, ``log.profile=FOLDER``, writes a trace and a table of a few updates.

WARM: Final = 3
"""Updates before the first profiled one: compilation and first allocations are not the run's speed."""
TABLE_ROWS: Final = 40


class Profiler:
    """Profiles updates ``WARM + 1 .. WARM + profile_steps`` counted from where the run starts."""

    def __init__(self, config: LogConfig, device: torch.device, say: Callable[[str], None]) -> None:
        """Make the folder; ``say`` takes a warning.

        Raises:
            ConfigError: it cannot be made.
        """
        self.running: profile | None = None
        if not config.profile:
            return
        self.folder, self.say, self.kind = Path(config.profile), say, device.type
        with in_words(
            ConfigError, f"log.profile={self.folder} cannot be written: give another place, or null", OSError
        ):
            self.folder.mkdir(parents=True, exist_ok=True)
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.kind == "cuda" else [])
        when = schedule(wait=WARM - 1, warmup=1, active=config.profile_steps, repeat=1)
        self.running = profile(activities=activities, schedule=when, on_trace_ready=self._write)
        self.running.start()

    @contextlib.contextmanager
    def around(self, k: int) -> Iterator[None]:
        """Profile update ``k`` in this context, if it is one of those."""
        if self.running is None:
            yield
            return
        with record_function(f"update {k}"):
            yield
        self.running.step()

    def _write(self, finished: profile) -> None:
        """Write ``trace.json`` (for chrome://tracing or Perfetto) and ``table.txt``; a failure is only printed."""
        try:
            finished.export_chrome_trace(str(self.folder / "trace.json"))
            table = finished.key_averages().table(sort_by=f"self_{self.kind}_time_total", row_limit=TABLE_ROWS)
            (self.folder / "table.txt").write_text(table, encoding="utf-8")
        except (OSError, RuntimeError) as error:  # torch has errors of its own
            self.say(
                f"warning: log.profile={self.folder} cannot be written ({one_line(error)}); the run goes on without it"
            )

    def close(self) -> None:
        """Write what was profiled so far."""
        if self.running is not None:
            self.running.stop()
            self.running = None


# The lines that a run prints (preset and size, evaluations, end), and its sinks.

ETA_AFTER = 5
"""Number of steps that are timed before the first estimate of the run's time."""
SHOWN = 120
"""Characters shown of a sample; the store has all of it."""


class Log:
    """Prints plain lines to the error stream and hands every record to the sinks."""

    def __init__(
        self,
        run_id: str,
        config: GptConfig,
        corpus: Corpus,
        model: GPT,
        *,
        from_step: int,
        earlier: Sequence[StepPoint] = (),
        branch: int = 0,
        mute: bool = False,
    ) -> None:
        """``earlier``: the log until ``from_step``. ``branch``: number of the branch there. ``mute``: print nothing
        whatever happens, as another process of this run prints it.
        """
        self.mute = mute
        self.run_id, self.config, self.corpus, self.model = run_id, config, corpus, model
        self.from_step, self.began = from_step, 0.0
        self.profile = Profiler(config.log, model.device, partial(self.say, always=True))
        self.sinks: list[Sink] = open_sinks(run_id, config, from_step, branch)
        self._untold: list[StepPoint] = []
        self._use(earlier)

    def _use(self, log: Sequence[StepPoint]) -> None:
        """Begin to count what the run has used, with the steps of ``log``."""
        self.used = Used(self.config, self.model.vocab_size)
        for point in log if self.sinks else ():
            self.used.add(point)

    def say(self, line: str, *, always: bool = False) -> None:
        if not self.mute and (always or not self.config.log.quiet):
            print(f"{self.run_id[:8]} {line}", file=sys.stderr, flush=True)

    def start(
        self, numerics: str, changes: list[str], sequences: int, shares: Sequence[tuple[Corpus, float, float]]
    ) -> None:
        """Print the preset, the model's size beside the preset's, the data, and a sample of the data.

        ``sequences``: their number in all steps of the run. ``shares``: the corpora of the training set, each with its
        share of the sequences and the epochs that the run is expected to take of it.
        """
        config, model, tokens = self.config, self.model, self.corpus.tokens("train")
        n = sum(p.numel() for p in model.parameters())
        train, context = config.train, config.model.context
        epochs = sequences * context / len(tokens)
        most, up_to = "at most " * bool(train.context_ramp), "up to " * bool(train.batch_ramp or train.context_ramp)
        of_data = "" if len(shares) > 1 else f" are {most}{epochs:.2f} epochs of {len(tokens):,} tokens"
        self.say(f"{config.experiment}: {n:,} parameters, vocabulary {model.vocab_size:,}{against_target(config, n)}")
        self.say(f"{train.steps:,} steps of {up_to}{train.batch_size * context:,} tokens{of_data}; {numerics}")
        for corpus, share, own_epochs in shares if len(shares) > 1 else ():
            self.say(
                f"{share:.1%} of the sequences from {corpus.path}: {own_epochs:.2f} epochs of its "
                f"{len(corpus.tokens('train')):,} tokens"
            )
        self.say(f"data sample: {self.corpus.sample('train', 48)!r}")
        prompt, known = known_prompt(self.corpus.tokenizer, config.eval.prompt)
        if config.eval.sample_tokens and not known:
            self.say(
                f"warning: eval.prompt={config.eval.prompt!r} has characters that the vocabulary of {self.corpus.path} "
                f"lacks: samples begin with {self.corpus.tokenizer.decode(prompt)!r} instead",
                always=True,
            )
        for change in changes:
            self.say(f"going on from step {self.from_step} under a changed setting: {change}")
        self.began = time.perf_counter()

    def step(self, point: StepPoint) -> None:
        """Add the log of one step. The previous step's is complete now and goes to the sinks."""
        self.tell_steps()
        self._untold.append(point)

    def tell_steps(self) -> None:
        """Send the log of every step so far to the sinks: all are complete."""
        for point in self._untold:
            self._step(point)
        self._untold.clear()

    def _step(self, point: StepPoint) -> None:
        """Send the log of one step to the sinks; after the first few steps print an estimate of the run's time."""
        if self.sinks:
            self._tell("step", point, self.used.add(point))
        done = point.step - self.from_step
        if done == 1:
            self.began = time.perf_counter()  # the first step also compiles
        if done == 1 + ETA_AFTER:
            left = (time.perf_counter() - self.began) / ETA_AFTER * (self.config.train.steps - point.step)
            self.say(f"about {duration(left)} to go, without evaluations")
        if point.event:
            self.say(
                f"step {point.step}: {point.event}, loss {point.train_loss:.4f}, gradient norm {point.grad_norm:.3g}: "
                f"{EVENTS[point.event]}"
            )

    def evaluation(self, point: CurvePoint, *, best: bool, tokens_per_second: float) -> None:
        """Print an evaluation; ``best``: no earlier validation loss was lower."""
        self._tell("evaluation", point)
        further = "".join(
            f", {name.removeprefix(VAL_LOSS)} {value:.4f}" for name, value in point.metrics.items() if VAL_LOSS in name
        )
        self.say(
            f"step {point.step}: train {point.train_loss:.4f}, val {point.val_loss:.4f}{' (best)' if best else ''}, "
            f"perplexity {math.exp(min(point.val_loss, 700)):.2f}{further}, lr {point.lr:.2e}, "
            f"{tokens_per_second:,.0f} tokens/s"
        )
        scores = [
            f"{name.removeprefix(TASK)} {value:.4f}"
            for name, value in point.metrics.items()
            if name.startswith(TASK) and not name.endswith("_stderr")
        ]
        if scores:
            self.say(f"tasks: {', '.join(scores)}")
        if point.sample is not None:
            self.say(f"generated sample: {point.sample[:SHOWN]!r}")

    def rolled_back(
        self, k: int, event: str, *, onset: int, to_step: int, branch: int, log: Sequence[StepPoint]
    ) -> None:
        """Print a rollback and start a new branch in the sinks; ``branch`` is its number, ``log`` all before it."""
        self._use(log)
        began = f", which began at step {onset}" if onset < k else ""
        self.say(f"rolled back from step {k} ({event}{began}) to step {to_step}: branch {branch}")
        self._tell("branch", branch)

    def paused(self, step: int, seconds: float) -> str:
        """Say that the run has used its hours; return in words where it is, and what continues it."""
        train = self.config.train
        self.say(f"paused at step {step:,} of {train.steps:,}: {duration(seconds)} of training, a checkpoint is left")
        return (
            f"train.hours={train.hours:g} is used at step {step:,} of {train.steps:,}: the same command with more "
            "train.hours, or without it, continues there"
        )

    def flush(self) -> None:
        """Let every sink write down what it holds: a run that goes on from here will not tell it again."""
        self._tell("flush")

    def finish(self, result: RunResult, saved_at: list[int]) -> None:
        """Say how the run ended; ``saved_at`` are the steps of its checkpoints, which stay where it diverged."""
        self._tell("finish", result)
        last, waits = result.curve[-1], [point.data_wait for point in result.step_log]
        diverged = result.status == "diverged"
        self.say(
            f"{result.status} ({result.stop_reason}) after {result.steps:,} steps in {duration(result.seconds)}: "
            f"train {last.train_loss:.4f}, val {last.val_loss:.4f}; "
            f"{sum(waits) / max(1, len(waits)):.1%} of a step waits for data",
            always=diverged,
        )
        if diverged:
            back = "" if self.config.stability.rolls_back() else ", or stability.policy=skip_data, which rolls back"
            advice = f"it is stored as far as it came; try a lower optim.lr or a longer optim.warmup_steps{back}"
            if saved_at:
                advice += (
                    f"; its checkpoints of step {' and '.join(map(str, saved_at[-2:]))} are kept: go on with "
                    f"resume.run={result.run_id} resume.step={saved_at[-2:][0]} and, named in resume.changes=[...], "
                    "other settings"
                )
            self.say(advice, always=True)

    def close(self) -> None:
        """Close every sink; what was written stays."""
        self.profile.close()
        self._tell("close")

    def _tell(self, what: str, *record: Any) -> None:
        """Send a record to every sink; one that fails is named and dropped."""
        for sink in list(self.sinks):
            try:
                with exits_refused():
                    getattr(sink, what)(*record)
            except Exception as error:  # each has errors of its own, and none of them is worth a run
                self.sinks.remove(sink)
                self.say(
                    f"warning: {type(sink).__name__} failed ({type(error).__name__}: {one_line(error)}); "
                    "the run goes on without it, and the store has everything",
                    always=True,
                )


def against_target(config: GptConfig, n: int) -> str:
    """Return the preset's own parameter count beside this model's, where they can be compared, or ``""``."""
    target = config.target
    if target.params is None or target.vocab_size is None or config.model.plugin:
        return ""
    comparable = parameter_count(config.model, vocab_size=target.vocab_size)
    known = f"; the preset has {target.params:,} at vocabulary {target.vocab_size:,}"
    if comparable != target.params:
        return f"{known}, these settings {comparable:,} there: something was changed, or left, off target"
    return known if n != target.params else ", as its preset says"
