"""Which runs repeat which: candidates, ordinary controls, and the other seeds for comparison.

A seed's *own run* is the one by which it may have been chosen: unperturbed, with the streams of a random
seed or of a scan. If the own run is a hit (super, or another rare outcome), the seed is a *candidate*,
otherwise a *control*, unless a command chose it for another result or by name. The own run never counts
among the repeats. A parent that `grok branch --parents` named is the own run of its children, also if it is
a child itself: such parents can share the streams that their children keep. A seed with repeats but without
an own run was *named* by the user: it is a candidate with all its repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd

from analysis.chosen import chosen
from analysis.observations import (
    CONDITION_SETTINGS,
    Observations,
    as_text,
    in_words,
    is_derived,
    varying_columns,
)
from analysis.populations import STREAMS, Population, drawn, listed
from analysis.records import recorded_parents, repeats_elsewhere, typed
from analysis.studies.branching import first_ancestors, pairs
from analysis.studies.hits import FEWEST_OTHERS, Hit, rare_outcome
from analysis.studies.units import Kind, Unit, distinct

SEEDS: Final = [f"seed_{stream}" for stream in STREAMS]
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
NEEDED: Final = [*SEEDS, "seed", "seed_perturb", "started_at", "weights_hash", "numerics", "config.precision",
                 "config.numerics.path", "config.perturb.ulps"]  # fmt: skip
"""Columns by which repeats are found: a choice of rows from all columns of a store takes many times longer."""


def kinds(observations: Observations) -> list[Kind]:
    """Return every kind of repeat that has a candidate, starting with the condition with most runs."""
    rows = observations.computations
    rows = rows[rows["layers"] == "{}"]
    if rows.empty:
        return []
    elsewhere = _elsewhere(observations, rows)
    rows = rows.drop(index=elsewhere.index)
    varying = varying_columns(rows, [name for name in CONDITION_SETTINGS if name != "precision"])
    label = rows.groupby(varying, dropna=False).ngroup() if varying else pd.Series(0, index=rows.index)
    result: list[Kind] = []
    for condition in label.value_counts().sort_index().sort_values(ascending=False, kind="stable").index:
        group = rows[label == condition]
        name = ", ".join(f"{c.removeprefix('config.')}={in_words(group.iloc[0][c])}" for c in varying)
        result += _Condition(observations, group, name, elsewhere).kinds()
    return result


def _elsewhere(observations: Observations, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the repeats of chosen seeds under another setting, with that setting in the column ``_change``.

    A repeat that a longer run continues is not among them: the longer run was not chosen for a result.
    """
    changes = {run: change for run, change in observations.once(repeats_elsewhere).items() if run in rows.index}
    changed = rows.loc[list(changes)].assign(_change=pd.Series(changes, dtype=object))
    return changed[~changed["_change"].str.startswith("precision=")]  # a kind of its own, with runs of any origin


Repeated = tuple[pd.Series, str | None, list[str]]
"""A run of a repeated seed, its own run, and its repeats."""


def _short(seed: int) -> str:
    """Return a seed as text; a derived seed by its first digits."""
    return str(seed) if seed < 10**9 else f"{str(seed)[:6]}…"


def _triples(rows: pd.DataFrame) -> Iterator[tuple[int, ...]]:
    """Yield each run's seeds of split, init and order."""
    return rows[SEEDS].itertuples(index=False, name=None)


class _Condition:
    """The runs of one condition, in one or several precisions."""

    def __init__(self, observations: Observations, rows: pd.DataFrame, name: str, elsewhere: pd.DataFrame) -> None:
        self.observations, self.rows, self.name = observations, rows, name
        self.elsewhere = elsewhere[elsewhere["_change"].map(self._differs)] if len(elsewhere) else elsewhere
        self.judged = pd.concat([rows, self.elsewhere.drop(columns="_change")])
        self.runs = rows[NEEDED]
        self.kicked = rows["config.perturb.ulps"].fillna(0) > 0
        plain = self.runs[~self.kicked]
        self.precision = str((plain if len(plain) else self.runs)["config.precision"].mode().iloc[0])
        self.usual = rows["config.precision"] == self.precision

    def _differs(self, change: str) -> bool:
        """Return whether ``change``, a setting as typed, is another value than this condition's."""
        name, _, value = change.partition("=")
        return as_text(self.rows.iloc[0][f"config.{name}"]) != as_text(typed(value))

    @cached_property
    def own(self) -> pd.DataFrame:
        """The own run of each triple of seeds.

        Of triples whose runs are all perturbed it is the first run, if there are enough of them for a rate: so
        many are a design, such as a crossed one, and no candidates by name.
        """
        return pd.concat([self._plain, self.design]) if len(self.design) else self._plain

    @cached_property
    def _plain(self) -> pd.DataFrame:
        return self._first(self.runs[~self.kicked & self.usual])

    @cached_property
    def design(self) -> pd.DataFrame:
        """The first runs of triples whose runs are all perturbed, and which are many or share a seed.

        Few that share none were named, each as a seed of its own. Few that share one are what is there of a crossed
        design that still trains.
        """
        first = self._first(self.runs[self.usual])
        known = pd.MultiIndex.from_frame(self._plain[SEEDS])
        perturbed = first[~pd.MultiIndex.from_frame(first[SEEDS]).isin(known)]
        if len(perturbed) >= FEWEST_OTHERS:
            return perturbed
        shared = [perturbed[column].duplicated(keep=False) for column in SEEDS]
        return perturbed.loc[perturbed.index[np.any(shared, axis=0)]]

    @cached_property
    def chosen(self) -> set[str]:
        """The own runs that a command chose for their results or by name."""
        return chosen(self.observations, self.rows.loc[self._plain.index])

    @staticmethod
    def _first(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.sort_values(["seed_perturb", "started_at"], kind="stable").drop_duplicates(SEEDS)

    @cached_property
    def _cells(self) -> set[tuple[int, ...]]:
        return set(_triples(self.design))

    @cached_property
    def drawn(self) -> list[Population]:
        """The populations among the own runs."""
        return drawn(self.own) if len(self.own) else []

    @cached_property
    def random(self) -> pd.DataFrame:
        """The own runs of random seeds, all streams derived from the master seed."""
        groups = [p.rows for p in self.drawn if p.varies == STREAMS]
        return groups[0] if groups else self.own[:0]

    @cached_property
    def scans(self) -> list[Population]:
        """The populations with one or two fixed streams that are large enough for a rate."""
        return [p for p in self.drawn if p.varies != STREAMS and len(p) >= FEWEST_OTHERS]

    @cached_property
    def population(self) -> pd.DataFrame:
        """The own runs that define what is rare: random seeds, else the largest scan, else all own runs."""
        groups = [self.random] if len(self.random) >= FEWEST_OTHERS else [scan.rows for scan in self.scans]
        own = self.own if len(self.own) else self._first(self.runs[self.usual])
        return self.rows.loc[max(groups, key=len, default=own).index]

    @cached_property
    def hit(self) -> Hit:
        """The rare outcome of this condition."""
        return rare_outcome(self.observations, self.population, self.judged)

    def kinds(self) -> list[Kind]:
        """Return the kinds of repeat that have a candidate."""
        result = []
        for change, units in self._computed_again().items():
            result.append(self._kind(change, STREAMS, COMPUTATIONS[change], units))
        for change, units in self._changed().items():
            result.append(self._kind(change, STREAMS, f"with {change}", units))
        repeats_only: set[str] = set()
        for fixed in KEPT:
            free = " and ".join(s for s in STREAMS if s not in fixed)
            kind = self._kind(" + ".join(fixed), fixed, f"{free} redrawn", self._redrawn(fixed, repeats_only))
            result.append(kind)
            repeats_only |= {
                run for unit in kind.candidates if unit.own and len(unit.repeats) > 1 for run in unit.repeats
            }
        return [kind for kind in result if kind.candidates]

    def _kind(self, name: str, fixed: tuple[str, ...], change: str, repeated: list[Repeated]) -> Kind:
        judged = [(row, own, [r for r in runs if pd.notna(self.hit.flags[r])]) for row, own, runs in repeated]
        judged = [unit for unit in judged if unit[2]]
        cells = [own is not None and own in self.design.index for _, own, _ in judged]
        if not all(cells):  # the study of crossed designs answers for them: nobody chose one, and they share seeds
            judged = [unit for unit, cell in zip(judged, cells, strict=True) if not cell]
        ordinary = [own is not None and bool(self.hit.flags[own] == 0) for _, own, _ in judged]
        drawn = [unit for unit, o in zip(judged, ordinary, strict=True) if o and unit[1] not in self.chosen]
        control_runs = self._one_each(drawn, fixed)
        units: tuple[list[Unit], list[Unit]] = ([], [])
        for (row, own, runs), is_control in zip(judged, ordinary, strict=True):
            others, words = ([], "") if is_control else self._others(name, fixed, own, control_runs)
            unchosen = own is None and not self._cells.isdisjoint(_triples(self.runs.loc[runs]))
            if not is_control and len(fixed) < len(STREAMS) and (unchosen or not others):
                continue  # a cell of a crossed design, which nobody chose or without other seeds for comparison
            seeds = {stream: int(row[f"seed_{stream}"]) for stream in fixed}
            name_of = self._name(row, own, seeds)
            line = self.observations.once(first_ancestors).get(own or "", own or name_of)
            units[is_control].append(Unit(name_of, seeds, own, runs, others, words, line))
        candidates, misses = map(self._with_lines, units)
        controls, neither = ([u for u in misses if (u.own in self.chosen) == named] for named in (False, True))
        return Kind(name, fixed, change, self.name, self.hit, candidates, controls, self.rows, neither)

    def _with_lines(self, units: list[Unit]) -> list[Unit]:
        """Return ``units`` with the lines of cells of a crossed design.

        Cells share seeds, so they are as many independent draws as there are seeds of the stream with fewest.
        """
        cells = [unit.own for unit in units if unit.own in self.design.index]
        moving = [column for column in SEEDS if self.design[column].nunique() > 1]
        if not cells or not moving:
            return units
        seeds = self.design.loc[cells, moving]
        line = seeds[seeds.nunique().idxmin()].astype(str).to_dict()
        return [replace(unit, line=line.get(unit.own, unit.line)) for unit in units]

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
        seeds = self.runs[free]
        chosen: list[str] = []
        for _, _, runs in controls:
            taken = seeds.loc[chosen].to_numpy(dtype=np.int64)
            fresh = np.flatnonzero(distinct(seeds.loc[runs].to_numpy(dtype=np.int64), taken))
            chosen += [runs[fresh[0]]] if len(fresh) else []
        return chosen

    def _computed_again(self) -> dict[str, list[Repeated]]:
        """Return the repeated triples of seeds, by what a repeat changes: a run's row, the own run, the repeats."""
        by_kind: dict[str, list[Repeated]] = {kind: [] for kind in COMPUTATIONS}
        triple = self.runs.groupby(SEEDS, sort=True).ngroup()
        own = dict(zip(triple[self.own.index], self.own.index, strict=True))
        repeated = triple[(triple.map(triple.value_counts()) > 1) | ~triple.isin(list(own))]
        for number, places in repeated.groupby(repeated, sort=True):
            group = self.runs.loc[places.index].sort_values("started_at", kind="stable")
            mine = own.get(number)
            its = group[group.index == mine].iloc[0] if mine is not None else None
            seen = set() if its is None else {its["weights_hash"]}
            repeats: dict[str, list[str]] = {kind: [] for kind in COMPUTATIONS}
            for run, row in group.iterrows():
                if row["weights_hash"] in seen:
                    continue  # equal bits are no new evidence
                seen.add(row["weights_hash"])
                repeats[self._change(row, its)].append(str(run))
            for kind, runs in repeats.items():
                if runs:
                    by_kind[kind].append((group.iloc[0], mine, runs))
        return by_kind

    def _changed(self) -> dict[str, list[Repeated]]:
        """Return the triples of seeds that were repeated under another setting, by that setting."""
        by_change: dict[str, list[Repeated]] = {}
        own = dict(zip(_triples(self._plain), self._plain.index, strict=True))
        for _, group in self.elsewhere.groupby(SEEDS, sort=True):
            mine = own.get(next(_triples(group)))
            for change, runs in group.groupby("_change", sort=True):
                if mine is not None:
                    by_change.setdefault(str(change), []).append(
                        (self.runs.loc[mine], mine, list(map(str, runs.index)))
                    )
        return by_change

    def _change(self, row: pd.Series, own: pd.Series | None) -> str:
        if row["config.precision"] != self.precision:
            return "precision"
        if row["config.perturb.ulps"] > 0 or own is None:
            return "ulp"
        if row["config.numerics.path"] != own["config.numerics.path"]:
            return "path"  # that is what was asked for, whichever machine computed it
        mine, its = (dict(part.partition("=")[::2] for part in str(r["numerics"]).split(";")) for r in (row, own))
        for kind, parts in TAG_PARTS.items():
            if any(mine.get(part) != its.get(part) for part in parts):
                return kind
        return "version"

    def _redrawn(self, fixed: tuple[str, ...], repeats_only: set[str]) -> list[Repeated]:
        """Return the seeds that were repeated with the ``fixed`` streams kept and the others redrawn.

        Runs in ``repeats_only`` are repeats of other seeds; they make no candidate.
        """
        columns, free = [f"seed_{s}" for s in fixed], [f"seed_{s}" for s in STREAMS if s not in fixed]
        parent_of = self.observations.once(pairs).set_index("child")["parent"]
        runs = self.runs[self.usual].assign(_kicked=self.kicked[self.usual])
        runs = runs.sort_values(["_kicked", "started_at"], kind="stable").drop_duplicates(SEEDS)
        runs = runs[runs.groupby(columns)["seed"].transform("size") > 1]
        scanned = self.own.index[:0].append([scan.rows.index for scan in self.scans])
        parents, named = recorded_parents(self.observations, self.runs.index)
        repeated: list[Repeated] = []
        for _, group in runs.groupby(columns, sort=True):
            own = group.index.intersection(self.random.index)
            roots = [r for r in group.index if r in named and parents.get(r, set()).isdisjoint(group.index)]
            own = own if len(own) else pd.Index(roots)
            own = own if len(own) else group.index.intersection(scanned)
            mine = str(own[0]) if len(own) == 1 else None
            elsewhere = [r for r in group.index if r in parents and mine not in parents[r]]  # another run's children
            families = parent_of[parent_of.index.isin(elsewhere) & parent_of.isin(group.index)]
            for parent, of in families.groupby(families, sort=True):  # a child that is a parent in its turn
                seeds, its = (group.loc[ids, free].to_numpy(dtype=np.int64) for ids in (of.index, [parent]))
                children = [str(run) for run in of.index[distinct(seeds, its)]]
                repeated += [(group.loc[parent], str(parent), children)] if children else []
            rest = group.drop(index=[*([mine] if mine else []), *elsewhere])
            taken = group.loc[[mine] if mine else [], free].to_numpy(dtype=np.int64)
            kept = rest[distinct(rest[free].to_numpy(dtype=np.int64), taken)]
            if mine is None and (kept.index.isin(scanned).all() or kept.index.isin(list(repeats_only)).any()):
                continue  # a scan of the redrawn stream has its own section
            if len(kept):
                first = group[group.index == mine].iloc[0] if mine else group.iloc[0]
                repeated.append((first, mine, [str(run) for run in kept.index]))
        return repeated
