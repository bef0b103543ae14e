"""The populations of a store: runs that differ in some streams only.

A population is what was asked for before any result. A sweep over master seeds is one. So is a scan of init
seeds at one order, and a scan of one layer's seed. A store may have several, of different conditions or
different streams. Every section that counts seeds counts each population separately and names it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.observations import (
    Observations,
    describe_task,
    differing_settings,
    has_diary_task,
    in_words,
    is_derived,
    listed,
    settings_words,
    sort_key,
    told_apart,
    varying_columns,
)
from grok.analysis.purposes import ASKED, asked, claims_of, extended, extensions, places, roles
from grok.streams import RUN_STREAMS, derive_seed

FEWEST: Final = 5
"""Smallest number of runs of a scan. A smaller group counts only if no group is larger."""
PARALLEL: Final = 20
"""Smallest number of runs of each of several parallel scans. Shorter ones are parts of a crossed design."""
COUPLING: Final = "eval.couple_order"
"""Runs with a coupled order stream belong to no population; they have their own section."""
LAYERS: Final = "layers."
"""Prefix of the name of a layer's own stream: ``layers.head``."""


@dataclass(frozen=True, eq=False)
class Population:
    """Runs of one condition that differ only in the seeds of ``varies``. No two of them share such a seed."""

    rows: pd.DataFrame
    """One row per run, indexed by run_id."""
    varies: tuple[str, ...]
    """Streams whose seed differs from run to run: of ``split``, ``init``, ``order``, or ``layers.NAME``."""
    fixed: Mapping[str, int]
    """The other streams and their seeds."""
    name: str = ""
    """How this population differs from the others of the store; empty if it is the only one."""
    masters: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Master seed of the store that derives the seed of a stream, by (stream, seed)."""
    equal: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Runs that ended with the weights of another seed, bit for bit; ``rows`` has only the first of each such group."""
    chosen: bool = False
    """Whether results may have chosen the fixed seeds: an earlier plan had runs with these, which are left out."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def from_masters(self) -> bool:
        """Whether the streams of ``varies`` derive from a master seed that differs from run to run."""
        return len(self.varies) > 1

    @property
    def seeds(self) -> pd.Series:
        """The seed that names each run: its master seed, or that of the only stream that differs."""
        if self.from_masters:
            return self.rows["seed"]
        (stream,) = self.varies
        if stream.startswith(LAYERS):
            name = stream.removeprefix(LAYERS)
            return self.rows["layers"].map(lambda text: int(json.loads(text)[name])).astype("int64")
        return self.rows[f"seed_{stream}"]

    @property
    def is_default(self) -> bool:
        """Whether every setting is the default: the diary's regime."""
        return not differing_settings(self.rows.iloc[0])

    @property
    def task(self) -> str:
        """The task in words."""
        return describe_task(self.rows.iloc[0])

    @property
    def has_diary_task(self) -> bool:
        """Whether the task is the diary's, for which the thresholds of accuracy were made."""
        return has_diary_task(self.rows.iloc[0])

    def shared(self, varying: Sequence[str]) -> str:
        """Return task and settings in words, without those of ``varying``."""
        words = [] if set(varying) & set(TASK_SETTINGS) else [self.task]
        return "; ".join([*words, settings_in_words(self.rows.iloc[0], varying)])

    @property
    def unit(self) -> str:
        """What differs from run to run, in words: ``seeds``, ``init seeds``, ``seeds of layer head``."""
        if self.from_masters:
            return "seeds"
        (stream,) = self.varies
        return f"seeds of layer {stream.removeprefix(LAYERS)}" if stream.startswith(LAYERS) else f"{stream} seeds"

    @property
    def held(self) -> str:
        """The fixed streams and their seeds in words, such as ``split of seed 3`` or ``split seed 12345``."""
        named: dict[str, list[str]] = {}
        plain = []
        for stream, seed in self.fixed.items():
            master = self.masters.get((stream, seed))
            if master is None:
                plain.append(f"{stream} seed {seed}")
            else:
                named.setdefault(f"seed {master}", []).append(stream)
        return ", ".join([f"{listed(streams)} of {name}" for name, streams in named.items()] + plain)

    @property
    def scope(self) -> str:
        """One sentence: number of runs, streams that vary, fixed streams with their seeds, task and settings."""
        n = len(self)
        drawn = f"{listed(self.varies)} drawn anew in each" if self.from_masters else "one per run"
        streams = f"{drawn}, {self.held} fixed" if self.fixed else drawn
        return f"{self.units(n)} ({streams}); {self.task}; {settings_in_words(self.rows.iloc[0])}."

    def units(self, n: int) -> str:
        """Return ``n`` of its runs in words: ``1 seed``, ``20 init seeds``."""
        return f"{n:,} {self.unit if n != 1 else self.unit.replace('seeds', 'seed', 1)}"


def settings_in_words(row: pd.Series, without: Sequence[str] = ()) -> str:
    """Return the settings of a run that are not the default, without the task and those of ``without``."""
    changed = {k: v for k, v in differing_settings(row).items() if k not in {*TASK_SETTINGS, *without}}
    if changed:
        return ", ".join(f"{k}={in_words(v)}" for k, v in changed.items())
    if differing_settings(row) or without:
        return "the default settings otherwise"
    return "the default settings (the diary's regime)"


TASK_SETTINGS: Final = ("task.operation", "task.plugin", "task.modulus", "task.train_fraction")
"""Settings that :func:`describe_task` states."""


LEFT: Final = {
    "small": "{:,} more runs are left out, because their groups have fewer than five seeds.",
    "tried": "{:,} more runs are trials of a search: its section judges them.",
    "waiting": "Longer runs of a plan that is not finished count when it is: {:,} so far.",
    "longer": "Longer runs that a plan after results asked for, not of every seed, are left out: {:,}. Those seeds may "
    "have been chosen.",  # see `extended`
}
"""Kinds of runs that are in no population, each with the sentence that counts them."""


@dataclass(frozen=True)
class Populations:
    """The populations of a store, the reference first."""

    every: tuple[Population, ...]
    settings: tuple[str, ...]
    """Settings that differ between the populations."""
    left: Mapping[str, int]
    """Number of runs of each kind of ``LEFT``."""


def populations(observations: Observations) -> Populations:
    """Return the populations of the arithmetic runs of a store.

    Their runs are those that a design asked for before any result (:func:`asked`), each as long as it asked; runs with
    a coupled order stream have a section of their own. If two candidates share most of their runs, as rows and columns
    of a crossed design do, the larger one is kept.
    """
    rows = observations.once(asked)
    purposes = observations.once(roles)
    tried = set(purposes.of("trial")["run_id"]) - set(rows.index)
    tried -= set(purposes.of("member", "cell", "child")["run_id"])
    if len(rows) and f"config.{COUPLING}" in rows:
        rows = rows[~rows[f"config.{COUPLING}"].fillna(False).astype(bool)]
    if rows.empty:
        return Populations((), (), {"tried": len(tried)})
    rows = rows.assign(_condition=observations.conditions(rows))
    taken = _not_contained(planned_together(observations, rows))
    kept = [c for c in taken if len(c.rows) >= FEWEST] or taken
    columns = varying_columns(pd.DataFrame([p.rows.iloc[0] for p in kept])) if kept else []
    settings = tuple(c.removeprefix("config.") for c in columns)
    masters = {
        (s, derive_seed(int(seed), s)): int(seed)
        for s in RUN_STREAMS
        for seed in sorted({*rows["seed"], *observations.arithmetic["seed"]}, reverse=True)
    }
    large = set(map(id, kept))
    kept = [_once(replace(p, rows=extended(observations, p.rows))) for p in kept]
    ordered = _in_order([_finished(p, masters) for p in kept], settings)
    named = tuple(replace(p, name=n) for p, n in zip(ordered, _names(ordered, settings), strict=True))
    counted = set().union(*(set(p.rows["place"]) for p in named))
    beside = sum(len(set(c.rows["place"]) - counted) for c in taken if id(c) not in large)
    claims = observations.once(claims_of)
    ends = pd.concat([rows[:0], *(p.rows for p in named)]).groupby("place")["config.train.steps"].max()
    longer = set(claims["run_id"][claims["length"] > claims["place"].map(ends)])
    waiting = longer.intersection(*[frozenset().union(*(of.stored for of in purposes.missing))])
    left = {"small": beside, "tried": len(tried), "waiting": len(waiting), "longer": len(longer - waiting)}
    return Populations(named, settings, left)


def asked_before_and_after(observations: Observations) -> tuple[set[str], set[str]]:
    """Return the runs that were asked for before a result of their place, or with every seed, and those only after."""
    claims = observations.once(claims_of)
    every = observations.once(populations).every
    longer = (here for p in every for here in extensions(observations, p.rows))
    named = observations.once(roles).of("member", "cell", "child")  # runs that were moved by ulps, too
    # a repeat of a stored run may follow from its result
    own = named["parent_run_id"].notna() | named["run_id"].map(observations.once(places)).isin(claims["place"])
    named = named[named["choice"].isin(ASKED) & ~named["results_seen"] & ~(own & (named["role"] == "child"))]
    before = set(observations.once(asked).index).union(
        claims["run_id"][~claims["results_seen"]], named["run_id"], *(p.rows.index for p in every), *longer
    )
    return before, set(claims["run_id"]) - before


def _once(p: Population) -> Population:
    """Return ``p`` with each result once: equal weights under different seeds are no second one."""
    known = p.rows[(p.rows["status"] == "completed") & p.rows["weights_hash"].notna()]
    equal = known[known["weights_hash"].duplicated(keep=False)]
    again = equal.index[equal["weights_hash"].duplicated()]
    return replace(p, rows=p.rows.drop(again), equal=equal)


def planned_together(observations: Observations, rows: pd.DataFrame) -> list[Population]:
    """Return the groups of :func:`drawn`; a scan has no run whose result may have chosen its fixed seeds.

    Such a run was asked for only by plans of before the one that asked for most of the scan, which had other runs in
    the place of the fixed seeds, too: a scan at the best seed of a census does not count that seed again.
    """
    claims = observations.once(claims_of)
    claims = claims[~claims["results_seen"]]
    return [_without_choosers(p, claims, observations.observed) for p in drawn(rows)]


def _without_choosers(p: Population, claims: pd.DataFrame, runs: pd.DataFrame) -> Population:
    here = claims[claims["place"].isin(p.rows["place"])]
    plans = here.groupby("design_id").agg(runs=("place", "nunique"), planned_at=("planned_at", "min"))
    if not p.fixed or len(plans) < 2:
        return p
    before = plans.index[plans["planned_at"] < plans.sort_values(["runs", "planned_at"])["planned_at"].iloc[-1]]
    before = claims[claims["design_id"].isin(before)]
    held = {f"seed_{stream}": seed for stream, seed in p.fixed.items() if stream in RUN_STREAMS}
    elsewhere = (runs.loc[before["run_id"], [*held]] != pd.Series(held)).any(axis=1).to_numpy()
    mine = here["place"][~here["design_id"].isin(before["design_id"][elsewhere])]
    rows = p.rows[p.rows["place"].isin(mine)]
    return replace(p, rows=rows, chosen=len(rows) < len(p))


def drawn(rows: pd.DataFrame) -> list[Population]:
    """Return every group of ``rows`` in which some streams differ from run to run and the others are fixed.

    In several streams, each run has its own master seed; else the runs differ in one, a layer's own seed included.
    ``rows`` are runs of one condition, or have its number in the column ``_condition``; no two have all seeds equal.
    The groups may overlap; :func:`populations` returns groups that do not.
    """
    maps = rows["layers"].map(json.loads)
    layers = sorted({f"{LAYERS}{name}" for layers in maps for name in layers})
    column = {stream: f"seed_{stream}" for stream in RUN_STREAMS} | {layer: f"_{layer}" for layer in layers}
    # as integers: a column of floats would change seeds of more than 53 bits
    seeds = ([of.get(layer.removeprefix(LAYERS)) for of in maps] for layer in layers)
    own = {column[layer]: pd.array(of, dtype="Int64") for layer, of in zip(layers, seeds, strict=True)}
    rows = rows.assign(_condition=rows.get("_condition", 0)).assign(**own)
    plain = rows[rows["layers"] == "{}"]
    derived = {s: is_derived(plain, s).to_numpy(bool) for s in RUN_STREAMS}
    pairs = [tuple(s for s in RUN_STREAMS if s != stream) for stream in RUN_STREAMS]
    result = []
    for varies in (RUN_STREAMS, *pairs, *((stream,) for stream in column)):
        from_masters = len(varies) > 1
        mine = rows[rows[column[varies[0]]].notna()] if varies[0] in layers else plain
        mine = mine[np.all([derived[s] for s in varies], axis=0)] if from_masters else mine
        seed = "seed" if from_masters else column[varies[0]]
        fixed = [s for s in column if s not in varies]
        cell = ["_condition", *(column[s] for s in fixed)]
        if len(varies) < len(RUN_STREAMS):  # most of thousands of cells have one run: dropping them first saves time
            mine = mine[mine.groupby(cell, dropna=False)[seed].transform("nunique") >= FEWEST]
        groups = [group.drop_duplicates(seed) for _, group in mine.groupby(cell, dropna=False, sort=True)]
        alone = Counter(group["_condition"].iloc[0] for group in groups)
        for group in groups:
            if from_masters or len(group) >= PARALLEL or alone[group["_condition"].iloc[0]] == 1:
                held = {s: int(group[column[s]].iloc[0]) for s in fixed if pd.notna(group[column[s]].iloc[0])}
                result.append(Population(group.drop(columns=["_condition", *own]), varies, held))
    return result


def _not_contained(candidates: list[Population]) -> list[Population]:
    """Return the candidates with at least half of their runs in no larger candidate."""
    covered: set[str] = set()
    taken = []
    for candidate in sorted(candidates, key=lambda c: (-len(c), -len(c.varies))):
        runs = set(candidate.rows.index)
        if len(runs - covered) >= 0.5 * len(runs):
            taken.append(candidate)
            covered |= runs
    return taken


def _finished(p: Population, masters: dict[tuple[str, int], int]) -> Population:
    return replace(p, rows=p.rows.loc[p.seeds.sort_values(kind="stable").index], masters=masters)


def _in_order(every: list[Population], settings: tuple[str, ...]) -> list[Population]:
    """Return the reference first, then the others by their values.

    The reference has the fewest settings that are not the default, then the most varying streams, then the most runs.
    """
    if not every:
        return []

    def place(p: Population) -> tuple[Any, ...]:
        first = p.rows.iloc[0]
        values = tuple(sort_key(first[f"config.{s}"]) for s in settings)
        return (-len(p.varies), p.varies, values, tuple(p.fixed.values()))

    def first(p: Population) -> tuple[Any, ...]:
        return (len(differing_settings(p.rows.iloc[0], settings)), -len(p.varies), -len(p), place(p))

    reference = min(every, key=first)
    return [reference, *sorted((p for p in every if p is not reference), key=place)]


def _names(every: list[Population], settings: tuple[str, ...]) -> list[str]:
    """Return each population's name: the values of its differing settings, and its streams if they differ, too."""
    if len(every) < 2:
        return [""] * len(every)
    kinds = {(p.varies, tuple(p.fixed.items())) for p in every}
    names = []
    words = told_apart([settings_words(p.rows.iloc[0], settings) for p in every])
    for p, values in zip(every, words, strict=True):
        streams = []
        if len(kinds) > 1:
            streams = [f"{p.unit}, {p.held} fixed" if p.fixed else "seeds, every stream drawn"]
        names.append("; ".join([*[", ".join(values)] * bool(values), *streams]))
    return names
