"""The record of a command: what its runs are for (its design), its words and its settings. No torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, Literal, TypeVar, overload

from grok.config import GptConfig, RunConfig, flatten
from grok.execute.plan import StoredRuns, varying
from grok.execute.planned import PlannedRun, value_of
from grok.execute.replicates import FORCED
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
    if choice != "unstated" and _is_crossed([run for run in runs if run.run_id in cells]):
        purposes = [
            Purpose(role="cell", unit=_cell(run), choice=choice)
            if run.run_id in cells
            else _purpose(run, stored, planned, choice)
            for run in runs
        ]
        kind = "crossed"
    else:
        kind, purposes = "sweep", [_purpose(run, stored, planned, choice) for run in runs]
        if any(purpose.role == "child" for purpose in purposes):
            kind = "branch" if any(purpose.from_step is not None for purpose in purposes) else "repeat"
        elif choice != "unstated" and all(map(stored.is_extended_by, runs)):
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
        step = config.resume.step
        return Purpose(role="child", unit=unit, parent_run_id=parent, redrawn=(), choice="named", from_step=step)
    if (trunk := config.trunk()) is not None:
        straight = run.with_config(trunk[0])
        parent = stored.like(straight) or planned.get(straight.identity.trajectory_id)
        switched = config.switched_streams()
        unit |= {**switched, "step": trunk[1]}
        redrawn = tuple(stream.removeprefix("switch.") for stream in switched)
        return Purpose(
            role="child", unit=unit, parent_run_id=parent, redrawn=redrawn, choice=choice, from_step=trunk[1]
        )
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
