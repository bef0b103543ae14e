"""The plan of a command: which runs must be trained, by how many workers, and what they are for. No torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from grok.config import GptConfig, RunConfig, flatten
from grok.config.fields import walk
from grok.errors import ConfigError
from grok.execute.estimate import bytes_per_worker
from grok.execute.groups import Group, PlannedRun, lane_groups, value_of
from grok.execute.resume import Prefixes
from grok.processes import Rank, usable_cores, usable_memory
from grok.store import Purpose, Purposes, Store
from grok.store.provenance import ABOUT_THE_COMMAND
from grok.streams import CROSSED, STREAMS

# Retraining (``force=true``): what the store holds is trained once more, as the next replicate.
#
# Which replicates a command makes is in its design, written before it trains, so that the same command, given again
# after
# an interruption, goes on with its own instead of making yet further ones. Once they are all stored, it makes the next.

FORCED: Final = "forced"
"""In the ``choice_detail`` of a run that ``force=true`` trains again: which replicate it is (of the run ``asked``)."""


def replicates_to_train(
    requested: Sequence[PlannedRun], store: Store | None, statuses: Mapping[str, str]
) -> list[PlannedRun]:
    """Return the replicates that a command with ``force=true`` trains for the ``requested`` runs, in their order.

    ``statuses``: those of the stored runs.
    """
    if store is None:
        return list(requested)
    last = _last(requested, store)
    runs = [_replicate(run, last[run.run_id]) for run in requested] if last is not None else []
    if not all(run.run_id in statuses for run in runs):
        return runs
    # no earlier command, or all its replicates are stored: this one makes new ones
    return [_next(run, statuses) for run in requested]


def _last(requested: Sequence[PlannedRun], store: Store) -> Mapping[str, int] | None:
    """Return the replicates of the last command for the same runs: the highest. No clock says which was the last."""
    earlier: dict[str, dict[str, int]] = defaultdict(dict)
    for row in store.designs_table().select(["design_id", "choice_detail"]).to_pylist():
        if FORCED in (detail := json.loads(row["choice_detail"] or "{}")):
            earlier[row["design_id"]][detail["asked"]] = detail[FORCED]
    wanted = {run.run_id for run in requested}
    same = [replicates for replicates in earlier.values() if replicates.keys() == wanted]
    return max(same, key=lambda replicates: sum(replicates.values()), default=None)


def _replicate(run: PlannedRun, replicate: int) -> PlannedRun:
    if replicate == run.config.replicate:
        return run
    return replace(run.under("replicate", replicate), repeats=run.repeats or run.run_id)


def _next(run: PlannedRun, taken: Mapping[str, str]) -> PlannedRun:
    while run.run_id in taken:
        run = _replicate(run, run.config.replicate + 1)
    return run


# The workers of a sweep: how many, with how many lanes, on what. No torch.


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """The workers of a sweep: how many, with how many lanes, on what."""

    executor: str
    workers: int
    lanes: int | None
    gpu: bool
    short_of_memory: bool = False
    """Whether memory, not cores, limits the number of workers."""

    @classmethod
    def of(cls, shared: RunConfig, runs: Sequence[PlannedRun]) -> WorkerPool:
        """Return the workers for ``runs`` under a command's settings: by default one per core, as memory allows."""
        gpus = 0 if shared.device == "cpu" else visible_gpus()
        local = shared.executor in ("inline", "loky")
        gpu = shared.device == "cuda" or gpus > 0
        # one run needs no second process, and the processes of torchrun train in themselves
        inline = Rank.of_this_process().size > 1 or (shared.executor == "loky" and len(runs) == 1)
        executor = "inline" if inline else shared.executor
        if executor == "inline":
            return cls(executor, 1, shared.lanes, gpu)
        on_cores = not gpu and not isinstance(shared, GptConfig)
        workers = max(1, min(shared.workers or (usable_cores() if on_cores else gpus or 1), len(runs)))
        fitting = workers
        if local and on_cores and shared.workers is None:
            fitting = max(1, min(workers, int(usable_memory() // bytes_per_worker(runs, shared.lanes or 1))))
        return cls(executor, fitting, shared.lanes, gpu, short_of_memory=fitting < workers)

    def __str__(self) -> str:
        lanes = "" if self.lanes is None else f" x {self.lanes} lane{'s' if self.lanes > 1 else ''}"
        short = ", for more there is not enough memory" if self.short_of_memory else ""
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}{lanes} ({self.executor}{short})"


def visible_gpus() -> int:
    """Return how many CUDA devices torch will find, without importing it."""
    try:
        cpu_only = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return 0
    if cpu_only:
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([name for name in chosen.split(",") if name.strip() not in ("", "-1")])
    return sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in Path("/dev").iterdir())


# Which of the requested runs must be trained: all of them, minus duplicates, minus what is stored. No torch.

SHARED: Final = ("mode", "device", "plugin_path", "store.path", "store.flush_seconds", *ABOUT_THE_COMMAND)
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
        duplicates = len(self.requested) - len(set(self.requested))
        return (
            f"{len(self.requested)} planned, {len(self.stored)} stored{unusual}, {duplicates} duplicates, "
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
    values = {name: value_of(configs[0], name) for name in SHARED}
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


# The record of a command: what its runs are for (its design), its words and its settings. No torch.

Choice = Literal["given", "drawn", "unstated"]
"""How the seeds of a sweep were chosen; ``unstated``: nobody said."""

C = TypeVar("C", bound=RunConfig)


class Designed(list[C]):
    """Runs with what they are for, as :func:`grok.execute.execute` takes them.

    ``+`` joins plans that are trained together; each keeps its own design.
    """

    def __init__(self, configs: Sequence[C] = (), design: Purposes | Choice = "unstated") -> None:
        super().__init__(configs)
        self.parts: tuple[tuple[Sequence[C], Purposes | Choice], ...] = ((tuple(configs), design),) if configs else ()

    @property
    def design(self) -> Purposes | Choice:
        """The design of the runs, if they have one in common."""
        (design,) = (design for _, design in self.parts)
        return design

    def __add__(self, other: Designed[Any]) -> Designed[Any]:  # type: ignore[override]
        both: Designed[Any] = Designed([*self, *other])
        both.parts = self.parts + other.parts
        return both


def first_ancestors(store: Store) -> dict[str, str]:
    """Return the first ancestor of every run that some design has as a child."""
    rows = store.designs_table().select(["run_id", "role", "line"]).to_pylist()
    return {row["run_id"]: row["line"] for row in reversed(rows) if row["role"] == "child" and row["line"]}


def design_of_sweep(runs: Sequence[PlannedRun], stored: StoredRuns, choice: Choice) -> Purposes:
    """Return what the runs of a sweep are for, as their settings say.

    Runs over two or more stream seeds are the cells of a crossed design. Perturbed runs repeat the unperturbed one,
    a further replicate repeats its run, and a language model goes on from the run that it names. All others are members
    of the population that their settings and seeds describe.
    """
    planned = {run.identity.trajectory_id: run.run_id for run in runs if not value_of(run.config, "perturb.ulps")}
    cells = {run.run_id for run in runs if run.config.trunk() is None}  # a run with two orders is a cell of neither
    if choice == "unstated" or not _is_crossed([run for run in runs if run.run_id in cells]):
        cells = set()
    purposes = [
        Purpose(role="cell", unit=_cell(run), choice=choice)
        if run.run_id in cells
        else _purpose(run, stored, planned, choice)
        for run in runs
    ]
    kind = "crossed" if cells else "sweep"
    if not cells and any(purpose.role == "child" for purpose in purposes):
        kind = "branch" if any(purpose.from_step is not None for purpose in purposes) else "repeat"
    elif not cells and choice != "unstated" and all(map(stored.is_extended_by, runs)):
        kind = "extend"
    return Purposes(kind, purposes)


def with_replicates(purposes: Purposes, runs: Sequence[PlannedRun]) -> Purposes:
    """Return ``purposes`` with the replicates that ``force=true`` trains: the same command, given again, finds them."""
    if not runs or not runs[0].config.force:
        return purposes
    of_each = [
        replace(
            purpose,
            choice_detail={
                **(purpose.choice_detail or {}),
                FORCED: run.config.replicate,
                "asked": run.repeats or run.run_id,
            },
        )
        for run, purpose in zip(runs, purposes.of_each, strict=True)
    ]
    return replace(purposes, of_each=of_each)


def _purpose(run: PlannedRun, stored: StoredRuns, planned: Mapping[str, str], choice: Choice) -> Purpose:
    config, unit = run.config, _unit(run)
    if run.repeats is not None:
        again = {**unit, "kind": "again", "repeat": config.replicate}
        return Purpose(role="child", unit=again, parent_run_id=run.repeats, redrawn=(), choice=choice)
    if isinstance(config, GptConfig) and config.resume.run is not None:
        parent = config.resume.run if config.resume.run in stored.run_ids else None
        redrawn = tuple(c.removeprefix("seeds.") for c in config.resume.changes if c.startswith("seeds."))
        step = config.resume.step
        return Purpose(role="child", unit=unit, parent_run_id=parent, redrawn=redrawn, choice="named", from_step=step)
    if (trunk := config.trunk()) is not None:
        straight, step = run.with_config(trunk[0]), trunk[1]
        parent = stored.like(straight) or planned.get(straight.identity.trajectory_id)
        switched = config.switched_streams()
        unit |= {**switched, "step": step}
        redrawn = tuple(stream.removeprefix("switch.") for stream in switched)
        return Purpose(role="child", unit=unit, parent_run_id=parent, redrawn=redrawn, choice=choice, from_step=step)
    if choice != "unstated" and value_of(config, "perturb.ulps"):
        plain = run.under("perturb.ulps", 0)
        parent = stored.like(plain) or planned.get(plain.identity.trajectory_id)
        perturb = unit.pop("perturb", config.stream_seeds().perturb)
        unit |= {"kind": "ulp", "repeat": perturb}
        return Purpose(role="child", unit=unit, parent_run_id=parent, redrawn=(), choice=choice)
    return Purpose(unit=unit, choice=choice)


def _is_crossed(runs: Sequence[PlannedRun]) -> bool:
    """Return whether two or more of the streams have several seeds each, all of them given."""
    several = 0
    for stream in CROSSED[runs[0].config.mode] if runs else ():
        seeds = {getattr(run.config.seeds, stream) for run in runs}
        several += None not in seeds and len(seeds) > 1
    return several > 1


def _unit(run: PlannedRun) -> dict[str, Any]:
    """Return the seeds as they were asked for."""
    config = run.config
    unit: dict[str, Any] = {"seed": config.seed}
    unit |= {stream: seed for stream in STREAMS if (seed := getattr(config.seeds, stream)) is not None}
    unit |= {f"layers.{name}": seed for name, seed in config.seeds.layers.items()}
    return unit | ({"replicate": config.replicate} if config.replicate else {})


def _cell(run: PlannedRun) -> dict[str, Any]:
    """Return the place in a crossed design: the seed of each of its streams, and the number of the repeat."""
    config, unit, seeds = run.config, _unit(run), run.config.stream_seeds()
    perturb, replicate = unit.pop("perturb", seeds.perturb), unit.pop("replicate", 0)
    unit |= {stream: getattr(seeds, stream) for stream in CROSSED[config.mode]}
    return unit | {"repeat": perturb if value_of(config, "perturb.ulps") else replicate}


def settings_to_record(runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the settings that all runs of a command share, and the names of those in which they differ."""
    differing = varying([run.config for run in runs])
    settings = {name: value for name, value in flatten(runs[0].config).items() if name not in differing}
    return {"settings": settings, "varying": differing}
