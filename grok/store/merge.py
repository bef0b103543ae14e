"""Brings runs into a store from other stores and from quarantine. Conflicts are reported; no side is preferred."""

from __future__ import annotations

import filecmp
import itertools
import math
import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grok import files
from grok.errors import StoreError
from grok.store.designs import keys_of, with_values
from grok.store.layout import Layout, check_path, read_marker, shard_names
from grok.store.reader import Store, open_store
from grok.store.recovery import Recovered, origin, record_conflict
from grok.store.rows import (
    FACTS,
    MEASUREMENTS,
    Conflict,
    Shard,
    Trace,
    difference,
    filter_runs,
    pairs_to_compare,
    repeats,
    traces,
)
from grok.store.schema import KEYS, POINTS_OF, SHARDS, TABLES, schema
from grok.store.shards import NotAShard, check_shard, concat, joined, partners, read_shard, without_runs
from grok.store.writer import StoreWriter
from grok.untrusted import is_file, is_folder, is_plain, plain_name

MERGED_ROWS = 1_000_000
"""Number of rows of a source that are gathered before they are written as one shard."""


@dataclass(slots=True)
class MergeReport:
    """The result of a merge."""

    into: Path
    added: int = 0
    """Number of runs that are new in the target."""
    replaced: int = 0
    """Number of runs that the target held as failed."""
    duplicates: int = 0
    """Number of runs that the target already held, with the same bits or from other numerics: its rows stay."""
    conflicts: list[Conflict] = field(default_factory=list)
    checkpoints: int = 0
    """Number of runs whose checkpoints and kept weights were copied."""
    designs: int = 0
    """Number of rows of designs that are new in the target."""
    late: int = 0
    """Number of runs of which no row of designs is from before a result any more: another of the stores had one."""
    studies: list[str] = field(default_factory=list)
    """Names of the searches that were copied."""
    studies_left: list[str] = field(default_factory=list)
    """Names of the searches that were not copied: the target has a different one of that name."""


def merge(first: str | Path, others: Sequence[str | Path], into: str | Path | None = None) -> MergeReport:
    """Merge stores into ``first``, or all of them into the new or existing store ``into``.

    The sources are only read. A run in a conflict (equal trajectory and numerics tag,
    different bits) is not copied; the target's own rows stay. Each conflict is recorded
    in ``conflicts/`` of the target.

    Raises:
        StoreError: a path is not a store, the target is one of the sources, or the disk
            refuses.
    """
    target = Path(first if into is None else into)
    sources = [Path(p) for p in others] if into is None else [Path(first), *(Path(p) for p in others)]
    check_path(target)
    stores = [open_store(path) for path in sources]
    if not sources:
        raise StoreError(f"merge {first}: name at least one more store")
    for path in sources:
        if target.exists() and target.samefile(path):
            raise StoreError(f"merge: {path} cannot be merged into itself: name two different stores")
    for store in stores:  # a run's name becomes that of a folder; nothing is written yet
        for run_id in store.table("runs", None, ["run_id"])["run_id"].to_pylist():
            plain_name(run_id, f"{store.layout.root}: run_id")
        for name in ("design_id", "run_id"):
            for text in store.designs_table([])[name].unique().to_pylist():
                plain_name(text, f"{store.layout.root}/designs: {name}")
    with StoreWriter(target) as writer, files.disk_errors(f"merging into {target}"):
        report = MergeReport(target)
        if is_folder(writer.layout.checkpoints):
            files.clear_unfinished(writer.layout.checkpoints)
        barred = _bar_conflicts(writer.layout, open_store(target), stores, report)
        in_time = [_named(store, seen=False) for store in (open_store(target), *stores)]
        own, *arriving = _with_results([open_store(target), *stores])
        tables = {str(s.layout.root): table for s, table in zip(stores, arriving, strict=True)}
        writer.mark_results(set(keys_of(own.filter(own["results_seen"]))))
        report.designs, unequal = writer.merge_designs(tables)
        report.conflicts += unequal
        for source, left_out in zip(stores, barred, strict=True):
            _merge_one(writer, source, left_out, report)
        merged = open_store(target)
        late = _named(merged, seen=True) - _named(merged, seen=False)
        report.late = len(late.intersection(set().union(*in_time)))
    return report


def _bar_conflicts(layout: Layout, target: Store, sources: list[Store], report: MergeReport) -> list[set[str]]:
    """Record every conflict between the stores; return for each source the runs that must not be copied."""
    everything = [target, *sources]
    barred: list[set[str]] = [set() for _ in everything]
    for (i, a), (j, b) in itertools.combinations(enumerate(everything), 2):
        for conflict in find_conflicts(a, b):
            barred[i].add(conflict.run_id)
            barred[j].add(conflict.other_run_id)
            report.conflicts.append(conflict)
            sides = {
                str(s.layout.root): origin(s.table("runs", [r], None), r)
                for s, r in ((a, conflict.run_id), (b, conflict.other_run_id))
            }
            with files.locked(layout.lock):  # else a writer that opens the store would empty tmp/ meanwhile
                record_conflict(layout, conflict, sides)
    return barred[1:]  # without the target itself: its rows stay


def _named(store: Store, seen: bool) -> set[str]:
    """Return the runs that rows of designs with this ``results_seen`` name."""
    table = store.designs_table(["results_seen"])
    return set(table.filter(pc.equal(table["results_seen"], seen))["run_id"].to_pylist())


def _with_results(stores: list[Store]) -> list[pa.Table]:
    """Return the designs of each store, with ``results_seen`` where a result of another store ended before the plan.

    No run counts that is in a store with the very row of the design, be it this one or one that has a copy: there it
    was counted when it was trained or the row came, and the clocks of other stores may be late.
    """
    tables, held, results, trajectories = [], [], defaultdict(list), {}
    for store in stores:
        runs = store.table("runs", None, ["run_id", "trajectory_id", "status", "started_at", "seconds"])
        runs = runs.filter(pc.not_equal(runs["status"], "failed"))
        ended = pc.fill_null(pc.add(_seconds(runs["started_at"]), pc.fill_null(runs["seconds"], 0.0)), math.inf)
        own = list(zip(*_columns(runs, "run_id", "started_at"), strict=True))
        for run, trajectory, end in zip(own, runs["trajectory_id"].to_pylist(), ended.to_pylist(), strict=True):
            trajectories[run[0]] = trajectory
            results[trajectory].append((end, run))
        tables.append(table := store.designs_table())
        held.append({*own, *zip(keys_of(table), table["planned_at"].to_pylist(), strict=True)})
    for at, table in enumerate(tables):
        seen = table["results_seen"].to_pylist()
        copies = zip(keys_of(table), table["planned_at"].to_pylist(), strict=True)
        rows = zip(copies, _seconds(table["planned_at"]).to_pylist(), *_columns(table, "run_id", "origin"), strict=True)
        for i, (copy, planned, run_id, made) in enumerate(rows):
            knowing = [here for here in held if copy in here]
            seen[i] |= made == "planned" and any(
                end <= planned and not any(run in here for here in knowing)
                for end, run in results.get(trajectories.get(run_id, ""), ())
            )
        tables[at] = with_values(table, "results_seen", seen)
    return tables


def _seconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times as seconds since 1970."""
    return pc.divide(pc.cast(times.cast("int64"), "float64"), 1e6)


def _merge_one(writer: StoreWriter, source: Store, left_out: set[str], report: MergeReport) -> None:
    waiting: list[Shard] = []
    for shard in source.shards():
        waiting.append(without_runs(shard, left_out))
        if sum(s.curves.num_rows + s.steps.num_rows for s in waiting) >= MERGED_ROWS:
            _commit(writer, source, waiting, report)
            waiting = []
    _commit(writer, source, waiting, report)
    _copy_files(source.layout.sweeps, writer.layout.sweeps, "*.json")
    studies, left = _copy_files(source.layout.search, writer.layout.search, "*.journal")
    report.studies += studies
    report.studies_left += left  # two journals of one name cannot be joined


def _commit(writer: StoreWriter, source: Store, shards: list[Shard], report: MergeReport) -> None:
    shards = [shard for shard in shards if shard.runs.num_rows]
    if not shards:
        return
    shard = concat(shards)
    report.checkpoints += _copy_checkpoints(shard, source.layout, writer.layout)
    done = writer.commit_shard(shard)
    report.added += len(done.written)
    report.replaced += len(done.replaced)
    report.duplicates += len(done.duplicates)
    report.conflicts += done.conflicts


def _copy_checkpoints(shard: Shard, source: Layout, target: Layout) -> int:
    """Copy the checkpoints and kept weights that belong to the rows of ``shard``; return the number of runs.

    Where the target keeps its own row of a run, weights with another hash do not belong to it, and of equal ones
    only those that it lacks are copied. Where it has no row, or a failed one, its folder is what an interrupted or
    failed try left, and that of a run that ended otherwise replaces it.
    """
    columns = ["run_id", "status", "weights_hash"]
    rows = open_store(target.root).table("runs", shard.runs["run_id"].to_pylist(), columns).to_pylist()
    kept = {row["run_id"]: row["weights_hash"] for row in rows if row["status"] != "failed"}
    copied = 0
    for row in shard.runs.select(columns).to_pylist():
        run_id = plain_name(row["run_id"], "run_id")
        theirs, own = source.checkpoints / run_id, target.checkpoints / run_id
        belongs = kept.get(run_id, row["weights_hash"]) == row["weights_hash"]
        if not (belongs and is_folder(source.checkpoints) and is_folder(theirs)):
            continue
        if not os.path.lexists(own):
            _copy_folder(theirs, own)
            copied += 1
        elif not is_folder(own):
            continue  # a link, which leads out of the store
        elif run_id in kept:
            weights = sorted(path for path in theirs.glob("weights-*") if is_plain(path.name) and is_folder(path))
            lacking = [path for path in weights if not os.path.lexists(own / path.name)]
            for path in lacking:
                _copy_folder(path, own / path.name)
            copied += bool(lacking)
        elif row["status"] != "failed" and any(theirs.iterdir()):
            _copy_folder(theirs, own)
            copied += 1
    return copied


def find_conflicts(a: Store, b: Store) -> list[Conflict]:
    """Return the conflicts between runs of two stores; ``run_id`` is in ``a``, ``other_run_id`` in ``b``.

    Only runs that may have to agree are read: of equal trajectory and numerics tag, or a run and its trunk.
    """
    facts_a, facts_b = a.table("runs", None, FACTS), b.table("runs", None, FACTS)
    no_curves = schema("curves").empty_table()
    runs_a, runs_b = traces(facts_a, no_curves).values(), traces(facts_b, no_curves).values()
    pairs = [(mine.run_id, theirs.run_id) for mine, theirs in pairs_to_compare(runs_a, runs_b)]
    in_a = _traces_of(a, facts_a, {mine for mine, _ in pairs})
    in_b = _traces_of(b, facts_b, {theirs for _, theirs in pairs})
    found = (difference(in_a[mine], in_b[theirs]) for mine, theirs in pairs)
    return [conflict for conflict in found if conflict is not None]


def _traces_of(store: Store, facts: pa.Table, run_ids: set[str]) -> dict[str, Trace]:
    curves = store.table("curves", run_ids, ["run_id", "step", *MEASUREMENTS])
    return traces(filter_runs(facts, pa.array(sorted(run_ids), pa.string())), curves)


def _columns(table: pa.Table, *names: str) -> list[list[Any]]:
    return [table[name].to_pylist() for name in names]


def _copy_folder(source: Path, target: Path) -> None:
    """Copy the folder ``source`` to ``target`` with one rename, flushed; an existing one is replaced.

    Symbolic links are not copied: they may point outside the store. Hard links to one file stay links to one copy.
    """

    def odd(folder: str, names: list[str]) -> list[str]:
        paths = [Path(folder, name) for name in names]
        return [path.name for path in paths if files.is_unfinished(path) or not (is_file(path) or is_folder(path))]

    def write(folder: Path) -> None:
        copies: dict[tuple[int, int], Path] = {}

        def copy(file: str, to: str) -> None:
            about = os.lstat(file)
            first = copies.setdefault((about.st_dev, about.st_ino), Path(to))
            if first == Path(to) or not files.share_file(first, Path(to)):
                shutil.copy2(file, to, follow_symlinks=False)

        shutil.copytree(source, folder, symlinks=True, ignore=odd, copy_function=copy, dirs_exist_ok=True)

    with files.disk_errors(f"copying {source}"):
        files.write_folder(target, write)


def _copy_files(source: Path, target: Path, pattern: str) -> tuple[list[str], list[str]]:
    """Copy the files whose names are free in the target; return their stems, and those of files that differ there."""
    copied, left = [], []
    for path in sorted(source.glob(pattern)) if is_folder(source) else []:
        place, copy = target / path.name, target / f".{path.name}.{files.unique()}"
        if not is_file(path) or not is_plain(path.name):
            continue
        if os.path.lexists(place):
            left += [] if is_file(place) and filecmp.cmp(path, place, shallow=False) else [path.stem]
            continue
        with files.disk_errors(f"copying {path}"):
            target.mkdir(exist_ok=True)
            try:
                shutil.copy(path, copy, follow_symlinks=False)
                files.flush_file(copy)
                files.move(copy, place)
            finally:
                copy.unlink(missing_ok=True)
        copied.append(path.stem)
    return copied, left


# Restores the runs of whole files in ``quarantine/``.
#
# A shard goes to quarantine when its bytes differ from those that were written, or when one
# of its tables is missing. The file may be whole again (from a backup, for example), or the
# missing table may also be in quarantine. Rows are matched by ``run_id``, not by file name.


@dataclass(slots=True)
class Restoration:
    """The result of a restoration."""

    runs: list[str] = field(default_factory=list)
    """Runs that were restored."""
    designs: int = 0
    """Number of rows of designs that were restored."""
    stored: int = 0
    """Number of runs in quarantine that the store already holds."""
    left: list[str] = field(default_factory=list)
    """Files that stay in quarantine, each with the reason."""
    conflicts: list[Conflict] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    """The repairs that were made first."""


def restore(path: str | Path) -> Restoration:
    """Commit every run in quarantine that has its row and all its points, and remove its file from quarantine.

    A run that the store already holds is compared like any late duplicate. Damaged files,
    and points without their runs, stay in quarantine.

    Raises:
        StoreError: no store, an older or newer schema, a full disk, or a file that cannot be read at the moment.
    """
    read_marker(Layout(Path(path)))
    with StoreWriter(path) as writer:
        done = Restoration(recovered=writer.recovered)
        tables = _whole_tables(writer.layout, done)
        points = {kind: _joined(kind, tables[kind]) for kind in POINTS_OF}
        incomplete: dict[Path, set[str]] = {}
        for file, runs in tables["runs"].items():
            shard = _with_points(file, runs, points)
            incomplete[file] = {*runs["run_id"].to_pylist()}.difference(shard.runs["run_id"].to_pylist())
            report = writer.commit_shard(shard)
            done.runs += report.written + report.replaced
            done.stored += len(report.duplicates)
            done.conflicts += report.conflicts
        for file, rows in tables["designs"].items():
            added, unequal = writer.merge_designs({str(file): rows})
            done.designs += added
            done.conflicts += unequal
        store = open_store(path)
        unequal_runs = {conflict.run_id for conflict in done.conflicts}
        for kind in TABLES:
            for file, table in tables[kind].items():
                run_ids = set(table["run_id"].to_pylist())
                stored = _columns(store.table(kind, run_ids, []), *KEYS[kind])
                lacking = set(zip(*_columns(table, *KEYS[kind]), strict=True)).difference(zip(*stored, strict=True))
                lacking |= {(run_id,) for run_id in incomplete.get(file, ())}  # not compared with a stored row
                if lacking:
                    done.left.append(f"{file}: {len(lacking)} of its rows cannot be restored without others")
                elif not run_ids & unequal_runs:
                    _remove(writer.layout, file)
    return done


def _whole_tables(layout: Layout, done: Restoration) -> dict[str, dict[Path, pa.Table]]:
    """Return the whole tables in quarantine by file."""
    tables: dict[str, dict[Path, pa.Table]] = {kind: {} for kind in TABLES}
    for name in sorted(shard_names(layout.quarantine)):
        kind = name.partition("-")[0]
        if kind not in TABLES:
            continue
        file = layout.quarantine / f"{name}.parquet"
        try:
            check_shard(file, kind, thorough=True)
            table = read_shard(file, kind)
        except NotAShard as problem:
            done.left.append(f"{file}: {problem}")
            continue
        if kind in SHARDS and not all(map(is_plain, table["run_id"].to_pylist())):
            done.left.append(f"{file}: a run_id in it is not a plain name")
            continue
        tables[kind][file] = table
    return tables


def _joined(kind: str, tables: dict[Path, pa.Table]) -> pa.Table:
    """Return the points of all tables; of equal (``run_id``, ``step``) only one."""
    whole = joined(kind, tables.values())
    return whole.filter(pc.invert(repeats(whole, KEYS[kind])))


def _with_points(file: Path, runs: pa.Table, points: dict[str, pa.Table]) -> Shard:
    """Return the runs that have all their points."""
    wanted = runs["run_id"].combine_chunks()
    shard = Shard(runs, *(filter_runs(points[kind], wanted) for kind in POINTS_OF))
    if any(not shard.table(kind).num_rows for kind in partners(file)):
        return shard.only(set())
    last: dict[str, int] = defaultdict(lambda: -1)
    for run_id, step in zip(shard.curves["run_id"].to_pylist(), shard.curves["step"].to_pylist(), strict=True):
        last[run_id] = max(last[run_id], step)
    rows = runs.select(["run_id", "status", "steps"]).to_pylist()
    return shard.only(
        {row["run_id"] for row in rows if row["status"] != "completed" or last[row["run_id"]] == row["steps"]}
    )


def _remove(layout: Layout, file: Path) -> None:
    """Remove a file from quarantine, and its reason if no other file of the shard is left."""
    with files.locked(layout.lock):
        file.unlink(missing_ok=True)
        name = file.stem.partition("-")[2]
        if not any(other.name.endswith(f"-{name}.parquet") for other in layout.quarantine.iterdir()):
            (layout.quarantine / f"{name}.json").unlink(missing_ok=True)
