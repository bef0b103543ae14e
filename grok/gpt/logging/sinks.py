"""Logs beside the store: TensorBoard files, Weights & Biases, MLflow. Names never change between versions.

A rollback goes on in a branch of its own and leaves the abandoned one as it was; a resumed run
takes up its own log at the step it goes on from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Protocol

from grok.config import flatten
from grok.config.gpt import GptConfig
from grok.config.stability import EVENTS
from grok.errors import ConfigError
from grok.masking import without_secrets
from grok.plugins import RunSink, Spec, build, label
from grok.records import CurvePoint, RunResult, StepPoint

STEP_NAMES: Final = {
    "train_loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "param_norm": "train/param_norm",
    "adam_v_l1": "optim/adam_v_l1",
    "adam_v_max": "optim/adam_v_max",
    "loss_scale": "optim/loss_scale",
    "skipped_steps": "optim/skipped_steps",
    "nan_steps": "optim/nan_steps",
    "zeros_in_grads": "optim/zeros_in_grads",
    "consumed_samples": "data/consumed_samples",
    "consumed_tokens": "data/consumed_tokens",
    "tokens_per_second": "speed/tokens_per_second",
    "mfu": "speed/mfu",
    "peak_memory": "speed/peak_memory",
    "data_wait": "speed/data_wait",
}
"""Stable name of every number of a step."""
EVALUATION_NAMES: Final = {
    "val_loss": "val/loss",
    "val_acc": "val/accuracy",
    "train_acc": "val/train_accuracy",
    "weight_norm": "weights/norm",
    "weight_norm_all": "weights/norm_all",
}
"""Stable name of every number of an evaluation."""
FURTHER: Final = {"val_loss": "loss", "val_acc": "accuracy"}
"""Numbers of a further validation set: ``val/NAME/loss``, and ``val/NAME_SPLIT/loss`` of NAME@SPLIT."""

MLFLOW_HOLDS: Final = 900
"""Numbers that are collected before MLflow's database is asked to write: a request takes 1,000 at most."""

MLFLOW_PARAMS: Final = 100
"""Settings that one request to MLflow takes."""


EXTRA: Final = "'grok-lab[sinks]'"
"""What pip installs for the logs beside the store."""


class Sink(Protocol):
    """A place for records beside the store."""

    def step(self, point: StepPoint) -> None: ...
    def evaluation(self, point: CurvePoint) -> None: ...
    def branch(self, number: int) -> None: ...
    def flush(self) -> None: ...
    def finish(self, result: RunResult) -> None: ...
    def close(self) -> None: ...


def open_sinks(run_id: str, config: GptConfig, from_step: int, branch: int) -> list[Sink]:
    """Return the sinks of ``config.log``, for a run that goes on from ``from_step`` on branch number ``branch``.

    Raises:
        ConfigError: one needs a package that is not installed, or cannot be written where it is asked for.
    """
    log, experiment = config.log, str(config.experiment)
    seeds = {f"seed_{stream}": seed for stream, seed in asdict(config.stream_seeds()).items()}
    settings = {**flatten(config), **seeds, "store": str(Path(config.store.path).resolve())}

    def folder(root: str) -> Path:
        return run_folder(root, run_id, config.seed)

    requested: list[tuple[str, str | None, Callable[[str], Sink]]] = [
        ("tensorboard", log.tensorboard, lambda x: TensorBoard(folder(x), from_step, settings, branch)),
        ("wandb", log.wandb, lambda project: WeightsAndBiases(run_id, project, log.wandb_mode, settings)),
        ("mlflow", log.mlflow, lambda address: MLflow(run_id, address, experiment, settings, from_step)),
    ]
    if log.plugin:
        requested.append(("plugin", label(log.plugin), lambda name: OwnSink(run_id, log.plugin, settings)))
    sinks: list[Sink] = []
    for name, value, opened in requested:
        if value:
            try:
                sinks.append(opened(value))
            except OSError as error:
                raise ConfigError(
                    f"log.{name}={value} cannot be written ({error.strerror or error}): give another place, or null"
                ) from error
    for sink in sinks:
        if isinstance(sink, PrefixedSink):
            sink.branch(branch)
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


def missing(setting: str, package: str) -> ConfigError:
    return ConfigError(f"{setting} needs the {package} package: pip install {EXTRA}, or {setting}=null")


def run_folder(folder: str | Path, run_id: str, seed: int) -> Path:
    """Return the folder of a run's TensorBoard files; it may not exist. One without the seed is of older versions."""
    older = Path(folder) / run_id
    return older if older.is_dir() else Path(folder) / f"seed={seed}-{run_id}"


class TensorBoard:
    """One folder per run, and one inside it per branch after a rollback.

    Settings and outcome stand under Text, settings also under HParams. The last record says that the run has ended.
    """

    def __init__(self, folder: Path, from_step: int, settings: Mapping[str, Any], branch: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing("log.tensorboard", "tensorboard") from error
        self.folder, self.open = folder, SummaryWriter
        where = folder / f"branch-{branch}" if branch else folder
        # TensorBoard then hides what a killed process wrote beyond its last checkpoint.
        self.writer = self.open(str(where), purge_step=from_step + 1 if from_step else 0)
        known = {name: value for name, value in without_secrets(dict(settings)).items() if value is not None}
        self.outcome = {name: value for name, value in known.items() if name.startswith("outcome.")}
        if not from_step and not branch:
            self._describe({name: value for name, value in known.items() if name not in self.outcome})

    def _describe(self, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        # its table has the first few columns that differ, and the seeds that follow from `seed`, or rows of designs,
        # would fill it; it keeps numbers as doubles, into which a stream's seed does not fit
        columns = {n: v for n, v in settings.items() if not n.startswith(("seed_", "design."))}
        exact = {n: str(v) if isinstance(v, int) and v > 2**53 else v for n, v in columns.items()}
        _, start, _ = hparams(exact, {})
        self.writer.file_writer.add_summary(start)
        self.writer.add_text("run/settings", _as_table(settings), 0)

    def step(self, point: StepPoint) -> None:
        self.write(numbers(point, STEP_NAMES), point.step)
        if point.event is not None:
            self.writer.add_text("train/event", f"{point.event}: {EVENTS[point.event]}", point.step)

    def evaluation(self, point: CurvePoint) -> None:
        self.write(evaluation_numbers(point), point.step)
        if point.sample is not None:
            self.writer.add_text("val/sample", point.sample, point.step)

    def branch(self, number: int) -> None:
        self.writer.close()
        # a killed process that went on from an earlier step may have made this branch, too
        self.writer = self.open(str(self.folder / f"branch-{number}"), purge_step=0)

    def flush(self) -> None:
        self.writer.flush()

    def finish(self, result: RunResult) -> None:
        ended = {"status": result.status, "stop_reason": result.stop_reason, "steps": result.steps}
        outcome = {name.removeprefix("outcome."): value for name, value in self.outcome.items()}
        self.write({f"outcome/{name}": float(value) for name, value in outcome.items()}, result.steps)
        self.writer.add_text("run/outcome", _as_table(ended | outcome), result.steps)
        self.writer.file_writer.add_summary(_session_end(result.status == "completed"), result.steps)
        self.writer.flush()

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


def _session_end(completed: bool) -> Any:
    """Return the summary that ends a run under HParams. (TensorBoard's own function for it needs TensorFlow.)"""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.metadata import NULL_TENSOR, SESSION_END_INFO_TAG, create_summary_metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    end = SessionEndInfo(status=Status.Value("STATUS_SUCCESS" if completed else "STATUS_FAILURE"))
    metadata = create_summary_metadata(HParamsPluginData(session_end_info=end))
    return Summary(value=[Summary.Value(tag=SESSION_END_INFO_TAG, metadata=metadata, tensor=NULL_TENSOR)])


class PrefixedSink(ABC):
    """A log whose step may not go back: after a rollback names have the branch as a prefix."""

    number = 0
    """Of the branch."""

    def step(self, point: StepPoint) -> None:
        self.write(numbers(point, STEP_NAMES), point.step)

    def evaluation(self, point: CurvePoint) -> None:
        self.write(evaluation_numbers(point), point.step)

    def branch(self, number: int) -> None:
        self.number = number

    def prefixed(self, values: dict[str, float]) -> dict[str, float]:
        """Return ``values`` under the names of this branch."""
        prefix = f"branch-{self.number}/" if self.number else ""
        return {prefix + name: value for name, value in values.items()}

    @abstractmethod
    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""


class OwnSink(PrefixedSink):
    """A log of the user's own."""

    def __init__(self, run_id: str, spec: Spec, settings: Mapping[str, Any]) -> None:
        self.sink: RunSink = build(spec, run_id, without_secrets(dict(settings)))

    def flush(self) -> None:
        """Nothing is held here."""

    def finish(self, result: RunResult) -> None:
        self.sink.finish(result)

    def close(self) -> None:
        self.sink.close()

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        self.sink.write(self.prefixed(values), step)


class WeightsAndBiases(PrefixedSink):
    """A W&B run with this run's id; offline unless ``log.wandb_mode=online``."""

    known_to = -1
    """Last step that the server has already, of a run that was cut off; none is written twice."""

    def __init__(self, run_id: str, project: str, mode: str, settings: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise missing("log.wandb", "wandb") from error
        self.run: Any = wandb.init(
            project=project,
            id=run_id,
            name=run_id[:8],
            resume="allow",
            mode="online" if mode == "online" else "offline",
            config=without_secrets(dict(settings)),
            settings=wandb.Settings(silent=True),
        )

    def flush(self) -> None:
        """Nothing is held here: a process of W&B's own has every row already."""

    def finish(self, result: RunResult) -> None:
        self.run.summary["status"] = result.status
        self.run.summary["stop_reason"] = result.stop_reason

    def close(self) -> None:
        self.run.finish()

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        if step > self.known_to:
            self.run.log(self.prefixed({**values, "step": step}))


@contextmanager
def mlflow_errors(address: str) -> Iterator[None]:
    """Say in one line what MLflow refuses.

    Raises:
        ConfigError: the address cannot be used.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(
            f"MLflow cannot use the address {address} ({reason}): expected one such as sqlite:///mlflow.db or "
            "http://HOST:5000"
        ) from error


class MLflow:
    """An MLflow run, one nested run per branch; a resumed run goes on in the one that its process left open."""

    def __init__(self, run_id: str, address: str, name: str, settings: Mapping[str, Any], from_step: int) -> None:
        try:
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise missing("log.mlflow", "mlflow") from error
        self.metric = Metric
        self.run_id = run_id
        self.held: list[Any] = []
        with mlflow_errors(address):
            self.client: Any = MlflowClient(address)
            experiment = self.client.get_experiment_by_name(name)
            self.experiment = experiment.experiment_id if experiment else self.client.create_experiment(name)
            left = self._left_open() if from_step else None
            self.run = left or self._open(run_id, {})
            if left is None:
                shown = without_secrets(dict(settings))
                params = [Param(k, str(v)) for k, v in shown.items()]
                for start in range(0, len(params), MLFLOW_PARAMS):
                    self.client.log_batch(self.run, params=params[start : start + MLFLOW_PARAMS])

    def step(self, point: StepPoint) -> None:
        self.write(numbers(point, STEP_NAMES), point.step)

    def evaluation(self, point: CurvePoint) -> None:
        self.write(evaluation_numbers(point), point.step)
        self.flush()

    def branch(self, number: int) -> None:
        self.flush()
        parent = self.run
        self.run = self._open(f"{self.run_id}-branch-{number}", {"mlflow.parentRunId": parent})
        self.client.set_terminated(parent, "KILLED")

    def flush(self) -> None:
        if self.held:
            self.client.log_batch(self.run, metrics=self.held)
            self.held = []

    def finish(self, result: RunResult) -> None:
        self.flush()
        self.client.set_tag(self.run, "stop_reason", result.stop_reason)
        self.client.set_terminated(self.run, "FINISHED" if result.status == "completed" else "FAILED")

    def close(self) -> None:
        self.flush()

    def _open(self, name: str, tags: dict[str, str]) -> str:
        known = {"grok.run_id": self.run_id, **tags}
        return str(self.client.create_run(self.experiment, run_name=name, tags=known).info.run_id)

    def _left_open(self) -> str | None:
        """Return this run's newest MLflow run that has not ended: steps logged twice after a kill are equal."""
        open_ones = self.client.search_runs(
            [self.experiment], f"tags.`grok.run_id` = '{self.run_id}' and attributes.status = 'RUNNING'", max_results=1
        )
        return str(open_ones[0].info.run_id) if open_ones else None

    def write(self, values: dict[str, float], step: int) -> None:
        """Write numbers by name at a step."""
        self.held += [self.metric(name, value, 0, step) for name, value in values.items()]
        if len(self.held) > MLFLOW_HOLDS:
            self.flush()
