"""The record of a command: what its runs are for (its design), its words and its settings. No torch."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, Literal, TypeVar, overload

from grok.config import GptConfig, RunConfig, flatten
from grok.execute.plan import Plan, varying
from grok.execute.planned import PlannedRun, value_of
from grok.execute.replicates import FORCED
from grok.masking import without_secrets
from grok.store import Purpose, Purposes, Store
from grok.streams import STREAMS

Choice = Literal["given", "drawn", "unstated"]
"""How the seeds of a sweep were chosen; ``unstated``: nobody said."""

CROSSED: Final = {"arithmetic": ("split", "init", "order"), "gpt": ("init", "order", "dropout")}
"""The streams that a crossed design takes apart, by mode."""

C = TypeVar("C", bound=RunConfig)


class Designed(Sequence[C], Generic[C]):
    """Runs with what they are for, as :func:`grok.execute.execute` takes them.

    ``+`` joins plans that are trained together; each keeps its own design.
    """

    def __init__(self, configs: Sequence[C] = (), design: Purposes | Choice = "unstated") -> None:
        self.parts: tuple[tuple[Sequence[C], Purposes | Choice], ...] = ((tuple(configs), design),) if configs else ()

    @property
    def design(self) -> Purposes | Choice:
        """The design of the runs, if they have one in common."""
        (design,) = (design for _, design in self.parts)
        return design

    def __add__(self, other: Designed[Any]) -> Designed[Any]:
        both: Designed[Any] = Designed()
        both.parts = self.parts + other.parts
        return both

    def __len__(self) -> int:
        return sum(len(configs) for configs, _ in self.parts)

    def __iter__(self) -> Iterator[C]:
        return itertools.chain.from_iterable(configs for configs, _ in self.parts)

    @overload
    def __getitem__(self, index: int) -> C: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[C]: ...
    def __getitem__(self, index: int | slice) -> C | Sequence[C]:
        return tuple(self)[index]


class StoredRuns:
    """The stored runs that have a result, by trajectory."""

    def __init__(self, store: Store | None) -> None:
        self._ends: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._lengths: set[int] = set()
        self.run_ids: set[str] = set()
        columns = ["trajectory_id", "status", "replicate", "config.train.steps"]
        for row in store.table("runs", None, columns).to_pylist() if store is not None else ():
            if row["status"] != "failed":
                self.add(row["trajectory_id"], row["config.train.steps"], row["replicate"], row["run_id"])

    def add(self, trajectory_id: str, steps: int, replicate: int, run_id: str) -> None:
        """Take one more run."""
        self._ends[trajectory_id].append((steps, -replicate, run_id))
        self._lengths.add(steps)
        self.run_ids.add(run_id)

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
    if choice != "unstated" and _is_crossed(runs):
        kind, purposes = "crossed", [Purpose(role="cell", unit=_cell(run), choice=choice) for run in runs]
    else:
        planned = {run.identity.trajectory_id: run.run_id for run in runs if not value_of(run.config, "perturb.ulps")}
        kind, purposes = "sweep", [_purpose(run, stored, planned, choice) for run in runs]
        if any(purpose.role == "child" for purpose in purposes):
            kind = "branch" if any(purpose.from_step is not None for purpose in purposes) else "repeat"
        elif choice != "unstated" and all(map(stored.is_extended_by, runs)):
            kind = "extend"
    if runs[0].config.force:  # the same command, given again, finds its replicates by this
        purposes = [
            replace(purpose, choice_detail={FORCED: run.config.replicate, "asked": run.repeats or run.run_id})
            for run, purpose in zip(runs, purposes, strict=True)
        ]
    return Purposes(kind, purposes)


def _purpose(run: PlannedRun, stored: StoredRuns, planned: Mapping[str, str], choice: Choice) -> Purpose:
    config, unit = run.config, _unit(run)
    if run.repeats is not None:
        again = {**unit, "kind": "again", "repeat": config.replicate}
        return Purpose(role="child", unit=again, parent_run_id=run.repeats, redrawn=(), choice=choice)
    if isinstance(config, GptConfig) and config.resume.run is not None:
        parent = config.resume.run if config.resume.run in stored.run_ids else None
        step = config.resume.step
        return Purpose(role="child", unit=unit, parent_run_id=parent, redrawn=(), choice="named", from_step=step)
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
    for stream in CROSSED[runs[0].config.mode]:
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


def runs_to_record(plan: Plan, requested: Sequence[PlannedRun], store: Store, argv: Sequence[str]) -> list[PlannedRun]:
    """Return the runs to train, and those requested that no record of the same command names.

    Runs that another command trained belong to this one, too: its words say how they were chosen. With ``force=true``,
    or without words, only the runs to train are returned.
    """
    runs = {run.run_id: run for run in plan.to_train}
    if argv and plan.stored and not any(run.repeats for run in plan.runs):
        known = _recorded(store, argv)
        runs |= {run.run_id: run for run in requested if run.run_id not in known and run.run_id not in runs}
    return list(runs.values())


def content(runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the effective settings of ``runs``: what all share, and what differs between them."""
    flat = [flatten(run.config) for run in runs]
    differing = varying(flat)
    return {
        "settings": {name: value for name, value in flat[0].items() if name not in differing},
        "runs": [
            {"run_id": run.run_id, **{name: settings[name] for name in differing}}
            for run, settings in zip(runs, flat, strict=True)
        ],
    }


def _recorded(store: Store, argv: Sequence[str]) -> set[str]:
    """Return the ids of the runs in the records of commands with these words."""
    known: set[str] = set()
    words = without_secrets(list(argv))  # as it is written
    for path in store.layout.sweeps.glob("*.json"):
        # a record is a help, never a condition
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["argv"] == words:
                known |= {str(run["run_id"]) for run in record["config"]["runs"]}
    return known
