"""Which of the requested runs must be trained: all of them, minus duplicates, minus what is stored. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from grok.config import RunConfig, flatten
from grok.errors import ConfigError
from grok.execute.groups import Group, lane_groups
from grok.execute.planned import PlannedRun, value_of
from grok.execute.pool import WorkerPool
from grok.execute.replicates import replicates_to_train
from grok.execute.resume import ShorterRuns
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

    def varying(self) -> list[str]:
        """Return the names of the settings in which the runs to train differ."""
        return varying([flatten(run.config) for run in self.to_train])

    def labels(self) -> dict[str, str]:
        """Return for each run_id to train what tells it apart: ``seed 17``, ``init 3 lr 0.002``."""
        names = [name for name in self.varying() if name != "experiment"] or ["seed"]
        return {
            run.run_id: " ".join(f"{name.rpartition('.')[2]} {value_of(run.config, name)}" for name in names)
            for run in self.to_train
        }

    def summary(self) -> str:
        """Return the counts: ``2000 planned, 1936 stored (2 diverged), 0 duplicates, 64 to train``."""
        ends = Counter(status for status in self.stored.values() if status != "completed")
        unusual = f" ({', '.join(f'{n} {status}' for status, n in sorted(ends.items()))})" if ends else ""
        extended = sum(run.extends is not None for run in self.to_train)
        further = f" ({extended} from the end of a shorter run)" if extended else ""
        return (
            f"{len(self.requested)} planned, {len(self.stored)} stored{unusual}, {self.duplicates} duplicates, "
            f"{len(self.to_train)} to train{further}"
        )


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings in which flat ``configs`` differ."""
    return [name for name in configs[0] if any(other[name] != configs[0][name] for other in configs)]


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
    statuses = store.statuses() if store is not None else {}
    named = replicates_to_train(requested, store) if shared.force else requested
    runs = {run.run_id: run for run in named}
    stored = {
        run_id: statuses[run_id]
        for run_id in runs
        if run_id in statuses and not (shared.retry_failed and statuses[run_id] == "failed")
    }
    waiting = [run for run_id, run in runs.items() if run_id not in stored]
    shorter = ShorterRuns(store) if store is not None and waiting else None
    to_train = tuple(replace(run, extends=shorter.longest_below(run)) if shorter else run for run in waiting)
    return Plan(
        runs=tuple(named),
        stored=stored,
        to_train=to_train,
        pool=WorkerPool.of(shared, to_train),
    )
