"""Which runs repeat which: candidates, ordinary controls, and the other seeds for comparison.

Designs say which run repeats which: children of ``repeat`` and ``branch`` designs, and a recipient's own cells in a
``layers`` design. A seed's *own run* is the parent, the run by which it may have been chosen. If it is a hit (super, or
another rare outcome), the seed is a *candidate*. Otherwise it is a *control*, unless it was chosen for another result
or by name. The own run never counts among the repeats. A seed with repeats but without an own run was *named* by the
user: it is a candidate with all its repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.observations import CONDITION_SETTINGS, Observations, in_words, is_derived, varying_columns
from analysis.populations import Population, drawn, listed
from analysis.purposes import CHOSEN, STREAMS, asked, places, roles
from analysis.studies.hits import FEWEST_OTHERS, Hit, rare_outcome
from analysis.studies.units import Kind, Unit, distinct
from grok.records import tag_parts

KEPT: Final = (("split", "init"), ("split", "order"), ("init", "order"), ("init",), ("order",), ("split",))
"""Sets of streams that are kept while the others are redrawn."""
COMPUTATIONS: Final = {
    "ulp": "initial weights moved by a unit in the last place",
    "processor": "on another processor",
    "lane width": "at another lane width",
    "path": "on another numerics path",
    "version": "with another version or number of threads",
    "precision": "in another precision",
}
"""Kinds of repeat that keep all streams, with what they change in words."""
TAG_PARTS: Final = {
    "processor": ("device", "model", "isa"),
    "lane width": ("width",),
    "path": ("rows", "products", "compiled", "compiler"),
}
"""Parts of the numerics tag that define these kinds of repeat."""
FEWEST_CONTROLS: Final = 5
"""Smallest number of controls, with one run each, for their rate."""


def repeats(observations: Observations) -> pd.DataFrame:
    """Return every repeat that a design planned: run, own (its parent, or None), fixed streams, kind, choice and line.

    ``kind`` is what changes where all streams are kept: ``ulp``, ``again``, ``path``, ``precision`` or ``NAME=VALUE``;
    empty where streams are redrawn. A parent is the run of its place that was asked for, if any was.
    """
    purposes = observations.once(roles)
    place, rows = observations.once(places).to_dict(), observations.once(asked)
    stands = dict(zip(rows["place"], rows.index, strict=True))
    when = rows["planned_at"].to_dict()
    children = purposes.of("child", kinds=("repeat", "branch"))
    children = children[children["from_step"].isna()]  # a change in mid-run keeps the streams until then
    records = []
    for run, parent, redrawn, choice, unit, line, planned_at in _columns(children):
        kind = "" if redrawn else _kind_of(unit)
        if run not in place or kind is None or not set(redrawn or ()) <= set(STREAMS) or choice == "unstated":
            continue
        own = stands.get(place[parent], parent) if parent in place else None
        fixed = tuple(stream for stream in STREAMS if stream not in (redrawn or ()))
        # a list of seeds whose results were there may be a choice by them
        chosen = choice in CHOSEN or (choice == "given" and own in when and when[own] < planned_at)
        records.append((run, own, fixed, kind, chosen, line or purposes.lines.get(parent, "")))
    recipients = purposes.of("recipient", kinds=("layers",))["run_id"]
    stands |= {place[run]: run for run in recipients if run in place}
    for run, *_, unit, _, _ in _columns(purposes.of("cell", kinds=("layers",))):
        if run in place and not unit.get("exchanged") and not unit.get("streams"):
            own = stands.get(place[run])
            records.append((run, own, STREAMS, "ulp", True, purposes.lines.get(own or "", "")))
    columns = ["run", "own", "fixed", "kind", "chosen", "line"]
    return pd.DataFrame(records, columns=columns).drop_duplicates(["run", "own", "fixed", "kind", "chosen"])


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


def kinds(observations: Observations) -> list[Kind]:
    """Return every kind of repeat that has a candidate, starting with the condition with most runs.

    The condition of repeats is that of their own run. A repeat without one has its own condition.
    """
    every = observations.once(repeats)
    if every.empty:
        return []
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
    by_size = label[~label.index.isin(changed)].value_counts().sort_index().sort_values(ascending=False, kind="stable")
    for condition in by_size.index:
        mine = every[of == condition]
        if mine.empty:
            continue
        group = rows[(label == condition) & ~rows.index.isin(changed)]
        name = ", ".join(f"{c.removeprefix('config.')}={in_words(group.iloc[0][c])}" for c in varying)
        elsewhere = rows.loc[[run for run in dict.fromkeys(mine["run"]) if label[run] != condition]]
        result += _Condition(observations, group, name, mine, elsewhere).kinds()
    return result


Repeated = tuple[pd.Series, str | None, list[str]]
"""A run of a repeated seed, its own run, and its repeats."""


def _short(seed: int) -> str:
    """Return a seed as text; a derived seed by its first digits."""
    return str(seed) if seed < 10**9 else f"{str(seed)[:6]}…"


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
        groups = [p.rows for p in self.drawn if p.varies == STREAMS]
        return groups[0] if groups else self.asked[:0]

    @cached_property
    def scans(self) -> list[Population]:
        """The populations with one or two fixed streams that are large enough for a rate."""
        return [p for p in self.drawn if p.varies != STREAMS and len(p) >= FEWEST_OTHERS]

    @cached_property
    def population(self) -> pd.DataFrame:
        """The runs that define what is rare: random seeds, else the largest scan, else all own runs, else all."""
        groups = [self.random] if len(self.random) >= FEWEST_OTHERS else [scan.rows for scan in self.scans]
        own = self.rows.loc[self.rows.index.intersection([*self.asked.index, *self._first])]
        return self.rows.loc[max(groups, key=len, default=own if len(own) else self.rows).index]

    @cached_property
    def hit(self) -> Hit:
        """The rare outcome of this condition."""
        return rare_outcome(self.observations, self.population, self.judged)

    def kinds(self) -> list[Kind]:
        """Return the kinds of repeat that have a candidate."""
        by_kind: dict[str, list[Repeated]] = {}
        kept = self.every[self.every["fixed"] == STREAMS]
        for kind, units in self._units(kept[~kept["kind"].str.contains("=")]).items():
            by_kind.setdefault(kind, []).extend(units)
        result = [
            self._kind(kind, STREAMS, COMPUTATIONS[kind], by_kind[kind]) for kind in COMPUTATIONS if kind in by_kind
        ]
        for change, units in self._units(kept[kept["kind"].str.contains("=")].dropna(subset="own")).items():
            result.append(self._kind(change, STREAMS, f"with {change}", units))
        for fixed in KEPT:
            units = self._redrawn(self.every[self.every["fixed"] == fixed], fixed)
            free = " and ".join(s for s in STREAMS if s not in fixed)
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
        judged = [(row, own, [r for r in runs if pd.notna(self.hit.flags[r])]) for row, own, runs in repeated]
        judged = [unit for unit in judged if unit[2]]
        ordinary = [own is not None and bool(self.hit.flags[own] == 0) for _, own, _ in judged]
        controls = [unit for unit, o in zip(judged, ordinary, strict=True) if o and unit[1] not in self._chosen]
        control_runs = self._one_each(controls, fixed)
        lines = self.every.dropna(subset="own").drop_duplicates("own").set_index("own")["line"].to_dict()
        kind = Kind(name, fixed, change, self.name, self.hit, [], [], self.judged)
        for (row, own, runs), is_control in zip(judged, ordinary, strict=True):
            others, words = ([], "") if is_control else self._others(name, fixed, own, control_runs)
            seeds = {stream: int(row[f"seed_{stream}"]) for stream in fixed}
            called = self._name(row, own, seeds)
            unit = Unit(called, seeds, own, runs, others, words, lines.get(own) or own or called)
            (kind.candidates if not is_control else kind.neither if own in self._chosen else kind.controls).append(unit)
        return kind

    def _name(self, row: pd.Series, own: str | None, seeds: dict[str, int]) -> str:
        if own in self.random.index or (own is None and len(seeds) == len(STREAMS) and self._is_random(row)):
            return f"seed {int(row['seed'])}"
        scan = next((scan for scan in self.scans if own in scan.rows.index), None)
        if scan is not None and scan.from_masters:
            return f"seed {int(row['seed'])}"
        named = [stream for stream in scan.varies if stream in seeds] if scan is not None else []
        return ", ".join(f"{stream} {_short(seeds[stream])}" for stream in named or seeds)

    @staticmethod
    def _is_random(row: pd.Series) -> bool:
        return all(bool(is_derived(row.to_frame().T, stream).iloc[0]) for stream in STREAMS)

    def _others(
        self, name: str, fixed: tuple[str, ...], own: str | None, control_runs: list[str]
    ) -> tuple[list[str], str]:
        """Return one run of each seed for comparison with a candidate, and what they are in words."""
        from_scan = next((scan for scan in self.scans if own in scan.rows.index), None)
        random = (list(self.random.index), "random seeds") if len(self.random) >= FEWEST_OTHERS else ([], "")
        controls = (control_runs, "ordinary controls") if len(control_runs) >= FEWEST_CONTROLS else ([], "")
        if name == "precision" or "=" in name:  # another precision or setting may have another rate
            return controls
        if from_scan is None or own in self.random.index:
            return random
        if len(fixed) == len(STREAMS):
            return list(from_scan.rows.index), f"seeds of the {listed(from_scan.varies)} scan"
        return controls if controls[0] else random

    def _one_each(self, controls: list[Repeated], fixed: tuple[str, ...]) -> list[str]:
        """Return one repeat of each control; no two share a redrawn seed."""
        free = [f"seed_{s}" for s in STREAMS if s not in fixed]
        if not free:
            return [runs[0] for _, _, runs in controls]
        seeds = self.judged[free]
        chosen: list[str] = []
        for _, _, runs in controls:
            taken = seeds.loc[chosen].to_numpy(dtype=np.int64)
            fresh = np.flatnonzero(distinct(seeds.loc[runs].to_numpy(dtype=np.int64), taken))
            chosen += [runs[fresh[0]]] if len(fresh) else []
        return chosen

    def _units(self, repeats: pd.DataFrame) -> dict[str, list[Repeated]]:
        """Return the seeds whose streams were all kept, by what a repeat changes: a row, the own run, the repeats.

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
                by_kind.setdefault(kind, []).append((self._row(own or runs[0]), own, runs))
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
        """Return the seeds that were repeated with the ``fixed`` streams kept; no two repeats share a redrawn seed."""
        free = [f"seed_{s}" for s in STREAMS if s not in fixed]
        repeated: list[Repeated] = []
        for own, group in repeats.dropna(subset="own").groupby("own", sort=False):
            runs = group["run"].drop_duplicates()
            seeds, its = (self.judged.loc[ids, free].to_numpy(dtype=np.int64) for ids in (runs, [own]))
            if len(kept := runs[distinct(seeds, its)]):
                repeated.append((self._row(own), str(own), [str(run) for run in kept]))
        return repeated
