"""Which runs repeat which: the rare outcome of a condition, its candidates and controls, and the seeds beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.analysis.criteria import DIARY, UNJUDGED, called, judge_by_time
from grok.analysis.observations import (
    CONDITION_SETTINGS,
    PROCESSOR,
    Observations,
    computed_apart,
    differing_settings,
    floats,
    in_words,
    is_derived,
    listed,
    processors,
    varying_columns,
)
from grok.analysis.populations import Population, planned_together
from grok.analysis.purposes import CHOSEN, asked, places, roles
from grok.analysis.statistics.estimate import NotEnoughData
from grok.analysis.statistics.repeatability import Counts
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
    return Hit(called(runs.iloc[0], *classes), definition, flags, seen)


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


def distinct(seeds: pd.DataFrame, runs: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return those of ``runs`` that share no seed, of the columns of ``seeds``, with each other or with ``taken``."""
    used = {seed for run in taken for seed in enumerate(seeds.loc[run])}
    kept = []
    for run in runs:
        own = set(enumerate(seeds.loc[run]))
        if used.isdisjoint(own):
            used |= own
            kept.append(run)
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
        return planned_together(self.observations, self.asked) if len(self.asked) else []

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
        changed = kept["kind"].str.contains("=")
        computed = self._units(kept[~changed])
        by_kind = {kind: computed[kind] for kind in COMPUTATIONS if kind in computed}
        by_kind |= self._units(kept[changed].dropna(subset="own"))
        result = [self._kind(k, RUN_STREAMS, COMPUTATIONS.get(k, f"with {k}"), its) for k, its in by_kind.items()]
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

    def _name(
        self, run: str, owns: list[str], fixed: Sequence[str], scan: Population | None
    ) -> tuple[str, dict[str, int]]:
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
        seeds = self.judged[[f"seed_{s}" for s in RUN_STREAMS if s not in fixed]]
        chosen: list[str] = []
        for _, runs in controls:
            chosen += distinct(seeds, runs, chosen)[:1]
        return chosen

    def _units(self, repeats: pd.DataFrame) -> dict[str, list[Repeated]]:
        """Return the seeds whose streams were all kept, by what a repeat changes.

        Equal bits are no new evidence.
        """
        by_kind: dict[str, list[Repeated]] = {}
        place = repeats["run"].map(self.observations.once(places))
        key = repeats["own"].where(repeats["own"].notna(), place.astype(str))
        for _, group in repeats.groupby(key, sort=False):
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
        seeds = self.judged[[f"seed_{s}" for s in RUN_STREAMS if s not in fixed]]
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
            if fresh := distinct(seeds, runs.tolist(), owns):
                repeated.append((owns, fresh))
        return repeated
