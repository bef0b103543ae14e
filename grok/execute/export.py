"""A finished store in the logs that people use: one run of TensorBoard, Weights & Biases or MLflow for each of its own.

The store stays the only place that results are read from; a run there has the same id, and its settings name
the store.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from grok.gpt.logging.sinks import EVALUATION_NAMES, MLflow, TensorBoard, WeightsAndBiases
from grok.records import RunResult
from grok.store import Store

OUTCOMES: Final = (
    "memorised_step",
    "grokked_step",
    "grokked_for_good_step",
    "val_loss_peak_step",
    "weight_norm_peak_step",
    "seconds",
)
"""Columns of a run that stand beside its last evaluation."""
NAMES: Final = {**EVALUATION_NAMES, "train_loss": "train/loss", "lr": "train/lr"}
"""Name of every number of an evaluation, by its column: those that language models' logs have, too."""


class RunSink(Protocol):
    """Where finished runs go."""

    def write(self, values: dict[str, float], step: int) -> None: ...
    def finish(self, result: RunResult) -> None: ...
    def close(self) -> None: ...


Opened = Callable[[str, Mapping[str, Any]], RunSink]
"""Opens the sink of one run, by its ``run_id`` and its settings."""


def openers(
    store: Store, *, tensorboard: str | None, wandb: str | None, wandb_mode: str, mlflow: str | None
) -> list[Opened]:
    """Return what opens each of the sinks that are asked for."""
    name = store.layout.root.resolve().name
    made: list[Opened] = []
    if tensorboard:
        made.append(lambda run_id, settings: TensorBoard(Path(tensorboard) / run_id, 0))
    if wandb:
        made.append(lambda run_id, settings: WeightsAndBiases(run_id, wandb, wandb_mode, settings))
    if mlflow:
        made.append(lambda run_id, settings: MLflow(run_id, mlflow, name, settings, 0))
    return made


def export(store: Store, opened: Sequence[Opened], tell: Callable[[int, int], None]) -> int:
    """Write every finished run of ``store`` into its sinks; return how many runs there were.

    Raises:
        ConfigError: a sink's package is not installed, or it cannot be written.
    """
    rows = [row for row in store.table("runs", None, None).to_pylist() if row["status"] != "failed"]
    rows.sort(key=lambda row: (row["seed"], row["run_id"]))
    for number, row in enumerate(rows, 1):
        points = list(_curve(store, row["run_id"]))
        for open_sink in opened:
            sink = open_sink(row["run_id"], _settings(row, store))
            for step, numbers in points:
                sink.write(numbers, step)
            sink.finish(_result(row))
            sink.close()
        tell(number, len(rows))
    return len(rows)


def _settings(row: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Return what stands beside a run's curves: its settings, its seeds, its outcome, and where the store is."""
    settings = {name.removeprefix("config."): value for name, value in row.items() if name.startswith("config.")}
    seeds = {name: value for name, value in row.items() if name.startswith("seed")}
    outcome = {f"outcome.{name}": row[name] for name in OUTCOMES if row[name] is not None}
    place = {"store": str(store.layout.root.resolve()), "numerics": row["numerics"], "own_code": row.get("own_code")}
    return {n: v for n, v in {**settings, **seeds, **outcome, **place}.items() if v is not None}


def _curve(store: Store, run_id: str) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each evaluation's step and its finite numbers by name."""
    table = store.table("curves", [run_id], ["step", *NAMES, "metrics"])
    for point in sorted(table.to_pylist(), key=lambda point: point["step"]):
        named = {name: point[column] for column, name in NAMES.items()}
        named |= {f"metrics/{name}": value for name, value in json.loads(point["metrics"] or "{}").items()}
        yield point["step"], {n: float(v) for n, v in named.items() if v is not None and math.isfinite(v)}


def _result(row: Mapping[str, Any]) -> RunResult:
    return RunResult(run_id=row["run_id"], status=row["status"], stop_reason=row["stop_reason"], steps=row["steps"])
