"""Verifies a store's guarantees; reads every byte of its tables and writes nothing."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.errors import one_line
from grok.store.compare import FACTS, MEASUREMENTS, Trace, bits, difference, traces
from grok.store.conflicts import conflict_files
from grok.store.damage import (
    ForeignFile,
    NotAShard,
    ShardDamaged,
    json_columns,
    odd_texts,
    refuse_without_threads,
)
from grok.store.designs import CHOSEN, unsound
from grok.store.layout import Layout, is_current, missing_tables, read_marker, shard_names, strangers
from grok.store.schema import KEYS, TABLES, schema
from grok.store.shards import check_shard, partners, read_shard
from grok.store.unfinished import unfinished_compaction
from grok.untrusted import read_json_object

MOMENT: Final = 0.3
"""Seconds that a writer may take between two renames: what is as odd after it was left by a kill."""

LOOKS: Final = 3
"""Times that a store is read where a sweep removes shards while they are read."""


def verify(path: str | Path) -> list[str]:
    """Return the problems of the store at ``path``, one line each; an empty list: every guarantee holds.

    Checked: every shard is whole and has all current columns; no orphans and no missing
    partners; the key of every table is unique; every point belongs to a run; what designs
    say can be understood, and the parents, donors and lines that they name are stored or
    planned; every JSON text is of its column's type; a completed run's row equals its
    curve's last point; runs of one trajectory and numerics tag have equal bits, and so have a
    run and its trunk up to the switch; the records of sweeps can be read; no
    conflict is recorded. Not checked: checkpoints and kept weights, which are compared with
    their own fingerprints when they are loaded (`grok store verify` checks the checkpoints, too).

    A sweep may write to the store meanwhile: what it commits is not looked at.

    Raises:
        StoreError: no store, or a newer schema.
    """
    layout = Layout(Path(path))
    marker = read_marker(layout)
    if not is_current(marker):
        return [f"the store has the columns of an older version: run `grok store migrate {path}`"]
    refuse_without_threads(layout.root)
    if missing := missing_tables(layout):
        return [f"{path}: its folders {', '.join(missing)} are missing, and all rows in them"]
    for _ in range(LOOKS):
        # listed once: a sweep may commit while this goes on; designs first, because they name runs that are stored
        designs = layout.names("designs") if layout.table("designs").is_dir() else set()
        names = layout.names("runs")
        problems = _problems(layout, names, designs)
        stayed = names <= layout.names("runs") and (not designs or designs <= layout.names("designs"))
        if not problems or stayed:  # else a sweep merged or replaced shards meanwhile
            break
    return problems


def _problems(layout: Layout, names: set[str], designs: set[str]) -> list[str]:
    """Return the problems of the runs and designs in these shards and of all files."""
    unfinished = unfinished_compaction(layout)
    if unfinished is not None:
        time.sleep(MOMENT)
        unfinished = unfinished_compaction(layout)
    problems = [] if unfinished is None else ["a compaction was interrupted: the next command that writes finishes it"]
    problems += _damage(layout)
    if unfinished is None:
        problems += _partners(layout, names)
    tables = {kind: _read_raw(layout, kind, designs if kind == "designs" else names) for kind in TABLES}
    problems += _odd_texts(tables)
    problems += _uniqueness(tables)
    problems += _belonging(tables)
    problems += _purposes(tables)
    points = traces(tables["runs"].select(list(FACTS)), tables["curves"])
    problems += _last_points(tables["runs"], points)
    problems += _disagreements(points)
    problems += [f"{path}: {reason}" for path, reason in unreadable_records(layout)]
    problems += [f"a conflict is recorded: {p}; remove the file when it is settled" for p in conflict_files(layout)]
    return problems


def _damage(layout: Layout) -> Iterator[str]:
    for kind in [kind for kind in TABLES if layout.table(kind).is_dir()]:
        for path in strangers(layout.table(kind)):
            yield f"{path}: not a parquet file; it is not read, but other readers of the folder may fail at it"
        for name in sorted(shard_names(layout.table(kind))):
            path = layout.shard(kind, name)
            try:
                if not check_shard(path, kind, thorough=True).current:
                    yield f"{path}: it does not have the columns of this version"
            except ShardDamaged as damage:
                yield f"{path}: {damage}"
            except ForeignFile as stranger:
                yield f"{path}: not a shard of this store ({stranger}); it is not read, but other readers see its rows"
            except FileNotFoundError:
                yield f"{path}: removed while verifying; verify again when no sweep is writing"


def _orphans(layout: Layout) -> list[tuple[str, str]]:
    """Return table and name of every shard of points without a shard of runs, which a commit writes last."""
    kinds = ("curves", "steps")
    return [(kind, name) for kind in kinds for name in sorted(layout.names(kind) - layout.names("runs"))]


def _partners(layout: Layout, names: set[str]) -> Iterator[str]:
    if orphans := _orphans(layout):
        time.sleep(MOMENT)
        orphans = [orphan for orphan in _orphans(layout) if orphan in orphans]
    for kind, name in orphans:
        reason = "an orphan: its runs were never committed; the next writer moves it to quarantine"
        if os.path.lexists(layout.shard("runs", name)):
            reason = f"its runs cannot be read: {layout.shard('runs', name)} is not a file"
        yield f"{layout.shard(kind, name)}: {reason}"
    for name in sorted(names):
        try:
            missing = [kind for kind in partners(layout.shard("runs", name)) if not layout.shard(kind, name).exists()]
        except (NotAShard, FileNotFoundError):
            continue  # reported by _damage
        for kind in missing:
            yield f"{layout.shard(kind, name)}: missing, but its runs are in {layout.shard('runs', name)}"


def unreadable_records(layout: Layout) -> list[tuple[Path, str]]:
    """Return the records of sweeps that cannot be read, each with the reason."""
    problems = []
    for path in sorted(layout.sweeps.glob("*.json")) if layout.sweeps.is_dir() else []:
        try:
            read_json_object(path)
        except (OSError, ValueError) as error:
            problems.append((path, f"the record cannot be read ({one_line(error)})"))
    return problems


def _read_raw(layout: Layout, kind: str, names: set[str]) -> pa.Table:
    """Return all rows of a table's shards ``names``, copies included, with the columns that the checks need."""
    needed = {
        "runs": [*dict.fromkeys([*FACTS, *MEASUREMENTS[:-1]])],
        "curves": ["run_id", "step", *MEASUREMENTS],
        "steps": ["run_id", "step"],
        "designs": schema("designs").names,
    }[kind] + list(json_columns(kind))
    tables = [pa.table({name: pa.array([], schema(kind).field(name).type) for name in needed})]
    for name in sorted(names & layout.names(kind)) if names else ():
        try:
            table = read_shard(layout.shard(kind, name), kind, needed)
        except (NotAShard, FileNotFoundError):
            continue  # reported by _damage
        tables.append(table.replace_schema_metadata(None).cast(tables[0].schema))
    return pa.concat_tables(tables)


def _odd_texts(tables: dict[str, pa.Table]) -> Iterator[str]:
    """Say which texts are not JSON of their column's type: readers leave them out."""
    for kind, table in tables.items():
        for name, (texts, reason) in odd_texts(kind, table).items():
            for run_id in pc.unique(table.filter(pc.is_in(table[name], value_set=texts))["run_id"]).to_pylist():
                yield f"{kind}: {name} of run {run_id} is not as it was written ({reason})"


def _uniqueness(tables: dict[str, pa.Table]) -> Iterator[str]:
    for kind, keys in KEYS.items():
        counted = tables[kind].group_by(list(keys)).aggregate([([], "count_all")])
        for row in counted.filter(pc.greater(counted["count_all"], 1)).to_pylist():
            others = "".join(f", {name.removesuffix('_id')} {row[name]}" for name in keys if name != "run_id")
            yield f"{kind}: run {row['run_id']}{others} is stored {row['count_all']} times"


def _belonging(tables: dict[str, pa.Table]) -> Iterator[str]:
    known = tables["runs"]["run_id"]
    for kind in ("curves", "steps"):
        run_ids = pc.unique(tables[kind]["run_id"])
        for run_id in run_ids.filter(pc.invert(pc.is_in(run_ids, value_set=known.combine_chunks()))).to_pylist():
            yield f"{kind}: points of run {run_id}, which has no row"


def _purposes(tables: dict[str, pa.Table]) -> Iterator[str]:
    designs = tables["designs"]
    for row, why in unsound(designs).items():
        yield f"designs: run {str(designs['run_id'][row])[:80]} of design {str(designs['design_id'][row])[:80]}: {why}"
    roles = designs["role"]
    # parents, candidates and controls are chosen among stored runs, and such a row plans no training of theirs
    chosen = pc.is_in(roles, value_set=pa.array(CHOSEN))
    known = {*tables["runs"]["run_id"].to_pylist(), *designs.filter(pc.invert(chosen))["run_id"].to_pylist()}
    named = [(name, designs[name]) for name in ("parent_run_id", "donor_run_id", "line")]
    named += [(role, designs.filter(pc.equal(roles, role))["run_id"]) for role in CHOSEN]
    for name, run_ids in named:
        for run_id in dict.fromkeys(run_ids.drop_null().to_pylist()):
            if run_id not in known:
                known.add(run_id)  # one line is enough
                yield f"designs: the {name} {run_id[:80]} is neither stored nor planned"


def _last_points(runs: pa.Table, points: dict[str, Trace]) -> Iterator[str]:
    for row in runs.to_pylist():
        trace = points[row["run_id"]]
        if row["status"] != "completed":
            continue
        if not len(trace.at) or trace.at[-1] != row["steps"]:
            last = trace.at[-1] if len(trace.at) else "none"
            yield f"run {row['run_id']}: completed at step {row['steps']}, its curve's last step is {last}"
            continue
        for i, name in enumerate(MEASUREMENTS[:-1]):
            mine = pa.array([row[name]], pa.float64()).to_numpy(zero_copy_only=False)
            if bits(mine)[0] != bits(trace.values[-1:, i])[0]:
                yield f"run {row['run_id']}: {name} is {row[name]} in runs and {trace.values[-1, i]} in curves"


def _disagreements(points: dict[str, Trace]) -> Iterator[str]:
    groups: dict[tuple[str, str | None], list[Trace]] = defaultdict(list)
    for trace in points.values():
        groups[trace.trajectory_id, trace.numerics].append(trace)
    for group in groups.values():
        group.sort(key=lambda trace: (-len(trace.at), trace.run_id))
        for i, a in enumerate(group):
            for b in group[i + 1 :]:
                conflict = difference(a, b)
                if conflict is not None:
                    yield f"equal trajectory and numerics, different bits: {conflict}"
    for trace in points.values():
        if (trunk := trace.trunk()) in points and (conflict := difference(trace, points[str(trunk)])) is not None:
            yield f"a run and its trunk, different bits before the switch: {conflict}"
