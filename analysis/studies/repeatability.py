"""Repeatability of super seeds: repeats of candidates, compared with the rate of other seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import factorial
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.criteria import DIARY, UNJUDGED, judge_by_time
from grok.analysis.observations import (
    CONDITION_SETTINGS,
    PROCESSOR,
    Observations,
    computed_apart,
    describe_task,
    differing_settings,
    floats,
    has_diary_task,
    in_words,
    is_derived,
    processors,
    varying_columns,
)
from grok.analysis.populations import Population, drawn, listed
from grok.analysis.purposes import CHOSEN, asked, places, roles
from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, NotEnoughData, generator, median_interval
from grok.analysis.statistics.proportions import clopper_pearson, heterogeneity, unequal_rates
from grok.analysis.statistics.repeatability import MOST, RATE, Counts, Replication, Verdict, mean_share, replication
from grok.analysis.studies.base import ALARM, Finding, Question, Study, Table
from grok.analysis.studies.census import judged
from grok.records import tag_parts
from grok.streams import RUN_STREAMS

# The rare outcome by which seeds are candidates: super, fast, or among the fastest.

FEWEST_OTHERS: Final = 20
"""Smallest number of other seeds for their rate."""
RARE: Final = 0.1
"""Share of seeds that are hits if none is super: the fastest tenth."""
MOST_FREQUENT: Final = 0.5
"""Largest share of seeds for which an outcome is rare enough to be a hit."""


@dataclass(frozen=True)
class Hit:
    """The rare outcome that defines candidates, for the runs of one condition."""

    words: str
    """Its name in a sentence: ``super``, ``among the fastest 10%``."""
    definition: str
    flags: pd.Series
    """Per run: 1 if it is a hit, 0 if not, NaN if not known."""
    judged: pd.DataFrame | None = None
    """The runs with the columns of `census.judged`; None if times were judged."""

    def counts(self, runs: Sequence[str]) -> Counts:
        """Return the numbers of hits and of judged runs."""
        known = self.flags.reindex(list(runs)).dropna()
        return int(known.sum()), len(known)


def rare_outcome(observations: Observations, population: pd.DataFrame, runs: pd.DataFrame) -> Hit:
    """Return the outcome that is rare in ``population``, as flags of ``runs``.

    Super by accuracy in the diary's regime, by time elsewhere; a less rare outcome if no seed is super.
    """
    options: list[Callable[[], Hit | None]] = [
        lambda: _by_accuracy(observations, population, runs, "super"),
        lambda: _by_time(observations, population, runs, None),
    ]
    if differing_settings(runs.iloc[0]):
        options.reverse()
    options += [
        lambda: _by_accuracy(observations, population, runs, "super", "fast"),
        lambda: _by_time(observations, population, runs, RARE),
    ]
    usable = [hit for option in options if (hit := option()) is not None]
    for hit in usable:
        hits, n = hit.counts(list(population.index))
        if hits and (hits <= MOST_FREQUENT * n or n < FEWEST_OTHERS):  # named seeds may all be super
            return hit
    return usable[0]


def _by_accuracy(observations: Observations, population: pd.DataFrame, runs: pd.DataFrame, *classes: str) -> Hit:
    least = DIARY.normal_accuracy if "fast" in classes else DIARY.super_accuracy
    seen, horizon = judged(observations, runs, DIARY.horizon_of(population), least)
    flags = seen["label"].isin(classes).astype(float).where(seen["label"] != UNJUDGED)
    definition = f"validation accuracy above {least:.0%} at step {horizon:,}"
    words = " or ".join(classes) if has_diary_task(runs.iloc[0]) else f"above {least:.0%}"  # the classes are its
    return Hit(words, definition, flags, seen)


def _by_time(
    observations: Observations, population: pd.DataFrame, runs: pd.DataFrame, rare: float | None
) -> Hit | None:
    """Return the hit "three times faster than the median seed", or "among the fastest share ``rare``"."""
    times = observations.times(population)
    if rare is not None and len(times) < FEWEST_OTHERS:
        return None
    if rare is not None:
        threshold = float(np.sort(times.right)[max(0, int(rare * len(times)) - 1)])
        words = f"among the fastest {np.mean(times.right <= threshold):.0%}"  # more than a tenth where times are equal
    else:
        try:
            speed = judge_by_time(times, floats(population["config.train.steps"]))
        except NotEnoughData:
            return None
        words, threshold = "early", speed.threshold
    if not np.isfinite(threshold):
        return None
    early = observations.times(runs).right <= threshold
    long = floats(runs["config.train.steps"]) >= threshold
    flags = pd.Series(np.where(long, early.astype(float), np.nan), index=runs.index)
    return Hit(words, f"generalised by step {threshold:,.0f}", flags)


# A repeated seed with its repeats, and all seeds with one kind of repeat.


@dataclass(frozen=True)
class Unit:
    """One repeated seed: a combination of the kept streams' seeds."""

    name: str
    seeds: dict[str, int]
    """Seeds of the kept streams."""
    owns: list[str]
    """Its own runs, a hit first; none if it was named. Several have redrawn streams only that differ."""
    repeats: list[str]
    """Its judged repeats. No two share a redrawn seed or have equal bits."""
    others: list[str]
    """One run of each other seed for comparison."""
    others_words: str
    line: str = ""
    """Its line of descent: the first ancestor of its own run, by the records of ``grok branch --parents``. Candidates
    that share a kept seed which not all of them have are one line, and so are controls."""


@dataclass(frozen=True)
class Kind:
    """All candidates with one kind of repeat under one condition, and the controls."""

    name: str
    fixed: tuple[str, ...]
    change: str
    """What a repeat changes, in words."""
    condition: str
    """Values of the settings that differ between the store's conditions."""
    hit: Hit
    candidates: list[Unit]
    controls: list[Unit]
    rows: pd.DataFrame = field(repr=False)
    """All runs of the condition."""

    @cached_property
    def shared(self) -> list[str]:
        """The kept streams whose seed all candidates have in common."""
        return [s for s in self.fixed if len({unit.seeds[s] for unit in self.candidates}) == 1 < len(self.candidates)]

    @property
    def otherwise(self) -> list[str]:
        """How the candidates' repeats were computed otherwise than their own runs, beside what this kind changes."""
        known = [unit for unit in self.candidates if unit.owns]
        repeats = self.rows.loc[[run for unit in known for run in unit.repeats]]
        apart = computed_apart(repeats, self.rows.loc[[unit.owns[0] for unit in known]])
        return [part for part in apart if part not in TAG_PARTS.get(self.name, ())]

    @cached_property
    def moved(self) -> list[str]:
        """The candidates' repeats on another processor, or kind of device, than their seed's own run."""
        tags = processors(self.rows).to_dict()
        pairs = [(run, unit.owns[0]) for unit in self.candidates if unit.owns for run in unit.repeats]
        return [run for run, own in pairs if tags[run] != tags[own]]


def linked(lines: Sequence[str], *keys: Sequence[Any] | pd.Series) -> list[str]:
    """Return ``lines`` (n,), of which those with an equal value in one of ``keys`` (n,) are one."""
    joined = np.array(lines, dtype=object)
    for key in keys:
        for of in pd.Series(key).groupby(list(key)).indices.values():
            joined[np.isin(joined, joined[of])] = joined[of[0]]
    return [str(line) for line in joined]


def distinct(codes: NDArray[np.int64], taken: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return flags (n,) of rows of ``codes`` (n, streams) that share no seed with each other or with ``taken``."""
    used = [set(column.tolist()) for column in taken.T]
    kept = np.zeros(len(codes), dtype=bool)
    for i, row in enumerate(codes.tolist()):
        if not any(seed in column for seed, column in zip(row, used, strict=True)):
            kept[i] = True
            for seed, column in zip(row, used, strict=True):
                column.add(seed)
    return kept


# Which runs repeat which: candidates, ordinary controls, and the other seeds for comparison.
#
# Designs say which run repeats which: children of ``repeat`` and ``branch`` designs, and a recipient's own cells in a
# ``layers`` design. A seed's *own run* is the parent, the run by which it may have been chosen. If it is a hit (super,
# or another rare outcome), the seed is a *candidate*. Otherwise it is a *control*, unless it was chosen for another
# result or by name. The own run never counts among the repeats. A seed with repeats but without an own run was *named*
# by the user: it is a candidate with all its repeats.

KEPT: Final = (("split", "init"), ("split", "order"), ("init", "order"), ("init",), ("order",), ("split",))
"""Sets of streams that are kept while the others are redrawn."""
COMPUTATIONS: Final = {
    "ulp": "initial weights moved by units in the last place",
    "processor": "on another processor",
    "lane width": "at another lane width",
    "path": "on another numerics path",
    "version": "with another version or number of threads",
    "precision": "in another precision",
}
"""Kinds of repeat that keep all streams, with what they change in words."""
TAG_PARTS: Final = {
    "processor": PROCESSOR,
    "lane width": ("width",),
    "path": ("rows", "products", "compiled", "compiler", "kernels"),
}
"""Parts of the numerics tag that define these kinds of repeat."""
FEWEST_CONTROLS: Final = 5
"""Smallest number of controls, with one run each, for their rate."""


def repeats(observations: Observations) -> pd.DataFrame:
    """Return every repeat that a design planned: run, own (its parent, or None), fixed streams, kind, choice and line.

    ``kind`` is what changes where all streams are kept: ``ulp``, ``again``, ``path``, ``precision`` or ``NAME=VALUE``;
    empty where streams are redrawn. A parent is the run of its place that was asked for, if any was. ``attrs["left"]``
    counts repeats of listed seeds that are left out: no row says what their own run was for.
    """
    purposes = observations.once(roles)
    place, rows = observations.once(places).to_dict(), observations.once(asked)
    stands = dict(zip(rows["place"], rows.index, strict=True))
    when = rows["planned_at"].to_dict()
    children = purposes.of("child", kinds=("repeat", "branch"))
    children = children[children["from_step"].isna()]  # a change in mid-run keeps the streams until then
    records, left = [], 0
    for run, parent, redrawn, choice, unit, line, planned_at in _columns(children):
        kind = "" if redrawn else _kind_of(unit)
        if run not in place or kind is None or not set(redrawn or ()) <= set(RUN_STREAMS) or choice == "unstated":
            continue
        own = stands.get(place[parent], parent) if parent in place else None if redrawn else stands.get(place[run])
        if choice == "given" and own is not None and own not in when:
            left += 1  # nobody knows whether results chose its own run
            continue
        fixed = tuple(stream for stream in RUN_STREAMS if stream not in (redrawn or ()))
        # a list of seeds whose results were there may be a choice by them
        chosen = choice in CHOSEN or (choice == "given" and own in when and when[own] < planned_at)
        records.append((run, own, fixed, kind, chosen, line or purposes.lines.get(parent, "")))
    recipients = purposes.of("recipient", kinds=("layers",))["run_id"]
    stands |= {place[run]: run for run in recipients if run in place}
    for run, *_, unit, _, _ in _columns(purposes.of("cell", kinds=("layers",))):
        if run in place and not unit.get("exchanged") and not unit.get("streams"):
            own = stands.get(place[run])
            records.append((run, own, RUN_STREAMS, "ulp", True, purposes.lines.get(own or "", "")))
    columns = ["run", "own", "fixed", "kind", "chosen", "line"]
    found = pd.DataFrame(records, columns=columns).drop_duplicates(["run", "own", "fixed", "kind", "chosen"])
    found.attrs["left"] = left
    return found


def _columns(rows: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    names = ["run_id", "parent_run_id", "redrawn", "choice", "unit", "line", "planned_at"]
    return rows[names].itertuples(index=False, name=None)


def _kind_of(unit: dict[str, Any]) -> str | None:
    """Return what a repeat changes; None if that is no setting that can change a result: it is a longer run."""
    kind = str(unit.get("kind"))
    name, equals, _ = kind.partition("=")
    if kind in ("float64", "precision") or name == "precision":
        return "precision"
    return kind if kind in ("ulp", "again", "path") or (equals and name in CONDITION_SETTINGS) else None


def kinds(observations: Observations) -> tuple[list[Kind], dict[str, str]]:
    """Return every kind of repeat that has a candidate, the condition with most runs first, and what others need.

    The condition of repeats is that of their own run. A repeat without one has its own condition.

    Raises:
        NotEnoughData: of no condition it is known what is rare.
    """
    every = observations.once(repeats)
    if every.empty:
        return [], {}
    runs = observations.observed
    rows = observations.once(asked).drop(columns=["place", "planned_at"])
    beside = pd.Index([*every["run"], *every["own"].dropna()]).unique().difference(rows.index, sort=False)
    rows = pd.concat([rows[rows["layers"] == "{}"], runs.loc[beside]])
    varying = varying_columns(rows, [name for name in CONDITION_SETTINGS if name != "precision"])
    label = rows.groupby(varying, dropna=False).ngroup() if varying else pd.Series(0, index=rows.index)
    of = every["own"].fillna(every["run"]).map(label)
    changed = set(every["run"][of.to_numpy() != every["run"].map(label).to_numpy()]) - set(
        observations.once(asked).index
    )
    result: list[Kind] = []
    gaps: dict[str, str] = {}
    by_size = label[~label.index.isin(changed)].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    for condition in by_size.index:
        mine = every[of == condition]
        if mine.empty:
            continue
        group = rows[(label == condition) & ~rows.index.isin(changed)]
        name = ", ".join(f"{c.removeprefix('config.')}={in_words(group.iloc[0][c])}" for c in varying)
        elsewhere = rows.loc[[run for run in dict.fromkeys(mine["run"]) if label[run] != condition]]
        try:
            result += _Condition(observations, group, name, mine, elsewhere).kinds()
        except NotEnoughData as gap:
            gaps[name] = gap.needs
    if gaps and not result:
        raise NotEnoughData("; ".join(dict.fromkeys(gaps.values())))
    return result, gaps


Seeds = dict[str, int]
Repeated = tuple[list[str], list[str]]
"""The own runs of a repeated seed, and its repeats."""


class _Condition:
    """The runs of one condition, in one or several precisions, and their repeats."""

    def __init__(
        self, observations: Observations, rows: pd.DataFrame, name: str, every: pd.DataFrame, elsewhere: pd.DataFrame
    ) -> None:
        self.observations, self.name, self.every = observations, name, every
        self.rows, self.judged = rows, pd.concat([rows, elsewhere])
        plain = rows[rows["config.perturb.ulps"].fillna(0) == 0]
        self.precision = str((plain if len(plain) else rows)["config.precision"].mode().iloc[0])
        usual = plain[(plain["config.precision"] == self.precision) & (plain["layers"] == "{}")]
        asked_for = observations.once(asked)
        self.asked = asked_for.loc[asked_for.index.intersection(usual.index)]

    @cached_property
    def drawn(self) -> list[Population]:
        """The populations of this condition."""
        return drawn(self.asked) if len(self.asked) else []

    @cached_property
    def random(self) -> pd.DataFrame:
        """The runs of random seeds, all streams derived from the master seed."""
        groups = [p.rows for p in self.drawn if p.varies == RUN_STREAMS]
        return groups[0] if groups else self.asked[:0]

    @cached_property
    def scans(self) -> list[Population]:
        """The populations with one or two fixed streams that are large enough for a rate."""
        return [p for p in self.drawn if p.varies != RUN_STREAMS and len(p) >= FEWEST_OTHERS]

    @cached_property
    def population(self) -> pd.DataFrame:
        """The runs that define what is rare: random seeds, else all scans, else all own runs, else all."""
        groups = [self.random] if len(self.random) >= FEWEST_OTHERS else [scan.rows for scan in self.scans]
        found = pd.concat([self.random[:0], *groups]).index.unique()
        if found.empty and self.observations.once(roles).unknown() & set(self.rows.index):
            raise NotEnoughData("the rows in designs/ of the census: without them nobody knows what is rare")
        own = self.rows.loc[self.rows.index.intersection([*self.asked.index, *self._first.values()])]
        if found.empty and own.empty and differing_settings(self.rows.iloc[0]):
            raise NotEnoughData("a census of random seeds: repeats of named seeds alone do not tell what is rare")
        return self.rows.loc[found] if len(found) else own if len(own) else self.rows

    @cached_property
    def hit(self) -> Hit:
        """The rare outcome of this condition."""
        return rare_outcome(self.observations, self.population, self.judged)

    def kinds(self) -> list[Kind]:
        """Return the kinds of repeat that have a candidate."""
        kept = self.every[self.every["fixed"] == RUN_STREAMS]
        by_kind = self._units(kept[~kept["kind"].str.contains("=")])
        result = [
            self._kind(kind, RUN_STREAMS, COMPUTATIONS[kind], by_kind[kind]) for kind in COMPUTATIONS if kind in by_kind
        ]
        for change, units in self._units(kept[kept["kind"].str.contains("=")].dropna(subset="own")).items():
            result.append(self._kind(change, RUN_STREAMS, f"with {change}", units))
        for fixed in KEPT:
            units = self._redrawn(self.every[self.every["fixed"] == fixed], fixed)
            free = " and ".join(s for s in RUN_STREAMS if s not in fixed)
            result.append(self._kind(" + ".join(fixed), fixed, f"{free} redrawn", units))
        return [kind for kind in result if kind.candidates]

    @cached_property
    def _chosen(self) -> set[str]:
        """The own runs that a design chose for their results or by name."""
        return set(self.every["own"][self.every["chosen"]].dropna())

    @cached_property
    def _first(self) -> dict[int, str]:
        """The first repeat of each place without an own run, if so many were given that nobody chose them by name."""
        alone = self.every[self.every["own"].isna() & (self.every["kind"] == "ulp")]
        place = alone["run"].map(self.observations.once(places))
        first = alone["run"].groupby(place).first()
        by_place = dict(zip(first.index.astype(int), map(str, first), strict=True))
        return by_place if len(first) >= FEWEST_OTHERS else {}

    def _row(self, run: Any) -> pd.Series:
        row: pd.Series = self.judged.loc[run]
        return row

    def _kind(self, name: str, fixed: tuple[str, ...], change: str, repeated: list[Repeated]) -> Kind:
        flags = self.hit.flags
        judged = [(owns, its) for owns, runs in repeated if (its := [r for r in runs if pd.notna(flags[r])])]
        candidates = [(owns, runs) for owns, runs in judged if not owns or (flags[owns] == 1).any()]
        # a chosen seed that is no hit is neither, and so is one that cannot be judged
        by_lot = [(owns, runs) for owns, runs in judged if owns and not self._chosen & set(owns)]
        controls = [(owns, runs) for owns, runs in by_lot if (flags[owns] == 0).all()]
        once = self._one_each(by_lot, fixed)
        called, plain = (self._described(name, fixed, repeated, once) for repeated in (candidates, controls))
        return Kind(name, fixed, change, self.name, self.hit, called, plain, self.judged)

    def _described(self, name: str, fixed: tuple[str, ...], repeated: list[Repeated], once: list[str]) -> list[Unit]:
        """Return repeated seeds with their names, lines and other seeds; ``once``: one run of each control."""
        first = [(owns or runs)[0] for owns, runs in repeated]
        of = self.every.dropna(subset="own").drop_duplicates("own").set_index("own")["line"].to_dict()
        kept = self.judged.loc[first, [f"seed_{stream}" for stream in fixed]]
        varying = [kept[column] for column in kept if kept[column].nunique() > 1]
        lines = linked([of.get(run) or run for run in first], *varying)
        units = []
        for (owns, runs), run, line in zip(repeated, first, lines, strict=True):
            scan = next((scan for scan in self.scans if run in scan.rows.index), None)
            called, seeds = self._name(run, owns, fixed, scan)
            units.append(Unit(called, seeds, owns, runs, *self._others(name, fixed, run, scan, once), line))
        return units

    def _name(self, run: str, owns: list[str], fixed: Sequence[str], scan: Population | None) -> tuple[str, Seeds]:
        """Return a repeated seed's name, and the seeds of its kept streams. ``run`` is its own run, or a repeat."""
        row = self._row(run)
        seeds = {stream: int(row[f"seed_{stream}"]) for stream in fixed}
        derived = (is_derived(row.to_frame().T, stream).iloc[0] for stream in RUN_STREAMS)  # read only if needed
        of_master = run in self.random.index or (scan is not None and scan.from_masters)
        if (of_master and len(owns) == 1) or (not owns and all(derived)):
            return f"seed {int(row['seed'])}", seeds
        named = [stream for stream in scan.varies if stream in seeds] if scan is not None else []
        # a derived seed by its first digits
        shown = {stream: str(seed) if seed < 10**9 else f"{str(seed)[:6]}…" for stream, seed in seeds.items()}
        return ", ".join(f"{stream} {shown[stream]}" for stream in named or seeds), seeds

    def _others(
        self, name: str, fixed: Sequence[str], run: str, scan: Population | None, once: list[str]
    ) -> tuple[list[str], str]:
        """Return one run of each seed for comparison with a candidate, and what they are in words.

        Those with all kept seeds of the candidate are its own runs or repeats, and not taken, but for a candidate that
        was drawn by lot itself.
        """
        if name != "precision" and "=" not in name:  # another precision or setting may have another rate
            if scan is not None and run not in self.random.index and len(fixed) == len(RUN_STREAMS):
                words = f"seeds of the {listed(scan.varies)} scan" + f" ({scan.held})" * (len(self.scans) > 1)
                return list(scan.rows.index), words
            if len(self.random) >= FEWEST_OTHERS:
                return list(self.random.index), "random seeds"
        if len(once) >= FEWEST_CONTROLS:
            return once, "seeds drawn by lot from the rest, one repeat of each"
        return [], ""

    def _one_each(self, controls: list[Repeated], fixed: tuple[str, ...]) -> list[str]:
        """Return one repeat of each control; no two share a redrawn seed."""
        free = [f"seed_{s}" for s in RUN_STREAMS if s not in fixed]
        seeds = self.judged[free]
        chosen: list[str] = []
        for _, runs in controls:
            taken = seeds.loc[chosen].to_numpy(dtype=np.int64)
            fresh = np.flatnonzero(distinct(seeds.loc[runs].to_numpy(dtype=np.int64), taken))
            chosen += [runs[fresh[0]]] if len(fresh) else []
        return chosen

    def _units(self, repeats: pd.DataFrame) -> dict[str, list[Repeated]]:
        """Return the seeds whose streams were all kept, by what a repeat changes.

        Equal bits are no new evidence.
        """
        by_kind: dict[str, list[Repeated]] = {}
        place = repeats["run"].map(self.observations.once(places))
        key = repeats["own"].where(repeats["own"].notna(), place.astype(str))
        for (_, _), group in repeats.groupby([repeats["kind"].str.contains("="), key], sort=False):
            own = group["own"].iloc[0]
            own = self._first.get(int(place[group.index[0]])) if pd.isna(own) else str(own)
            its = None if own is None else self._row(own)
            seen = set() if its is None else {its["weights_hash"]}
            changed: dict[str, list[str]] = {}
            for run, kind in group.drop_duplicates("run")[["run", "kind"]].itertuples(index=False):
                row = self._row(run)
                if run != own and row["weights_hash"] not in seen:
                    seen.add(row["weights_hash"])
                    changed.setdefault(kind if its is None else self._change(kind, row, its), []).append(str(run))
            for kind, runs in changed.items():
                by_kind.setdefault(kind, []).append(([own] if own else [], runs))
        return by_kind

    @staticmethod
    def _change(kind: str, row: pd.Series, own: pd.Series) -> str:
        """Return what a repeat changed: one that was to be computed again says it by its numerics tag."""
        if kind != "again":
            return kind
        if row["config.numerics.path"] != own["config.numerics.path"]:
            return "path"  # that is what was asked for, whichever machine computed it
        mine, its = tag_parts(row["numerics"]), tag_parts(own["numerics"])
        for name, parts in TAG_PARTS.items():
            if any(mine.get(part) != its.get(part) for part in parts):
                return name
        return "version"

    def _redrawn(self, repeats: pd.DataFrame, fixed: tuple[str, ...]) -> list[Repeated]:
        """Return the seeds of the ``fixed`` streams with their own runs; no two repeats share a redrawn seed.

        In a scan of init seeds all runs have one split and order: with both kept and init redrawn, they are one. A
        repeat that was repeated in turn stays a repeat. If the first own runs were chosen and are no hits, it is an own
        run itself, and its siblings count nowhere: it was chosen among them.
        """
        free = [f"seed_{s}" for s in RUN_STREAMS if s not in fixed]
        repeats = repeats.dropna(subset="own")
        kept = self.judged[[f"seed_{s}" for s in fixed]].loc[repeats["own"]].set_index(repeats.index)
        repeated: list[Repeated] = []
        neither = self._chosen & set(self.hit.flags.index[self.hit.flags == 0])
        for _, group in repeats.groupby([kept[column] for column in kept], sort=False):
            later = group["own"].isin(group["run"])
            siblings = bool(later.any()) and set(group["own"][~later]) <= neither
            its_own = group["own"][later == siblings].unique().tolist()
            owns = sorted(its_own, key=lambda own: self.hit.flags[own] != 1)
            runs = (group["run"][later] if siblings else group["run"]).drop_duplicates()
            seeds, its = (self.judged.loc[ids, free].to_numpy(dtype=np.int64) for ids in (runs, owns))
            if len(fresh := runs[distinct(seeds, its)]):
                repeated.append((owns, [str(run) for run in fresh]))
        return repeated


# Repeatability of super seeds: repeats of candidates, compared with the rate of other seeds.

FEWEST_MARGIN = 6
"""Smallest number of candidates that are divided by the accuracy of their own run."""


@dataclass(frozen=True)
class Test:
    """One kind of repeat and its result."""

    kind: Kind
    result: Replication
    units: pd.DataFrame
    """Per candidate: seeds, hits, runs, share with interval, p, verdict."""

    @property
    def name(self) -> str:
        """The kind's name, or the streams that are kept, with its condition if there are several."""
        kept = " kept" if self.free else ""
        return self.kind.name + kept + (f" ({self.kind.condition})" if self.kind.condition else "")

    @property
    def free(self) -> tuple[str, ...]:
        """The streams that a repeat redraws."""
        return tuple(s for s in RUN_STREAMS if s not in self.kind.fixed)


@dataclass(kw_only=True)
class Repeats(Study):
    """The results of each kind of repeat."""

    tests: list[Test]


def analyse(observations: Observations) -> Repeats:
    """Return the answer for every kind of repeat.

    Raises:
        NotEnoughData: no run repeats a candidate, or what the other seeds' runs were for is unknown.
    """
    (every, gaps), left = observations.once(kinds), observations.once(repeats).attrs["left"]
    if not every and left:
        raise NotEnoughData(f"the rows in designs/ of the own runs of {left:,} repeats")
    if not every:
        n = observations.once(repeats)["own"].nunique()
        needs = f"repeats, of other bits, of a seed that is super or as rare; of {n} repeated ones none is"
        raise NotEnoughData(needs, command="grok sweep sweep=census" * bool(n))
    about = ""
    if len({kind.condition for kind in every}) == 1:  # the study is about one condition: no kind has to name it
        about = every[0].condition
        every = [replace(kind, condition="") for kind in every]
    tests = [_test(kind, RATE / len(every)) for kind in every]  # of chance alone one store in twenty has a sign
    study = Repeats(about=about, tests=tests)
    hits = dict.fromkeys(f"{t.kind.hit.words}: {t.kind.hit.definition}" for t in tests)
    tasks = dict.fromkeys(describe_task(t.kind.rows.iloc[0]) for t in tests)
    study.notes.append(f"Task: {'; '.join([*tasks, *[about] * bool(about)])}. Definition: {'; '.join(hits)}.")
    study.notes.append(
        "The run that made a seed a candidate is never counted among its repeats. Two tests judge candidates: Fisher's "
        "exact test of its repeats against other seeds (more often than others), and the exact binomial test against "
        "one half (in most repeats). Both use a false-discovery rate of 5%, and Fisher's test of all of them together "
        "a level of 5%, which the kinds of repeat share out among them."
    )
    if any(len(test.free) > 1 for test in tests):
        study.notes.append("If two streams are redrawn, the counted repeats share no seed of either stream.")
    study.notes += [f"Repeats at {name} are left out. They need {needs}." for name, needs in gaps.items()]
    if left:
        study.notes.append(f"Repeats left out because no row says what their seed's own run was for: {left:,}.")
    units = [unit for kind in every for unit in [*kind.candidates, *kind.controls]]
    n = observations.once(repeats)["run"].nunique()
    if not gaps and (lost := n - len({run for unit in units for run in unit.repeats})):
        study.notes.append(
            f"Of {n:,} repeats {lost:,} count nowhere: of chosen seeds that are no hit, of equal bits, with a redrawn "
            "seed in common, or not judged."
        )
    for test in tests:
        _findings(study, test)
    study.findings += _between_streams(tests)
    for test in tests:
        if test.kind.name == "ulp" and (seen := _divergence(observations, test.kind)) is not None:
            study.findings.append(seen[0])
            study.tables.append(seen[1])
    return study


def _held(test: Test) -> list[Finding]:
    """Return how many repeats reached the accuracy and held it, and when they generalised: one step can be a dip."""
    kind = test.kind
    assert kind.hit.judged is not None  # or nobody asks
    rows = kind.hit.judged.loc[[run for unit in kind.candidates for run in unit.repeats]]
    held, done = rows["held"].dropna() == 2, rows["generalised"][np.isfinite(rows["generalised"])]
    if held.empty:
        return []
    e = clopper_pearson(int(held.sum()), len(held))
    shown = f"{int(held.sum())} of {len(held)}"
    text = (
        f"{what_repeats(kind)}: {shown} repeats had that accuracy at an evaluation by then and at the next: "
        f"{e.percent(0)}; {int((rows['held'] == 1).sum())} more reached it at their last. {len(done)} of {len(rows)} "
        "generalised by then" + (f", half of these by step {done.median():,.0f}." if len(done) > 1 else ".")
    )
    return [Finding(f"{kind.hit.words} reached and held, {test.name}", shown, text, e, listed=not test.free)]


Groups = dict[str, list[tuple[Unit, list[str]]]]
"""Candidates with some of their repeats, by what the group is in words."""


def _apart(test: Test, name: str, by: str, groups: Groups) -> list[Finding]:
    """Return the repeats of each group with their own count."""
    kind, shown, text = test.kind, [], []
    for words, its in groups.items():
        counts = [kind.hit.counts(runs) for _, runs in its]
        hits, runs = (sum(column) for column in zip(*counts, strict=True))
        shown.append(f"{hits} of {runs} {words}")
        mean = mean_share(counts, [unit.line for unit, _ in its])
        text.append(f"{shown[-1]} ({mean.percent(0)} with the seed as the unit)")
    label = f"{kind.hit.words} again by {name}, {test.name}"
    return [
        Finding(label, "; ".join(shown), f"{what_repeats(kind)}, by {by}: {'; '.join(text)}.", listed=not test.free)
    ]


def _by_device(test: Test) -> list[Finding]:
    """Return the repeats on the processor of the own run, and those on another one."""
    groups: Groups = {}
    device, moved = test.kind.rows["device"].to_dict(), set(test.kind.moved)
    for unit in (unit for unit in test.kind.candidates if unit.owns):
        own, by_words = device[unit.owns[0]], dict[str, list[str]]()
        for run in unit.repeats:
            words = f"on {device[run]} after {own}" if device[run] != own else f"on another {own}"
            by_words.setdefault(words if run in moved else f"on {own}, as before", []).append(run)
        for words, runs in sorted(by_words.items()):
            groups.setdefault(words, []).append((unit, runs))
    return (
        _apart(test, "device", "the processors of the repeat and of the own run", groups)
        if moved and test.kind.name != "processor"
        else []
    )


def _by_margin(test: Test) -> list[Finding]:
    """Return the repeats of candidates whose own run was just above the threshold, and of those far above it.

    The bound is the median of the candidates' own accuracies, cut to the digits that are shown.
    """
    kind, judged = test.kind, test.kind.hit.judged
    units = [unit for unit in kind.candidates if unit.owns]
    if test.free or "=" in kind.name or judged is None or len(units) < FEWEST_MARGIN:
        return []
    own = judged["accuracy"][[unit.owns[0] for unit in units]].to_numpy(dtype=float).round(4)  # as it is shown
    bound, groups = float(np.floor(1e4 * np.median(own) + 1e-6) / 1e4), Groups()
    for unit, accuracy in sorted(zip(units, own, strict=True), key=lambda pair: pair[1] > bound):
        words = f"where it was {'above' if accuracy > bound else 'up to'} {bound:.2%}"
        groups.setdefault(words, []).append((unit, unit.repeats))
    return _apart(test, "margin", "the accuracy of the candidate's own run", groups) if len(groups) > 1 else []


def _divergence(observations: Observations, kind: Kind) -> tuple[Finding, Table] | None:
    """Return how far runs that differ by a unit in the last place are apart, by step: candidates, controls, cells.

    A seed counts once, with the mean of its pairs. Only runs of one numerics tag are compared. Crossed cells share
    streams, so they have a range and no interval. Diverged runs are left out. None: no seed has two runs.
    """
    runs, place = observations.observed, observations.once(places)
    cells = place.index.intersection(observations.once(roles).of("cell", kinds=("crossed",))["run_id"].tolist())
    label = observations.conditions(runs)
    cells = cells[label[cells] == label[kind.candidates[0].repeats[0]]]
    crossed = place[cells].groupby(place[cells]).groups.values()
    groups = {
        "candidates": [unit.repeats for unit in kind.candidates],
        "controls": [unit.repeats for unit in kind.controls],
        "crossed cells": list(map(list, crossed)),
    }
    curves = observations.curves_of([run for seeds in groups.values() for its in seeds for run in its])
    curves = curves[curves["val_loss"] > 0].assign(log_loss=lambda rows: np.log(floats(rows["val_loss"])))
    curves = curves[~curves["run_id"].isin(runs.index[runs["status"] == "diverged"])]
    loss = curves.pivot_table(index="step", columns="run_id", values="log_loss").dropna()
    tag = runs["numerics"].to_dict()
    tables, shown = [], []
    for name, seeds in groups.items():
        pairs = [list(combinations(loss.columns.intersection(its), 2)) for its in seeds]
        pairs = [[(a, b) for a, b in mine if tag[a] == tag[b]] for mine in pairs]
        apart = np.array([np.mean([(loss[a] - loss[b]).abs() for a, b in mine], 0) for mine in pairs if mine])
        if not apart.size:
            continue
        table = pd.DataFrame([median_interval(distances).as_json() for distances in apart.T])
        table = table.assign(step=loss.index, seeds=name, lowest=apart.min(0), highest=apart.max(0))
        told = len(apart) >= FEWEST_OF_A_MEDIAN and name != "crossed cells"
        low, high = ("low", "high") if told else ("lowest", "highest")
        parts = [
            f"{row['value']:.1g}{f' ({row[low]:.1g} to {row[high]:.1g})' * (len(apart) > 1)} at step {row['step']:,}"
            for row in table.iloc[[-1 - 2 * (len(loss) // 3), -1 - len(loss) // 3, -1]].to_dict("records")
        ]
        several = name if len(apart) > 1 else name.removesuffix("s")
        shown.append(
            f"{len(apart)} {several}{', with their range,' * (not told and len(apart) > 1)} {', '.join(parts)}"
        )
        tables.append(table if told else table.assign(low=None, high=None))
    if not shown:
        return None
    text = (
        "Mean distance of a seed's runs that start units in the last place apart, median over seeds, in log validation "
        f"loss{f' ({kind.condition})' if kind.condition else ''}: {'; '.join(shown)}."
    )
    caption = "Distance of runs that start units in the last place apart, by step (log of the validation loss)"
    order = ["step", "seeds", "n", "median", "low", "high", "lowest", "highest"]
    frame = pd.concat(tables).rename(columns={"value": "median"})[order].astype({"low": float, "high": float})
    return Finding("divergence by step", "; ".join(shown), text), Table("divergence", caption, frame, False)


def _between_streams(tests: Sequence[Test]) -> list[Finding]:
    """Return whether repeats hit equally often whichever single stream is redrawn, for each condition.

    The runs of one line with one stream redrawn are moved together: a few lines can have most of the hits. Seeds of
    several kinds that have an own run in common are one line.
    """
    findings = []
    for condition in dict.fromkeys(test.kind.condition for test in tests):
        mine = [test for test in tests if test.kind.condition == condition and len(test.free) == 1]
        if len(mine) < 2:
            continue
        every = [(i, unit) for i, test in enumerate(mine) for unit in test.kind.candidates]
        named, owns = zip(*((unit.line, own) for _, unit in every for own in unit.owns), strict=True)
        line = dict(zip(named, linked(named, owns), strict=True))
        hits = [(flag, i, line[unit.line]) for i, unit in every for flag in mine[i].kind.hit.flags[unit.repeats]]
        flags, streams, lines = (np.array(column) for column in zip(*hits, strict=True))
        blocks = np.unique(lines, return_inverse=True)[1]
        try:
            purpose = generator(f"between streams {condition}")
            p = heterogeneity(flags > 0, streams, purpose, draws=10_000, blocks=[blocks]).p
        except NotEnoughData:
            continue
        shown = listed(
            [f"{int(t.units['again'].sum())} of {int(t.units['of'].sum())} with a new {t.free[0]}" for t in mine]
        )
        test = f" (permuted within lines, p = {p:.2g})"
        verdict = "do not tell the streams apart" if p > ALARM else "differ between the streams"
        few = max(1, sum(len(set(streams[lines == line])) > 1 for line in set(lines)))
        if p > ALARM < factorial(len(mine)) ** (1.0 - few):  # no counts of so few lines have a smaller p-value
            verdict = "cannot tell the streams apart: too few seeds without a common stream had several redrawn"
            test = ""
        text = f"{condition and condition + ': '}{shown}: these counts {verdict}{test}."
        label = "one stream redrawn" + (f" ({condition})" if condition else "")
        findings.append(Finding(label, f"p = {p:.2g}" if test else "no test", text))
    return findings


def _test(kind: Kind, rate: float) -> Test:
    counts = [kind.hit.counts(unit.repeats) for unit in kind.candidates]
    bases = [kind.hit.counts(unit.others) if unit.others else None for unit in kind.candidates]
    result = replication(counts, bases, [unit.line for unit in kind.candidates], rate)
    records = [
        {
            "candidate": unit.name,
            **{f"seed_{stream}": str(seed) for stream, seed in unit.seeds.items()},
            "chosen by": f"run {unit.owns[0][:10]}" if unit.owns else "name",
            "again": hits,
            "of": runs,
            "share": c.again.value,
            "low": c.again.low,
            "high": c.again.high,
            "other seeds": "" if c.base is None else c.base.percent(),
            "p": None if c.p_more is None else float(f"{c.p_more:.2g}"),
            "verdict": c.verdict.value,
        }
        for unit, (hits, runs), c in zip(kind.candidates, counts, result.candidates, strict=True)
    ]
    units = pd.DataFrame(records).sort_values(["share", "of"], ascending=False, kind="stable").reset_index(drop=True)
    return Test(kind, result, units)


def what_repeats(kind: Kind) -> str:
    """Return which seeds a repeat keeps and what it changes, in words."""
    at = f" ({kind.condition})" if kind.condition else ""
    if len(kind.fixed) == len(RUN_STREAMS):
        return f"All seeds kept, {kind.change}{at}"
    return f"{listed(kind.fixed).capitalize()} seed{'s' * (len(kind.fixed) > 1)} kept, {kind.change}{at}"


def verdict(test: Test) -> str:
    """Return the conclusion from the repeats, as a clause."""
    result, hit, n = test.result, test.kind.hit.words, len(test.kind.candidates)
    # if all other seeds have the same order seed, they tell nothing of the order
    units = test.kind.candidates
    compared = test.kind.rows.loc[list({run for unit in units for run in unit.others})]
    common = [s for s in test.kind.shared if set(compared[f"seed_{s}"]) == {units[0].seeds[s]}]
    kept = [s for s in test.kind.fixed if s not in common]
    unknown = all(c.base is None for c in result.candidates)
    elsewhere = f" with {test.kind.name}, too" if "=" in test.kind.name else ""
    at = f" (with this {listed(common)} seed)" if common else ""
    streams = "the seed's streams" if not test.free else f"the {listed(kept)} seed{'s' * (len(kept) > 1)}{at}"
    enough = f"keeping {streams} is enough to be {hit}" if test.free else f"being {hit} is a property of {streams}"
    sure = result.count(Verdict.MOST)
    if result.verdict is Verdict.MOST:
        if unknown:
            return f"most of their repeats are {hit}; without the rate of other seeds that may be so of any seed"
        if 2 * sure <= n:
            return f"together most of their repeats are {hit}, which is clear for {sure} of {n} candidates alone"
        which = f" for {sure} of {n} candidates" if sure < n else ""
        return f"{enough}{' in most repeats' if test.free else elsewhere}{which}"
    if all(c.base is not None and c.base.low > MOST for c in result.candidates):
        return f"most other seeds are {hit}, too, so repeats cannot tell"
    called = result.count(Verdict.MOST, Verdict.MORE)
    if not called and result.pooled.low > MOST:
        return f"each candidate has too few repeats to be judged alone, but together most of their repeats are {hit}"
    if result.verdict is Verdict.MORE:
        who = f"{called} of {n} candidates {'is' if called == 1 else 'are'}" if n > 1 else "the candidate is"
        who = who if called else "together the candidates are"
        causes = ["chance", *([f"the new {listed(test.free)} seed"] if test.free else [])]
        # only if all that were not moved are hits again may it be the processor that others lack
        stayed = {run for unit in units for run in unit.repeats}.difference(test.kind.moved)
        causes += ["the processor"] * bool(test.kind.hit.flags[[*stayed]].eq(1).all())
        # a repeat that is none shows that more than the kept seeds decides
        others = f": {listed(causes, 'or')} matters, too" * (result.pooled.value < 1)
        most = "but most repeats are not" if result.pooled.high < MOST else "but not proven to be in most repeats"
        most = f"{sure} of them in most repeats" if sure else most
        return f"{who} {hit} more often than other seeds, {most}{others}"
    if result.verdict is Verdict.NO_SIGN:
        return f"no sign that {enough}: most repeats are not"
    if unknown:
        return "without the rate of other seeds repeats cannot tell chance from a property of the seed"
    return "too few repeats to distinguish chance from a property of the seed"


def _findings(study: Repeats, test: Test) -> None:
    kind, result = test.kind, test.result
    hits, runs = int(test.units["again"].sum()), int(test.units["of"].sum())
    hit, n = kind.hit.words, len(kind.candidates)
    shown = f"{hits} of {runs}"
    text = (
        f"{what_repeats(kind)}: {n} candidate{'s' * (n > 1)}, {hit} again in {shown} repeats, "
        f"{result.pooled.percent(0)} for th{'ese candidates' if n > 1 else 'is candidate'}; {verdict(test)}."
    )
    with suppress(NotEnoughData):
        purpose = generator(f"candidates {test.name}")
        p = unequal_rates(test.units["again"].tolist(), test.units["of"].tolist(), purpose).p
        if p <= ALARM:
            text += f" The candidates differ (p = {p:.2g}), so this need not be the rate of any of them."
    if lost := int((kind.rows["status"][[run for u in kind.candidates for run in u.repeats]] == "diverged").sum()):
        text += f" {lost} of these repeats diverged, and have no accuracy."
    if apart := kind.otherwise:
        text += f" These repeats and their seeds' own runs were not all computed alike ({listed(apart)})."
    beside: list[Finding] = []
    if kind.hit.judged is not None:  # a threshold alone does not tell a near miss from an ordinary run
        again = kind.hit.judged["accuracy"][[run for unit in kind.candidates for run in unit.repeats]]
        if again.notna().any():
            text += f" The accuracy of these repeats is {again.median():.1%} in the median, {again.min():.1%} at least."
        beside = [*_held(test), *_by_device(test), *_by_margin(test)]
    judged = zip(result.candidates, kind.candidates, strict=True)
    bases = sorted({(c.base.percent(), unit.others_words) for c, unit in judged if c.base is not None})
    short = f"{hit[0].upper()}{hit[1:]} again, {test.name}: {shown}, {result.pooled.percent(0)} for the candidates."
    if bases:
        other = f"random seeds with another {listed(kind.shared)} seed" if kind.shared and test.free else "random seeds"
        said = "; ".join(f"{share} of {words.replace('random seeds', other)}" for share, words in bases)
        among = any(own in unit.others for unit in kind.candidates for own in unit.owns)
        text += f" Other seeds: {said}{', these candidates among them' * among}."
        short = f"{short[:-1]}; other seeds: {' or '.join(share for share, _ in bases[:2])}."
    else:
        text += (
            f" The rate of other seeds is not compared: that takes {FEWEST_OTHERS} random seeds of these settings, or "
            f"{FEWEST_CONTROLS} drawn by lot and repeated the same way."
        )
    if result.mean is not None:
        m = result.mean
        same = f" with this {listed(kind.shared)} seed" if kind.shared else ""
        lines = f" ({m.n} lines: those that share a seed are one)" if m.n < n else ""
        text += f" For all seeds{same} chosen like these: {m.percent(0)} of a seed's repeats{lines}."
    elif n > 1:
        text += " The candidates share streams, so they do not tell how other such seeds behave."
    if any(len(unit.owns) > 1 for unit in kind.candidates):
        text += " Runs with the same kept seeds are one candidate."
    if kind.controls:
        counts = [kind.hit.counts(unit.repeats) for unit in kind.controls]
        again, of = (sum(column) for column in zip(*counts, strict=True))
        text += f" Ordinary controls: {again} of {of} repeats of {len(counts)} seed{'s' * (len(counts) > 1)}, "
        text += f"{mean_share(counts, [unit.line for unit in kind.controls]).percent(0)} with the seed as the unit."
    label = f"{hit} again, {test.name}"
    study.findings += [Finding(label, shown, text, result.pooled, headline=True, short=short), *beside]
    name = test.name.replace(" kept", "").replace(" + ", "_").replace(" ", "_")
    table = test.units.assign(**{c: (100 * test.units[c]).round(1) for c in ("share", "low", "high")})
    table = table.rename(columns={"share": "share %", "low": "low %", "high": "high %"})
    caption = f"Candidates repeated: {what_repeats(kind).lower()}"
    study.tabulate(
        f"again_{name}", caption, table, open=n <= 20 and not any(t.name.startswith("again_") for t in study.tables)
    )


QUESTION = Question(
    "repeatability",
    "Is it the seed?",
    "Are the best seeds good again when they are repeated?",
    "grok repeat --best 12",
    analyse,
    lambda observations: len(observations.once(repeats)) > 0,
    reads_designs=True,
    any_task=False,
)
