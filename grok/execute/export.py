"""Stored runs in the logs that people use: one run of TensorBoard or Weights & Biases for each of its own.

The store stays the only place that results are read from; a run there has the same id, and its settings name
the store.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.config.common import SinksConfig
from grok.config.fields import canonical_json
from grok.gpt.logging.sinks import EVALUATION_NAMES, TensorBoard, WeightsAndBiases, run_folder
from grok.masking import without_secrets
from grok.plugins import RunSink, build
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

AT_ONCE: Final = 200
"""Runs whose curves are read together."""

Opened = Callable[[str, Mapping[str, Any]], RunSink | None]
"""Opens the sink of one run, by its ``run_id`` and its settings; None: the log has the run already."""


def openers(store: Store, log: SinksConfig) -> dict[str, Opened]:
    """Return what opens each of the sinks that ``log`` asks for, by the setting's name."""
    made: dict[str, Opened] = {}
    if folder := log.tensorboard:
        made["tensorboard"] = lambda run_id, settings: _tensorboard(folder, run_id, settings)
    if project := log.wandb:
        made["wandb"] = lambda run_id, settings: _wandb(project, log.wandb_mode, run_id, settings)
    if log.plugin:
        made["plugin"] = lambda run_id, settings: build(log.plugin, run_id, without_secrets(dict(settings)))
    return made


def _tensorboard(root: str, run_id: str, settings: Mapping[str, Any]) -> RunSink | None:
    folder = run_folder(root, run_id, settings["seed"])
    return None if folder.exists() else TensorBoard(folder, 0, settings)


def _wandb(project: str, mode: str, run_id: str, settings: Mapping[str, Any]) -> RunSink | None:
    if mode == "offline":
        import wandb

        if any(Path(wandb.setup().settings.wandb_dir).glob(f"offline-run-*-{run_id}")):
            return None
    sink = WeightsAndBiases(run_id, project, mode, settings)
    if sink.run.resumed:  # only its server knows
        sink.close()
        return None
    return sink


def export(store: Store, opened: Sequence[Opened], tell: Callable[[int, int], None]) -> tuple[int, int]:
    """Write every finished run of ``store`` into its sinks; return how many were written, and how many there are.

    Raises:
        ConfigError: a sink's package is not installed, or it cannot be written.
    """
    rows = [row for row in store.table("runs", None, None).to_pylist() if row["status"] != "failed"]
    rows.sort(key=lambda row: (row["seed"], row["run_id"]))
    written = 0
    for number, (row, points) in enumerate(with_curves(store, rows), 1):
        news = [write_run(store, row, points, open_sink) for open_sink in opened]
        written += any(news)
        tell(number, len(rows))
    return written, len(rows)


Points = Sequence[tuple[int, dict[str, float]]]
"""Each evaluation's step and its finite numbers by name."""


def with_curves(store: Store, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Points]]:
    """Yield each row of ``runs``, with what it was for as ``designs``, and its curve."""
    purposes = _purposes(store, [row["run_id"] for row in rows])
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        curves: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
        table = store.table("curves", [row["run_id"] for row in part], ["step", *NAMES, "metrics"])
        for point in table.to_pylist():  # in the order of steps
            curves[point["run_id"]].append((point["step"], _numbers(point)))
        for row in part:
            yield {**row, "designs": purposes.get(row["run_id"], [])}, curves[row["run_id"]]


def _purposes(store: Store, run_ids: Sequence[str]) -> Mapping[str, list[dict[str, Any]]]:
    """Return the rows of ``designs/`` of each run, in the order of planning, without the times of planning."""
    table = store.designs_table()
    table = table.filter(pc.is_in(table["run_id"], value_set=pa.array(run_ids, pa.string())))
    purposes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.drop_columns(["planned_at"]).to_pylist():
        purposes[row.pop("run_id")].append({name: value for name, value in row.items() if value is not None})
    return purposes


def write_run(store: Store, row: Mapping[str, Any], points: Points, open_sink: Opened) -> bool:
    """Write one stored run into a sink of its own; return whether that was necessary."""
    sink = open_sink(row["run_id"], _settings(row, store))
    if sink is None:
        return False
    for step, numbers in points:
        sink.write(numbers, step)
    result = RunResult(run_id=row["run_id"], status=row["status"], stop_reason=row["stop_reason"], steps=row["steps"])
    sink.finish(result)
    sink.close()
    return True


def _settings(row: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Return what stands beside a run's curves: its settings, seeds, outcome and designs, and where the store is.

    ``design`` says what the run was for in words, ``design.0`` and on are its rows of ``designs/`` as JSON.
    """
    settings = {name.removeprefix("config."): value for name, value in row.items() if name.startswith("config.")}
    seeds = {name: value for name, value in row.items() if name.startswith("seed")}
    outcome = {f"outcome.{name}": row[name] for name in OUTCOMES if row[name] is not None}
    place = {"store": str(store.layout.root.resolve()), "numerics": row["numerics"], "own_code": row.get("own_code")}
    purposes = {f"design.{number}": canonical_json(purpose) for number, purpose in enumerate(row["designs"])}
    words = dict.fromkeys(f"{purpose['kind']} {purpose['role']}" for purpose in row["designs"])
    described = {**settings, **seeds, **outcome, **place, **purposes}
    described["design"] = ", ".join(words) or "unknown"
    return {name: value for name, value in described.items() if value is not None}


def _numbers(point: Mapping[str, Any]) -> dict[str, float]:
    """Return an evaluation's finite numbers by name."""
    named = {name: point[column] for column, name in NAMES.items()}
    named |= {f"metrics/{name}": value for name, value in json.loads(point["metrics"] or "{}").items()}
    return {n: float(v) for n, v in named.items() if v is not None and math.isfinite(v)}
