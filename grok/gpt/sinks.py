"""Logs beside the store: TensorBoard files, Weights & Biases. Names never change between versions.

A rollback goes on in a branch of its own and leaves the abandoned one as it was; a resumed run
takes up its own log at the step it goes on from.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from grok.config import flatten
from grok.config.gpt import EVENTS, GptConfig
from grok.errors import ConfigError, in_words
from grok.gpt.costs import count_parameters, train_flops_per_token
from grok.plugins import RunSink, Spec, build, label
from grok.records import CurvePoint, RunResult, StepPoint
from grok.untrusted import without_secrets

_NAMES: Final = tomllib.loads(files("grok.gpt").joinpath("sinks.toml").read_text(encoding="utf-8"))
STEP_NAMES: Final[dict[str, str]] = _NAMES["step"]
"""Stable name of every number of a step."""
USED_NAMES: Final[dict[str, str]] = _NAMES["used"]
"""Stable name of every number that a step's log and the ones before it give together."""
EVALUATION_NAMES: Final[dict[str, str]] = _NAMES["evaluation"]
"""Stable name of every number of an evaluation."""
FURTHER: Final = {"val_loss": "loss", "val_acc": "accuracy"}
"""Numbers of a further validation set: ``val/NAME/loss``, and ``val/NAME_SPLIT/loss`` of NAME@SPLIT."""


class Used:
    """What a run has used after a step."""

    def __init__(self, config: GptConfig, vocab_size: int) -> None:
        self.config, self.vocab_size = config, vocab_size
        self.samples = self.tokens = self.steps = self.clipped = 0
        self.flops = 0.0
        """Not a number for a model of the user's own."""
        self.seconds = 0.0
        """Of training steps; without evaluations."""

    def add(self, point: StepPoint) -> dict[str, float]:
        """Add the next step; return its finite numbers by their stable names."""
        batch, tokens = point.consumed_samples - self.samples, point.consumed_tokens - self.tokens
        model, clip = self.config.model, self.config.optim.clip
        context = tokens // max(1, batch)
        self.samples, self.tokens = point.consumed_samples, point.consumed_tokens
        parameters = count_parameters(model, self.vocab_size)
        self.flops += math.nan if model.plugin else tokens * train_flops_per_token(model, parameters, context)
        self.seconds += tokens / point.tokens_per_second
        self.steps += 1
        self.clipped += point.grad_norm > clip > 0
        values = {
            "batch_size": batch,
            "context": context,
            "clipped_share": self.clipped / self.steps if clip else math.nan,
            "gflops": self.flops / 1e9,
            "hours": self.seconds / 3600,
        }
        return {USED_NAMES[name]: value for name, value in values.items() if math.isfinite(value)}


class Sink(RunSink):
    """A place for records beside the store. Its step may not go back: after a rollback names have the branch before."""

    number = 0
    """Of the branch."""

    def step(self, point: StepPoint, used: dict[str, float]) -> None:
        """Log a step: its numbers, and what was ``used`` until then."""
        self.write(numbers(point, STEP_NAMES) | used, point.step)

    def evaluation(self, point: CurvePoint) -> None:
        self.write(evaluation_numbers(point), point.step)

    def branch(self, number: int) -> None:
        self.number = number

    def flush(self) -> None:
        """Write what is held; most hold nothing."""

    def prefixed(self, values: dict[str, float]) -> dict[str, float]:
        """Return ``values`` under the names of this branch."""
        prefix = f"branch-{self.number}/" if self.number else ""
        return {prefix + name: value for name, value in values.items()}


def open_sinks(run_id: str, config: GptConfig, from_step: int, branch: int) -> list[Sink]:
    """Return the sinks of ``config.log``, for a run that goes on from ``from_step`` on branch number ``branch``.

    Raises:
        ConfigError: one cannot be written where it is asked for.
    """
    log = config.log
    seeds = {f"seed_{stream}": seed for stream, seed in asdict(config.stream_seeds()).items()}
    settings = {**flatten(config), **seeds, "store": str(Path(config.store.path).resolve())}

    folder = partial(run_folder, run_id=run_id, seed=config.seed)
    requested: list[tuple[str, str | None, Callable[[str], Sink]]] = [
        ("tensorboard", log.tensorboard, lambda root: TensorBoard(folder(root), from_step, settings, branch)),
        ("wandb", log.wandb, lambda project: WeightsAndBiases(run_id, project, settings)),
        ("plugin", label(log.plugin) if log.plugin else None, lambda _: OwnSink(run_id, log.plugin, settings)),
    ]
    sinks: list[Sink] = []
    for name, value, opened in requested:
        if value:
            with in_words(ConfigError, f"log.{name}={value} cannot be written: give another place, or null", OSError):
                sinks.append(opened(value))
            sinks[-1].number = branch
    return sinks


def numbers(point: StepPoint | CurvePoint, names: dict[str, str]) -> dict[str, float]:
    """Return the finite numbers of a record by their stable names."""
    values = asdict(point)
    return {name: float(values[key]) for key, name in names.items() if math.isfinite(values[key])}


def evaluation_numbers(point: CurvePoint) -> dict[str, float]:
    """Return the finite numbers of an evaluation by their stable names.

    >>> evaluation_numbers(CurvePoint(step=1, val_loss=2.0, metrics={"val_loss.wiki@test": 3.0, "task.piqa.acc": 0.5}))
    {'val/loss': 2.0, 'val/wiki_test/loss': 3.0, 'tasks/piqa/acc': 0.5}
    """
    values = numbers(point, EVALUATION_NAMES)
    for name, value in point.metrics.items():
        kind, _, rest = name.partition(".")
        stable = f"tasks/{rest.replace('.', '/')}" if kind == "task" else f"val/{rest}/{FURTHER[kind]}"
        if math.isfinite(value):
            values[stable.replace("@", "_")] = value
    return values


def run_folder(folder: str | Path, run_id: str, seed: int) -> Path:
    """Return the folder of a run's TensorBoard files; it may not exist."""
    return Path(folder) / f"seed={seed}-{run_id}"


class TensorBoard(Sink):
    """One folder per run, and one inside it per branch after a rollback.

    Settings and outcome stand under Text.
    """

    def __init__(self, folder: Path, from_step: int, settings: Mapping[str, Any], branch: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder, self.open = folder, SummaryWriter
        where = folder / f"branch-{branch}" if branch else folder
        # TensorBoard then hides what a killed process wrote beyond its last checkpoint.
        self.writer = self.open(str(where), purge_step=from_step + 1 if from_step else 0)
        known = {name: value for name, value in without_secrets(dict(settings)).items() if value is not None}
        self.outcome = {n.removeprefix("outcome."): value for n, value in known.items() if n.startswith("outcome.")}
        if not from_step and not branch:
            described = {n: value for n, value in known.items() if not n.startswith("outcome.")}
            self.writer.add_text("run/settings", _as_table(described), 0)

    def step(self, point: StepPoint, used: dict[str, float]) -> None:
        super().step(point, used)
        if point.event is not None:
            self.writer.add_text("train/event", f"{point.event}: {EVENTS[point.event]}", point.step)

    def evaluation(self, point: CurvePoint) -> None:
        super().evaluation(point)
        if point.sample is not None:
            self.writer.add_text("val/sample", point.sample, point.step)

    def branch(self, number: int) -> None:
        self.close()
        # a killed process that went on from an earlier step may have made this branch, too
        self.writer = self.open(str(self.folder / f"branch-{number}"), purge_step=0)

    def flush(self) -> None:
        self.writer.flush()

    def finish(self, result: RunResult) -> None:
        ended = {"status": result.status, "stop_reason": result.stop_reason, "steps": result.steps}
        self.write({f"outcome/{name}": float(value) for name, value in self.outcome.items()}, result.steps)
        self.writer.add_text("run/outcome", _as_table(ended | self.outcome), result.steps)
        self.flush()

    def close(self) -> None:
        self.writer.close()

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)


def _as_table(values: Mapping[str, Any]) -> str:
    """Return named values as a table of Markdown."""
    cells = [(name, str(value).replace("|", "\\|").replace("\n", " ")) for name, value in values.items()]
    return "\n".join(["| name | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells)])


class OwnSink(Sink):
    """A log of the user's own."""

    def __init__(self, run_id: str, spec: Spec, settings: Mapping[str, Any]) -> None:
        self.sink: RunSink = build(spec, run_id, without_secrets(dict(settings)))

    def finish(self, result: RunResult) -> None:
        self.sink.finish(result)

    def close(self) -> None:
        self.sink.close()

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        self.sink.write(self.prefixed(values), step)


def wandb_is_online() -> bool:
    """Return whether W&B may use the network: only where its own variable ``WANDB_MODE`` says so."""
    return os.environ.get("WANDB_MODE") == "online"


class WeightsAndBiases(Sink):
    """A W&B run with this run's id."""

    def __init__(self, run_id: str, project: str, settings: Mapping[str, Any]) -> None:
        import wandb

        self.run: Any = wandb.init(
            project=project,
            id=run_id,
            name=run_id[:8],
            resume="allow",
            mode="online" if wandb_is_online() else "offline",
            config=without_secrets(dict(settings)),
            settings=wandb.Settings(silent=True),
        )

    def finish(self, result: RunResult) -> None:
        self.run.summary.update({"status": result.status, "stop_reason": result.stop_reason})

    def close(self) -> None:
        self.run.finish()

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        self.run.log(self.prefixed({**values, "step": step}))
