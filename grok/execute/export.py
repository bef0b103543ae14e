"""Stored runs in the logs that people use, also while a sweep trains.

The store stays the only place that results are read from; a run there has the same id, and its settings name
the store.
"""

from __future__ import annotations

import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.config import ArithmeticConfig, RunConfig
from grok.config.common import SinksConfig
from grok.config.fields import canonical_json
from grok.errors import StoreError, one_line
from grok.execute.groups import PlannedRun
from grok.gpt.sinks import EVALUATION_NAMES, TensorBoard, WeightsAndBiases, run_folder, wandb_is_online
from grok.plugins import RunSink, build, exits_refused
from grok.records import RunResult
from grok.store import Store
from grok.untrusted import without_secrets

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


def openers(log: SinksConfig) -> dict[str, Opened]:
    """Return what opens each of the sinks that ``log`` asks for, by the setting's name."""
    made: dict[str, Opened] = {}
    if folder := log.tensorboard:
        made["tensorboard"] = lambda run_id, settings: _tensorboard(folder, run_id, settings)
    if project := log.wandb:
        made["wandb"] = lambda run_id, settings: _wandb(project, run_id, settings)
    if log.plugin:
        made["plugin"] = lambda run_id, settings: build(log.plugin, run_id, without_secrets(dict(settings)))
    return made


def _tensorboard(root: str, run_id: str, settings: Mapping[str, Any]) -> RunSink | None:
    folder = run_folder(root, run_id, settings["seed"])
    return None if folder.exists() else TensorBoard(folder, 0, settings)


def _wandb(project: str, run_id: str, settings: Mapping[str, Any]) -> RunSink | None:
    if not wandb_is_online():
        import wandb

        if any(Path(wandb.setup().settings.wandb_dir).glob(f"offline-run-*-{run_id}")):
            return None
    sink = WeightsAndBiases(run_id, project, settings)
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


# Runs of a sweep in the logs that people use, while the sweep goes on.
#
# The process that the command began writes them: it has nothing else to do, and it sees what the workers commit,
# wherever they are. So no worker waits for a log, and a log that fails costs no run.

LOOK: Final = 10.0
"""Seconds between two looks for runs that were committed."""


class RunLogs:
    """Writes each committed run of ``runs`` into the sinks that its settings name, while it is entered.

    Language models are left out: their engine writes into its sinks at every step.
    """

    def __init__(self, store: Store, runs: Sequence[PlannedRun], tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._waiting: dict[str, RunConfig] = {
            run.run_id: run.config
            for run in runs
            if isinstance(run.config, ArithmeticConfig) and openers(run.config.log)
        }
        self._failed: set[str] = set()
        """Sinks that failed once."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="logs", daemon=True)

    def __enter__(self) -> RunLogs:
        if self._waiting:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if exception[0] is None and self._waiting:
            self._write()

    def _tend(self) -> None:
        while not self._closing.wait(LOOK):
            self._write()

    def _write(self) -> None:
        """Write what was committed since the last look."""
        try:
            statuses = self._store.statuses()
            # a failed run is not logged; its row may be an old one, while retry_failed=true trains the run again
            ended = [run_id for run_id in self._waiting if statuses.get(run_id, "failed") != "failed"]
            rows = self._store.table("runs", ended, None).to_pylist() if ended else []
            for row, points in with_curves(self._store, rows):
                for name, open_sink in openers(self._waiting[row["run_id"]].log).items():
                    if name not in self._failed:
                        self._into(name, open_sink, row, points)
                del self._waiting[row["run_id"]]
        except (OSError, StoreError) as error:  # who trains says so too; the next look sees these runs again
            if self._closing.is_set():
                self._tell(f"logs: the store cannot be read ({error}); `grok store export` writes them later")

    def _into(self, name: str, open_sink: Opened, row: Mapping[str, Any], points: Points) -> None:
        try:
            with exits_refused():
                write_run(self._store, row, points, open_sink)
        except Exception as error:  # each has errors of its own, and none of them is worth a run
            self._failed.add(name)
            reason = one_line(error)
            self._tell(
                f"log.{name} failed and is left out from here on ({reason}); the runs go on, and `grok store export` "
                "writes them later"
            )
