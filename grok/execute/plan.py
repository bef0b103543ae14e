"""Which of the requested runs must be trained: all of them, minus duplicates, minus what is stored. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from grok.config import RunConfig, flatten
from grok.config.fields import walk
from grok.errors import ConfigError
from grok.execute.groups import Group, lane_groups
from grok.execute.planned import PlannedRun, value_of
from grok.execute.pool import WorkerPool
from grok.execute.replicates import replicates_to_train
from grok.execute.resume import Prefixes
from grok.store import Store

SHARED: Final = (
    "mode",
    "device",
    "executor",
    "workers",
    "lanes",
    "plugin_path",
    "store.path",
    "store.flush_seconds",
    "dry_run",
    "retry_failed",
    "force",
    "require_clean",
)
"""Settings of the command rather than of a run: one sweep has one value of each."""


class StoredRuns:
    """What a store holds, looked up once for a plan: the status of every run, and by trajectory those with a result."""

    def __init__(self, store: Store | None) -> None:
        self.statuses: dict[str, str] = {}
        self._ends: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._lengths: set[int] = set()
        self.run_ids: set[str] = set()
        columns = ["trajectory_id", "status", "replicate", "config.train.steps"]
        for row in store.table("runs", None, columns).to_pylist() if store is not None else ():
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one more run, a row of ``runs``."""
        self.statuses[row["run_id"]] = row["status"]
        if row["status"] != "failed":
            steps = row["config.train.steps"]
            self._ends[row["trajectory_id"]].append((steps, -row["replicate"], row["run_id"]))
            self._lengths.add(steps)
            self.run_ids.add(row["run_id"])

    def has_results_of(self, run: PlannedRun) -> bool:
        """Return whether a run of this condition and these streams is stored, of any length."""
        if run.identity.trajectory_id in self._ends:
            return True
        if run.config.length_is_free():  # else the name of a trajectory has its length
            return False
        return any(run.under("train.steps", steps).identity.trajectory_id in self._ends for steps in self._lengths)

    def is_extended_by(self, run: PlannedRun) -> bool:
        """Return whether ``run`` only makes a stored trajectory longer."""
        length = value_of(run.config, "train.steps")
        return any(steps < length for steps, _, _ in self._ends.get(run.identity.trajectory_id, ()))

    def like(self, run: PlannedRun) -> str | None:
        """Return the stored run of the trajectory of ``run``: that of its length, else the longest."""
        ends = self._ends.get(run.identity.trajectory_id, ())
        wanted = value_of(run.config, "train.steps")
        return max(ends, key=lambda end: (end[0] == wanted, *end))[2] if ends else None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command comes to."""

    runs: tuple[PlannedRun, ...]
    """The run of every config, in the order given, duplicates included."""
    stored: Mapping[str, str]
    """Status of the requested runs that the store holds and that are not trained again."""
    to_train: tuple[PlannedRun, ...]
    pool: WorkerPool
    """The workers that train them."""
    found: StoredRuns
    """What the store held when the plan was made."""

    @property
    def requested(self) -> tuple[str, ...]:
        """The run_id of every config."""
        return tuple(run.run_id for run in self.runs)

    @property
    def duplicates(self) -> int:
        return len(self.requested) - len(set(self.requested))

    def groups(self, runs: Sequence[PlannedRun] | None = None) -> list[Group]:
        """Return ``runs`` (default: all runs to train) as the groups that workers take."""
        pool = self.pool
        return lane_groups(
            self.to_train if runs is None else runs, workers=pool.workers, lanes=pool.lanes or 1, gpu=pool.gpu
        )

    def labels(self) -> dict[str, str]:
        """Return for each run_id to train what tells it apart: ``seed 17``, ``init 3 lr 0.002``."""
        names = [name for name in varying([run.config for run in self.to_train]) if name != "experiment"] or ["seed"]
        return {
            run.run_id: " ".join(f"{name.rpartition('.')[2]} {value_of(run.config, name)}" for name in names)
            for run in self.to_train
        }

    def summary(self) -> str:
        """Return the counts: ``2000 planned, 1936 stored (2 diverged), 0 duplicates, 64 to train``."""
        ends = Counter(status for status in self.stored.values() if status != "completed")
        unusual = f" ({', '.join(f'{n} {status}' for status, n in sorted(ends.items()))})" if ends else ""
        switched = sum(run.extends_at is not None for run in self.to_train)
        extended = sum(run.extends is not None for run in self.to_train) - switched
        further = f" ({extended} from the end of a shorter run)" if extended else ""
        further += f" ({switched} from a checkpoint of their trunk)" if switched else ""
        return (
            f"{len(self.requested)} planned, {len(self.stored)} stored{unusual}, {self.duplicates} duplicates, "
            f"{len(self.to_train)} to train{further}"
        )


def varying(configs: Sequence[RunConfig]) -> list[str]:
    """Return the names of the settings in which ``configs``, all of one mode, differ."""
    first = configs[0]
    names = {name for config in configs for name in _differences(first, config)}
    return [name for name, _, _ in walk(first) if name in names]


def _differences(first: Any, other: Any, prefix: str = "") -> Iterator[str]:
    for field in fields(first):
        a, b = getattr(first, field.name), getattr(other, field.name)
        if a is not b and a != b:  # equal sections, nearly all of thousands of runs', are compared whole
            if is_dataclass(a):
                yield from _differences(a, b, f"{prefix}{field.name}.")
            else:
                yield f"{prefix}{field.name}"


def shared_settings(configs: Sequence[RunConfig]) -> RunConfig:
    """Return a config to read the command's own settings from.

    Raises:
        ConfigError: no run at all, or a setting of :data:`SHARED` that differs between runs.
    """
    if not configs:
        raise ConfigError("no run is requested: expected at least one seed or setting to sweep over")
    first = flatten(configs[0])
    values = {name: first[name] for name in SHARED}
    for config in configs:
        for name, value in values.items():
            other = value_of(config, name)
            if other != value:
                raise ConfigError(
                    f"{name} differs between the runs of this sweep ({value!r}, {other!r}): "
                    "it belongs to the command, give it one value"
                )
    return configs[0]


def make_plan(requested: Sequence[PlannedRun], store: Store | None) -> Plan:
    """Return the plan for ``requested`` runs, given what ``store`` holds (None: there is none yet).

    Equal runs are trained once; a stored, shorter run whose checkpoint was kept is extended.
    """
    shared = requested[0].config
    results = StoredRuns(store)
    statuses = results.statuses
    named = replicates_to_train(requested, store, statuses) if shared.force else requested
    runs = {run.run_id: run for run in named}
    stored = {
        run_id: statuses[run_id]
        for run_id in runs
        if run_id in statuses and not (shared.retry_failed and statuses[run_id] == "failed")
    }
    waiting = [run for run_id, run in runs.items() if run_id not in stored]
    prefixes = Prefixes(store) if store is not None and waiting else None
    to_train = tuple(prefixes.extended(run) if prefixes else run for run in waiting)
    return Plan(
        runs=tuple(named),
        stored=stored,
        to_train=to_train,
        pool=WorkerPool.of(shared, to_train),
        found=results,
    )
