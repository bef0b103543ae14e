"""What each run was for, and the populations of a store: runs that differ in some streams only.

A population is what was asked for before any result. A sweep over master seeds is one. So is a scan of init
seeds at one order, and a scan of one layer's seed. A store may have several, of different conditions or
different streams. Every section that counts seeds counts each population separately and names it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.observations import (
    COUNTED,
    Observations,
    as_text,
    default_settings,
    describe_task,
    differing_settings,
    has_diary_task,
    in_words,
    is_derived,
    is_random_seed,
    settings_words,
    told_apart,
    varying_columns,
)
from grok.config import GptConfig
from grok.config.fields import recorded_of
from grok.store.designs import CHOICES, ROLES, TRAINED, decided, results_known
from grok.streams import RUN_STREAMS, derive_seed

# What each run was for, read from the rows of ``designs/``.
#
# Nothing is inferred. A run that no row trains has an unknown purpose, even if a later plan chose it as a parent: it is
# counted apart and is in no class that needs a role. A row with ``choice=unstated`` claims nothing either.

SEEDS: Final = [f"seed_{stream}" for stream in RUN_STREAMS]
ASKED: Final = ("given", "drawn")
"""Choices that no result decided."""
CHOSEN: Final = ("best", "named")
"""Choices by results, or by somebody who may have known them."""


@dataclass(frozen=True)
class Planned:
    """A design with planned runs that are not stored."""

    design_id: str
    kind: str
    missing: frozenset[str]
    stored: frozenset[str]

    @property
    def planned(self) -> int:
        """The number of its runs."""
        return len(self.missing) + len(self.stored)


class Roles:
    """The rows of ``designs/`` with their JSON read, in the order of planning; ``decided`` as of that function."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        runs = observations.all_runs
        self.rows = _readable(observations.designs)
        self._training = self.rows[self.rows["role"].isin(TRAINED)]
        self.rows = self.rows.assign(decided=decided(self._training, runs))
        self._runs = runs[["run_id", "mode", "status", "parent_run_id"]]
        self.switched = set(runs["run_id"][_switched(runs) & runs["status"].isin(COUNTED)])
        self._stored = set(runs["run_id"][runs["status"].isin(COUNTED)])

    def of(self, *roles: str, kinds: tuple[str, ...] = ()) -> pd.DataFrame:
        """Return the rows of stored runs that were observed, with one of ``roles`` in designs of ``kinds`` (all)."""
        rows = self.rows[self.rows["role"].isin(roles) & self.rows["run_id"].isin(self._stored)]
        return rows[rows["kind"].isin(kinds)] if kinds else rows

    @cached_property
    def lines(self) -> dict[str, str]:
        """The first ancestor of every branched run."""
        children = self.rows[(self.rows["role"] == "child") & (self.rows["kind"] == "branch")]
        first = children["line"].fillna(children["parent_run_id"])
        return dict(zip(reversed(children["run_id"].tolist()), reversed(first.tolist()), strict=True))

    @cached_property
    def missing(self) -> list[Planned]:
        """The designs with planned runs that are neither stored nor given up."""
        rows = self._training[self._training["retired"].isna()]
        stored = set(self._runs["run_id"])
        absent = rows[~rows["run_id"].isin(stored)]
        of = rows[rows["design_id"].isin(absent["design_id"])].groupby(["design_id", "kind"], sort=False)["run_id"]
        planned = [(str(name), str(kind), frozenset(runs)) for (name, kind), runs in of]
        return [Planned(name, kind, runs - stored, runs & stored) for name, kind, runs in planned]

    def unknown(self, mode: str | None = None) -> set[str]:
        """Return the observed runs that no row trains. The branches of a rollback have the rows of their run."""
        return self._without(set(self._training["run_id"]), mode)

    def unstated(self, mode: str | None = None) -> set[str]:
        """Return the observed runs of which every row that trains them leaves open how they were chosen."""
        stated = set(self._training["run_id"][self._training["choice"] != "unstated"])
        return self._without(stated, mode) - self.unknown(mode)

    def _without(self, claimed: set[str], mode: str | None) -> set[str]:
        runs = self._runs if mode is None else self._runs[self._runs["mode"] == mode]
        runs = runs[runs["status"].isin((*COUNTED, "rolled_back"))]
        own = runs["parent_run_id"].where(runs["status"] == "rolled_back")
        return set(runs["run_id"][~runs["run_id"].isin(claimed) & ~own.isin(claimed)])

    @cached_property
    def seen(self) -> set[str]:
        """The arithmetic runs that only plans of after their result name, and these as members: the first is lost."""
        claims = self._observations.once(_claims)
        late = claims[~claims["place"].isin(claims["place"][~claims["results_seen"]])]
        others = self.rows[self.rows["role"].isin(("child", "trial")) & (self.rows["choice"] != "unstated")]
        return set(late["run_id"]) - set(others["run_id"])

    @cached_property
    def said(self) -> list[str]:
        """Sentences on arithmetic runs of unknown purpose, unstated choice, change in mid-run, plans after results."""
        unknown, unstated, seen = len(self.unknown("arithmetic")), len(self.unstated("arithmetic")), len(self.seen)
        notes = []
        if unknown:
            notes.append(
                f"What {unknown:,} run{'s were' if unknown > 1 else ' was'} for is unknown (trained by no plan in "
                "designs/): counted here only, in no population and no class."
            )
        if unstated:
            notes.append(
                f"How {unstated:,} run{'s were' if unstated > 1 else ' was'} chosen is unstated: counted here only, in "
                "no population and no class. execute(configs, design=Purposes(...)) states it; every command does."
            )
        if self.switched:
            change = "runs change" if len(self.switched) > 1 else "run changes"
            notes.append(f"{len(self.switched):,} {change} in mid-run (switch.*): in no population of random seeds.")
        if seen:
            notes.append(
                f"{seen:,} run{'s were' if seen > 1 else ' was'} stored before the first plan that there is "
                "(results_seen), so results may have chosen the seeds: counted here only, in no population and no "
                "class. What was asked for before, rows with origin=reconstructed can say (Designs, in docs/store.md)."
            )
        return notes


def _switched(runs: pd.DataFrame) -> pd.Series:
    """Return whether the streams or the weights of each run change at a later step."""
    column = "config.switch.step"
    return runs[column].notna() if column in runs else pd.Series(False, index=runs.index)


def roles(observations: Observations) -> Roles:
    """Return what the runs of a store were for; ``observations.once(roles)`` reads it once."""
    return Roles(observations)


def _readable(designs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in the order of planning, JSON read, without rows of another shape: these say nothing."""
    rows = designs[designs["role"].isin(ROLES) & designs["choice"].isin(CHOICES)]
    rows = rows.sort_values(["planned_at", "design_id", "run_id"], kind="stable")
    units = [_json(text) for text in rows["unit"]]
    redrawn = [_json(text) for text in rows["redrawn"]]
    fine = [isinstance(u, dict) and (r is None or isinstance(r, list)) for u, r in zip(units, redrawn, strict=True)]
    read: dict[str, list[Any]] = {"unit": units, "redrawn": [_designs_in_order(names) for names in redrawn]}
    for name in ("parent_run_id", "line"):
        read[name] = [text if isinstance(text, str) else None for text in rows[name]]
    for name, values in read.items():
        rows[name] = pd.Series(values, index=rows.index, dtype=object)
    return rows[pd.Series(fine, index=rows.index, dtype=bool)].reset_index(drop=True)


def _json(text: Any) -> Any:
    if not isinstance(text, str):
        return None
    try:
        return json.loads(text)
    except ValueError:  # a store may come from anybody
        return ""


def _designs_in_order(names: Any) -> tuple[str, ...] | None:
    """Return redrawn streams in their usual order, layers after them."""
    if not isinstance(names, list):
        return None
    known = {str(name) for name in names}
    return (*(stream for stream in RUN_STREAMS if stream in known), *sorted(known - set(RUN_STREAMS)))


def places(observations: Observations) -> pd.Series:
    """Return the place of every observed arithmetic run, by run_id: equal for equal condition, streams and layers.

    Runs of one place differ at most in length, evaluation, perturbation and computation.
    """
    runs = observations.observed
    runs = runs[runs["mode"] == "arithmetic"]
    if runs.empty:
        return pd.Series(dtype="int64")
    coupled = runs["config.eval.couple_order"].fillna(False).astype(bool)  # then the schedule redraws the order
    own = runs["trajectory_id"].where(coupled, "")
    label = observations.conditions(runs)
    return runs.groupby([label, *(runs[c] for c in SEEDS), runs["layers"], own], sort=False).ngroup()


def asked_unseen(observations: Observations) -> set[str]:
    """Return the ``run_id`` of each language model that a design asked for before a result of its settings, seeds.

    A plan of another length counts, too, if it goes on with all that earlier ones asked for of its settings.
    """
    claims = observations.once(roles).of("member", "cell")
    runs = observations.observed[observations.observed["mode"] == "gpt"]
    claims = claims[claims["choice"].isin(ASKED) & claims["run_id"].isin(runs.index)]
    if claims.empty:
        return set()
    settings = [n for n, (_, rule) in recorded_of(GptConfig).items() if rule.role == "result"]
    seeds = [str(c) for c in runs if str(c).startswith("seed_")]
    varying = varying_columns(runs, settings)
    condition, place = (
        runs.groupby([*varying, "data_hash", "own_code", *more], dropna=False, sort=False).ngroup()
        for more in ([], ["layers", *seeds])
    )
    claims = claims.assign(place=claims["run_id"].map(place), planned_at=claims["decided"])
    seen = results_known(claims, runs.assign(place=place, run_id=runs.index))
    named = claims["run_id"].map(condition)
    unseen = claims[~seen]
    for (_, of), plan in claims.groupby(["design_id", named]):
        first = unseen[(named[unseen.index] == of) & (unseen["planned_at"] < plan["planned_at"].min())]["place"]
        if len(first) and set(first) <= set(plan["place"]):
            seen[plan.index[plan["place"].isin(first)]] = False
    return set(claims["run_id"][~seen])


def asked(observations: Observations) -> pd.DataFrame:
    """Return the arithmetic runs that a design asked for before any result of theirs: one row for each place.

    These are members and cells, given or drawn and without ``results_seen``. Of several such runs of one place the
    longest stands for it. A plan that asks for a master seed comes before one that types its streams; if it was made
    after a result, only where its run is as long as what was asked for before. ``seed`` is the seed that was asked
    for, and ``planned_at`` is when: the column of a run that several plans claim names only the one that trained it.
    """
    claims = observations.once(_claims)
    runs = observations.observed
    if claims["results_seen"].all():
        return runs.iloc[:0].assign(place=pd.Series(dtype="int64"), planned_at=pd.Series(dtype="datetime64[us]"))
    unseen = claims[~claims["results_seen"]]
    longest = claims["place"].map(unseen.groupby("place")["length"].max())
    usable = claims[~claims["results_seen"] | (claims["length"] == longest)]
    by = ["typed", "length", "replicate", "planned_at", "run_id"]
    first = usable.sort_values(by, ascending=[True, False, True, True, True], kind="stable").drop_duplicates("place")
    shown = claims[claims["place"].isin(first["place"])].sort_values(["typed", "planned_at"], kind="stable")
    seed = first["place"].map(shown.drop_duplicates("place").set_index("place")["asked_seed"])
    when = first["place"].map(usable.groupby("place")["planned_at"].min())
    rows = runs.loc[first["run_id"]]
    shown_seed = seed.fillna(pd.Series(rows["seed"].to_numpy(), index=seed.index)).to_numpy(dtype="int64")
    rows = rows.assign(seed=shown_seed, place=first["place"].to_numpy(), planned_at=when.to_numpy())
    return rows.sort_values(["seed", "run_id"], kind="stable")


def triples(rows: pd.DataFrame, streams: Sequence[str] = SEEDS) -> list[tuple[int, ...]]:
    """Return each run's (split, init, order) seeds, or those in the columns ``streams``."""
    return list(rows[[*streams]].itertuples(index=False, name=None))


def pairing(a: pd.DataFrame, b: pd.DataFrame) -> list[str]:
    """Return the columns of seeds that make pairs of two sides: not a stream with one seed on either, if others vary.

    That stream may be what the sides differ in.
    """
    return [column for column in SEEDS if max(a[column].nunique(), b[column].nunique()) > 1] or SEEDS


def shared_seeds(*sides: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
    """Return the seeds (n,) of all sides' runs in a row, by stream, where several runs of a side have one and not all.

    These runs depend on each other.
    """
    found = [c for c in SEEDS if any(1 < side[c].nunique() < len(side) for side in sides)]
    return {c.removeprefix("seed_"): pd.concat(sides)[c].to_numpy() for c in found}


def matched(a: pd.DataFrame, b: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of two sides whose seeds (:func:`pairing`) are on both, row by row: one pair a seed, drawn."""
    by = pairing(a, b)
    ours, theirs = (rows[by].assign(run=rows.index) for rows in (a, b))
    pairs = ours.merge(theirs, on=by).sample(frac=1, random_state=0).drop_duplicates(by).sort_index()
    return a.loc[pairs["run_x"].to_numpy()], b.loc[pairs["run_y"].to_numpy()]


def after_results(base: pd.DataFrame, rows: pd.DataFrame) -> bool:
    """Return whether ``rows`` are seeds of ``base`` listed after their results: a choice, unless all or the first."""
    if "planned_at" not in base:
        return False  # nobody knows when they were planned
    ended = base["started_at"] + pd.to_timedelta(base["seconds"].astype("float64"), unit="s")
    by = pairing(base, rows)
    known, asked_for = triples(base, by), triples(rows, by)
    both = set(known) & set(asked_for)
    order = ["seed"] if base["seed"].nunique() >= len(both) else by
    first = base.drop_duplicates(order).sort_values(order).head(len(both))
    if not (base["planned_at"] <= ended).all() or both in (set(known), set(triples(first, by))):
        return False  # declared since, so nobody knows when it was planned; or nobody chose
    results = dict(zip(known, ended, strict=True))
    return any(results.get(t, planned) < planned for t, planned in zip(asked_for, rows["planned_at"], strict=True))


def extended(observations: Observations, rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` of :func:`asked`, with longer runs where a later design went on with every one of them.

    To go on with some of them may have been a choice by results, so they stay as long as they were asked for.
    """
    runs = observations.observed
    lengths = runs["config.train.steps"].astype("int64")
    for here in extensions(observations, rows):
        new = rows["place"].map(here)
        longer = new.notna() & (new.map(lengths) > rows["config.train.steps"])
        ids = new.where(longer, pd.Series(rows.index, index=rows.index))
        rows = runs.loc[ids].assign(**{c: rows[c].to_numpy() for c in ("seed", "place", "planned_at")})
    return rows


def extensions(observations: Observations, rows: pd.DataFrame) -> Iterator[pd.Series]:
    """Yield the runs by place of each design with results seen that went on with every one of ``rows`` before it."""
    claims = observations.once(_claims)
    claims = claims[claims["place"].isin(rows["place"])]
    claims = claims[claims["design_id"].isin(claims["design_id"][claims["results_seen"]])]
    for _, group in claims.groupby("design_id", sort=False):
        longest = group.sort_values(["length", "replicate", "run_id"], ascending=[False, True, True])
        here: pd.Series = longest.drop_duplicates("place").set_index("place")["run_id"]
        if set(rows["place"][rows["planned_at"] <= group["planned_at"].max()]) <= set(here.index):
            yield here


def asked_before_and_after(observations: Observations) -> tuple[set[str], set[str]]:
    """Return the runs that were asked for before a result of their place, or with every seed, and those only after."""
    claims = observations.once(_claims)
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


def _claims(observations: Observations) -> pd.DataFrame:
    """Return the claims on places: members and cells of crosses, given or drawn, with the length that was asked for."""
    rows = observations.once(roles).of("member", "cell")
    rows = rows[rows["choice"].isin(ASKED) & (rows["kind"] != "layers")]
    place = observations.once(places)
    every = observations.observed.loc[place.index].assign(place=place, run_id=place.index)
    # a run that was moved by ulps, or switched, is no result of its place: planning takes it for none either
    every = every[(every["config.perturb.ulps"].fillna(0) == 0) & ~_switched(every)]
    rows = rows[rows["run_id"].isin(every.index)]
    runs = every.loc[rows["run_id"]]
    seeds = [unit.get("seed") for unit in rows["unit"]]
    claims = rows[["design_id", "run_id", "results_seen", "origin"]].assign(
        planned_at=rows["decided"],
        place=runs["place"].to_numpy(),
        length=runs["config.train.steps"].to_numpy(dtype="int64"),
        replicate=runs["replicate"].to_numpy(dtype="int64"),
        typed=[len(set(unit) - {"seed"}) for unit in rows["unit"]],
        asked_seed=pd.array([seed if type(seed) is int else None for seed in seeds], dtype="Int64"),
    )
    return claims.assign(results_seen=results_known(claims, every))


def random_seeds(observations: Observations) -> pd.DataFrame:
    """Return the rows of :func:`asked` that draw every stream from the master seed that was asked for."""
    rows = observations.once(asked)
    return rows[is_random_seed(rows)] if len(rows) else rows


# The populations of a store: sets of runs in which some streams differ from run to run and all else is fixed.

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
    condition: Mapping[str, str]
    """Values, as text, of the settings that differ between the store's populations."""
    name: str = ""
    """How this population differs from the others of the store; empty if it is the only one."""
    masters: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Master seed of the store that derives the seed of a stream, by (stream, seed)."""
    equal: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Runs that ended with the weights of another seed, bit for bit; ``rows`` has only the first of each such group."""

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
        unit = self.unit if n > 1 else self.unit.replace("seeds", "seed", 1)
        return f"{n:,} {unit} ({streams}); {self.task}; {settings_in_words(self.rows.iloc[0])}."


def listed(words: Sequence[str], joint: str = "and") -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


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
    candidates = [*_drawn(rows[rows["layers"] == "{}"]), *_layer_scans(rows)]
    taken = _not_contained(candidates)
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
    ordered = _in_order([_finished(p, settings, masters) for p in kept], settings)
    named = tuple(replace(p, name=n) for p, n in zip(ordered, _names(ordered), strict=True))
    counted = set().union(*(set(p.rows["place"]) for p in named))
    beside = sum(len(set(c.rows["place"]) - counted) for c in taken if id(c) not in large)
    claims = observations.once(_claims)
    ends = pd.concat([rows[:0], *(p.rows for p in named)]).groupby("place")["config.train.steps"].max()
    longer = set(claims["run_id"][claims["length"] > claims["place"].map(ends)])
    waiting = longer.intersection(*[frozenset().union(*(of.stored for of in purposes.missing))])
    left = {"small": beside, "tried": len(tried), "waiting": len(waiting), "longer": len(longer - waiting)}
    return Populations(named, settings, left)


def _once(p: Population) -> Population:
    """Return ``p`` with each result once: equal weights under different seeds are no second one."""
    known = p.rows[(p.rows["status"] == "completed") & p.rows["weights_hash"].notna()]
    equal = known[known["weights_hash"].duplicated(keep=False)]
    again = equal.index[equal["weights_hash"].duplicated()]
    return replace(p, rows=p.rows.drop(again), equal=equal)


def drawn(rows: pd.DataFrame) -> list[Population]:
    """Return every group of ``rows`` in which some streams differ from run to run and the others are fixed.

    ``rows`` are runs of one condition, without layer seeds, no two with all seeds equal. The groups may overlap;
    :func:`populations` returns groups that do not.
    """
    return [replace(p, rows=p.rows.drop(columns="_condition")) for p in _drawn(rows.assign(_condition=0))]


def _drawn(plain: pd.DataFrame) -> list[Population]:
    """Return the groups whose runs differ in some streams: in several, each of its own master seed, or in any one."""
    derived = {s: is_derived(plain, s).to_numpy(bool) for s in RUN_STREAMS}
    others = [tuple(s for s in RUN_STREAMS if s != stream) for stream in RUN_STREAMS]
    result = []
    for fixed in ((), *((s,) for s in RUN_STREAMS), *others):
        varies = tuple(s for s in RUN_STREAMS if s not in fixed)
        from_masters = len(varies) > 1
        rows = plain[np.all([derived[s] for s in varies], axis=0)] if from_masters else plain
        seed = "seed" if from_masters else f"seed_{varies[0]}"
        cell = ["_condition", *(f"seed_{s}" for s in fixed)]
        if fixed:  # most of the thousands of cells have one run: dropping them before the loop saves its time
            rows = rows[rows.groupby(cell)[seed].transform("nunique") >= FEWEST]
        groups = [group.drop_duplicates(seed) for _, group in rows.groupby(cell, sort=True)]
        alone = Counter(group["_condition"].iloc[0] for group in groups)
        result += [
            Population(group, varies, {s: int(group[f"seed_{s}"].iloc[0]) for s in fixed}, {})
            for group in groups
            if from_masters or len(group) >= PARALLEL or alone[group["_condition"].iloc[0]] == 1
        ]
    return result


def _layer_scans(rows: pd.DataFrame) -> list[Population]:
    """Return the groups in which the seed of one layer differs and everything else is fixed."""
    rows = rows[rows["layers"] != "{}"]
    if rows.empty:
        return []
    maps = rows["layers"].map(json.loads)
    result = []
    for layer in sorted({name for layers in maps for name in layers}):
        mine = rows[[layer in layers for layers in maps]]
        others = mine["layers"].map(lambda text, layer=layer: _without(text, layer))
        cell = [mine["_condition"], *(mine[f"seed_{s}"] for s in RUN_STREAMS), others]
        groups = [g.drop_duplicates("layers") for _, g in mine.groupby(cell, sort=True) if len(g) >= FEWEST]
        for group in groups:
            if len(group) >= PARALLEL or len(groups) == 1:
                held = json.loads(_without(str(group["layers"].iloc[0]), layer))
                fixed = {s: int(group[f"seed_{s}"].iloc[0]) for s in RUN_STREAMS}
                fixed |= {f"{LAYERS}{name}": int(seed) for name, seed in held.items()}
                result.append(Population(group, (f"{LAYERS}{layer}",), fixed, {}))
    return result


def _without(text: str, layer: str) -> str:
    return json.dumps({k: v for k, v in json.loads(text).items() if k != layer}, sort_keys=True)


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


def _finished(p: Population, settings: tuple[str, ...], masters: dict[tuple[str, int], int]) -> Population:
    first = p.rows.iloc[0]
    condition = {s: as_text(first[f"config.{s}"]) for s in settings}
    rows = p.rows.drop(columns="_condition", errors="ignore").loc[p.seeds.sort_values(kind="stable").index]
    return replace(p, rows=rows, condition=condition, masters=masters)


def _in_order(every: list[Population], settings: tuple[str, ...]) -> list[Population]:
    """Return the reference first, then the others by their values.

    The reference has the fewest settings that are not the default, then the most varying streams, then the most runs.
    """
    if not every:
        return []
    defaults = {s: as_text(default_settings()[s]) for s in settings}

    def place(p: Population) -> tuple[Any, ...]:
        first = p.rows.iloc[0]
        values = tuple(_sortable(first[f"config.{s}"]) for s in settings)
        return (-len(p.varies), p.varies, values, tuple(p.fixed.values()))

    def changed(p: Population) -> int:
        return sum(p.condition[s] != defaults[s] for s in settings)

    reference = min(every, key=lambda p: (changed(p), -len(p.varies), -len(p), place(p)))
    return [reference, *sorted((p for p in every if p is not reference), key=place)]


def _sortable(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and not np.isnan(value)
    return (0, float(value), "") if number else (1, 0.0, as_text(value))


def _names(every: list[Population]) -> list[str]:
    """Return each population's name: the values of its differing settings, and its streams if they differ, too."""
    if len(every) < 2:
        return [""] * len(every)
    kinds = {(p.varies, tuple(p.fixed.items())) for p in every}
    names = []
    settings = told_apart([settings_words(p.rows.iloc[0], list(p.condition)) for p in every])
    for p, values in zip(every, settings, strict=True):
        streams = []
        if len(kinds) > 1:
            streams = [f"{p.unit}, {p.held} fixed" if p.fixed else "seeds, every stream drawn"]
        names.append("; ".join([*[", ".join(values)] * bool(values), *streams]))
    return names
