"""Upkeep of a store: compaction, migration to this version's columns, verification of the guarantees.

The compacted tables are built in ``tmp/`` as whole folders; large shards that need no
work are linked into them. Then one system call per table exchanges its folder with the
new one. A process that lists a table sees all old shards or all new ones; both hold the
same rows. A raw reader that listed the folder before the exchange may find a file
missing: it gets an error, never wrong numbers, and must list again.
:class:`grok.store.reader.Store` does so by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.errors import StoreError, one_line
from grok.files import disk_errors, exchange, flush_folder, locked, unique, write_json
from grok.store import recovery, shards
from grok.store.designs import CHOSEN, unsound
from grok.store.layout import (
    EMPTY,
    Layout,
    current_marker,
    is_current,
    make_store,
    missing_tables,
    orphans,
    read_marker,
    refuse_missing,
    refuse_older,
    shard_names,
    strangers,
)
from grok.store.rows import FACTS, MEASUREMENTS, Trace, bits, difference, pairs_to_compare, traces
from grok.store.schema import KEYS, OF_KINDS, SHARDS, TABLES, schema, upgrade
from grok.untrusted import is_folder, open_file, read_json_object

SHARD_ROWS: Final = 1_000_000
"""Rows after which a compacted shard is closed: limits memory, and the loss when a shard is damaged."""

SMALL: Final = 64
"""A shard with fewer runs is small. A writer that finds this many small shards merges them."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The number of shards of runs before and after."""

    before: int
    after: int
    recovered: list[recovery.Recovered]
    """The repairs that were made first."""
    designs: int = 0
    """Number of shards of designs that are fewer now."""

    def __str__(self) -> str:
        designs = f", {self.designs} fewer of designs" if self.designs else ""
        if self.after < self.before:
            return f"{self.before} shards, now {self.after}{designs}"
        return f"{self.before} shards: nothing to do{designs}"


def compact(path: str | Path, shard_rows: int = SHARD_ROWS) -> Compaction:
    """Merge the shards of the store at ``path`` and return their number before and after.

    Commits wait meanwhile; readers do not. A kill leaves the old shards, the new ones, or
    a partial exchange, which the next writer finishes.

    Raises:
        StoreError: no store, an older or newer schema, a full disk, or a file system
            that cannot exchange folders (NFS): ``merge`` into a new store compacts there.
    """
    layout = Layout(Path(path))
    read_marker(layout)
    make_store(path)
    shards.refuse_without_threads(layout.root)
    with disk_errors(f"compacting {path}"), locked(layout.lock):
        refuse_older(layout)
        for folder in (path for kind in TABLES for path in strangers(layout.table(kind)) if is_folder(path)):
            raise StoreError(f"{folder} is a folder among shards: move it away, then compact again")
        recovered = recovery.recover(layout, thorough=True)
        before, designs = own_shards(layout), own_shards(layout, "designs")
        if not can_exchange(layout):
            raise StoreError(
                f"{path}: this file system cannot exchange two folders in one step, so compacting here would show "
                f"readers missing or repeated rows for a moment: run `grok store merge {path} --into NEW` instead"
            )
        merge_shards(layout, before, shard_rows)
        merge_shards(layout, designs, shard_rows, of="designs")
        fewer = len(designs) - len(own_shards(layout, "designs"))
        return Compaction(len(before), len(own_shards(layout)), recovered, fewer)


def merge_shards(layout: Layout, sizes: Mapping[str, int], shard_rows: int = SHARD_ROWS, of: str = "runs") -> None:
    """Merge these shards of an intact store into shards of up to ``shard_rows`` rows. The caller holds the lock.

    ``sizes``: their names, with the number of rows.

    Shards of designs are one table, so one exchange is all: a kill leaves nothing to finish.

    Raises:
        ShardDamaged: one of them is damaged; nothing has changed.
        OSError: the disk refuses; nothing has changed.
    """
    groups = [group for group in _groups(sizes, shard_rows) if len(group) > 1]
    if not groups:
        return
    folder = layout.tmp / f"{recovery.COMPACTION if of == 'runs' else f'{of}.'}{unique()}"
    try:
        _make_ready(layout, folder, of, groups)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for kind in reversed(SHARDS[of]):
        exchange(folder / kind, layout.table(kind))
    recovery.remove_compaction(folder)


def own_shards(layout: Layout, of: str = "runs") -> dict[str, int]:
    """Return the number of rows in all tables of each of the store's own shards, by name; foreign files are left out.

    Raises:
        ShardDamaged: a shard is damaged.
    """
    own = {}
    for name in layout.names(of):
        tables = {kind: path for kind in SHARDS[of] if (path := layout.shard(kind, name)).exists()}
        with suppress(shards.ForeignFile):
            facts = [shards.check_shard(path, kind, thorough=False) for kind, path in tables.items()]
            if all(table.current for table in facts):
                own[name] = sum(table.rows for table in facts)
    return own


def _groups(sizes: Mapping[str, int], shard_rows: int) -> Iterator[list[str]]:
    """Yield the names of shards to merge into one, the smallest first."""
    group: list[str] = []
    rows = 0
    for name, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
        if group and rows + size > shard_rows:
            yield group
            group, rows = [], 0
        group.append(name)
        rows += size
    if group:
        yield group


def _make_ready(layout: Layout, folder: Path, of: str, groups: list[list[str]]) -> None:
    kinds = SHARDS[of]
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
    for group in groups:
        if of == "runs":
            name = unique()
            for kind, table in shards.concat([shards.read_whole(layout, one) for one in group]).written().items():
                shards.write_table(folder / kind / f"{name}.parquet", table)
        else:
            rows = shards.joined(of, [shards.read_shard(layout.shard(of, name), of) for name in group])
            shards.write_table(folder / of / f"{unique()}.parquet", rows)
    merged = {EMPTY, *(name for group in groups for name in group)}
    for kind in kinds:
        with os.scandir(layout.table(kind)) as entries:  # large shards and foreign files: linked into the new table
            for entry in entries:
                if entry.name.removesuffix(".parquet") not in merged or not entry.name.endswith(".parquet"):
                    os.link(entry.path, folder / kind / entry.name, follow_symlinks=False)
    for kind in kinds:
        if not shard_names(folder / kind):
            shards.write_table(folder / kind / f"{EMPTY}.parquet", schema(kind).empty_table())
        flush_folder(folder / kind)
    if of != "runs":
        return
    (folder / recovery.READY).touch()
    flush_folder(folder)
    flush_folder(layout.tmp)


def can_exchange(layout: Layout) -> bool:
    """Return whether the file system can exchange two folders; tries it on empty ones. The caller holds the lock."""
    a, b = layout.tmp / f"try.{unique()}", layout.tmp / f"try.{unique()}"
    a.mkdir()
    b.mkdir()
    try:
        exchange(a, b)
    except OSError:
        return False
    finally:
        a.rmdir()
        b.rmdir()
    return True


# Migration: rewrites the shards of an older schema with this version's columns.
#
# Reading does not need a migration: older shards are upgraded in memory. Writing needs it,
# because every shard of a store has the same columns.


@dataclass(slots=True)
class Migration:
    """The result of a migration."""

    from_version: int
    shards: int = 0
    """Number of files that were rewritten."""
    recovered: list[recovery.Recovered] = field(default_factory=list)


def migrate(path: str | Path) -> Migration:
    """Rewrite every shard of an older schema in place, each by one rename.

    Readers see every row once at every moment; during the migration some shards have the
    new columns and some the old ones. ``store.json`` is replaced last, so the same
    command finishes a migration that was killed.

    Raises:
        StoreError: no store, a newer schema, one too old to migrate, or a full disk;
            the first three before anything is written.
    """
    layout = Layout(Path(path))
    marker = read_marker(layout)
    done = Migration(marker["schema_version"])
    shards.refuse_without_threads(layout.root)
    refuse_missing(layout)
    _refuse_unknown(layout)
    make_store(path)
    with disk_errors(f"migrating {path}"), locked(layout.lock):
        recovery.finish_compaction(layout)
        for of, kind in OF_KINDS:
            for name in sorted(shard_names(layout.table(kind))):
                shard = layout.shard(kind, name)
                try:
                    if shards.check_shard(shard, kind, thorough=False).current:
                        continue
                    shards.replace_table(layout, kind, name, shards.read_shard(shard, kind))
                    done.shards += 1
                except (FileNotFoundError, shards.ForeignFile):  # in quarantine with its runs; is not changed
                    continue
                except shards.ShardDamaged as damage:
                    if name == EMPTY:
                        shard.unlink()
                    else:
                        done.recovered.append(recovery.quarantine(layout, name, f"{kind}: {damage}", of=of))
        if not is_current(marker):
            write_json(layout.marker, current_marker(), layout.tmp)
        done.recovered += recovery.recover(layout, thorough=False)
    return done


def _refuse_unknown(layout: Layout) -> None:
    """Raise StoreError where a shard cannot be migrated; tries the upgrade on every shard's columns without rows."""
    for kind in TABLES:
        for name in sorted(shard_names(layout.table(kind))):
            try:
                with shards.open_shard(layout.shard(kind, name), kind) as file:
                    columns = file.schema_arrow.with_metadata(file.metadata.metadata)
                upgrade(kind, columns.empty_table())
            except shards.NotAShard:
                continue  # goes to quarantine, or is not changed
            except (pa.ArrowException, KeyError) as error:
                raise StoreError(f"{layout.shard(kind, name)} cannot be migrated: {error}") from error


# Verifies a store's guarantees; reads every byte of its tables and writes nothing.

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
    shards.refuse_without_threads(layout.root)
    if missing := missing_tables(layout):
        return [f"{path}: its folders {', '.join(missing)} are missing, and all rows in them"]
    for _ in range(LOOKS):
        # listed once: a sweep may commit while this goes on; designs first, because they name runs that are stored
        designs, names = layout.names("designs"), layout.names("runs")
        problems = _problems(layout, names, designs)
        # else a sweep merged or replaced shards meanwhile
        if not problems or (names <= layout.names("runs") and designs <= layout.names("designs")):
            break
    return problems


def _problems(layout: Layout, names: set[str], designs: set[str]) -> list[str]:
    """Return the problems of the runs and designs in these shards and of all files."""
    unfinished = recovery.unfinished_compactions(layout)
    if unfinished:
        time.sleep(MOMENT)
        unfinished = recovery.unfinished_compactions(layout)
    problems = ["a compaction was interrupted: the next command that writes finishes it"] if unfinished else []
    problems += _damage(layout)
    if not unfinished:
        problems += _partners(layout, names)
    tables = {kind: _read_raw(layout, kind, designs if kind == "designs" else names) for kind in TABLES}
    problems += _odd_texts(tables)
    problems += _uniqueness(tables)
    problems += _belonging(tables)
    problems += _purposes(tables)
    points = traces(tables["runs"], tables["curves"])
    problems += _last_points(tables["runs"], points)
    problems += _disagreements(points)
    problems += [f"{path}: {reason}" for path, reason in unreadable_records(layout)]
    problems += [
        f"a conflict is recorded: {p}; remove the file when it is settled" for p in recovery.conflict_files(layout)
    ]
    return problems


def _damage(layout: Layout) -> Iterator[str]:
    for kind in TABLES:
        for path in strangers(layout.table(kind)):
            yield f"{path}: not a parquet file; it is not read, but other readers of the folder may fail at it"
        for name in sorted(shard_names(layout.table(kind))):
            path = layout.shard(kind, name)
            try:
                if not shards.check_shard(path, kind, thorough=True).current:
                    yield f"{path}: it does not have the columns of this version"
            except shards.ShardDamaged as damage:
                yield f"{path}: {damage}"
            except shards.ForeignFile as stranger:
                yield f"{path}: not a shard of this store ({stranger}); it is not read, but other readers see its rows"
            except FileNotFoundError:
                yield f"{path}: removed while verifying; verify again when no sweep is writing"


def _partners(layout: Layout, names: set[str]) -> Iterator[str]:
    if left := orphans(layout):
        time.sleep(MOMENT)
        left = [name for name in orphans(layout) if name in left]
    for name in left:
        yield f"{name}: an orphan: its runs were never committed; the next writer moves it to quarantine"
    for name in sorted(names):
        try:
            missing = [
                kind for kind in shards.partners(layout.shard("runs", name)) if not layout.shard(kind, name).exists()
            ]
        except (shards.NotAShard, FileNotFoundError):
            continue  # reported by _damage
        for kind in missing:
            yield f"{layout.shard(kind, name)}: missing, but its runs are in {layout.shard('runs', name)}"


def unreadable_records(layout: Layout) -> list[tuple[Path, str]]:
    """Return the records of sweeps and the journals of searches that cannot be read, each with the reason."""
    problems = []
    for path in [*sorted(layout.sweeps.glob("*.json")), *sorted(layout.search.glob("*.journal"))]:
        try:
            if path.suffix == ".json":
                read_json_object(path)
                continue
            with open_file(path) as journal:
                *lines, _ = journal.read().split(b"\n")  # a line that is being written has no end yet
            for line in lines:
                json.loads(line)
        except (OSError, ValueError, RecursionError) as error:
            problems.append((path, f"the record cannot be read ({one_line(error)})"))
    return problems


def _read_raw(layout: Layout, kind: str, names: set[str]) -> pa.Table:
    """Return all rows of a table's shards ``names``, copies included, with the columns that the checks need."""
    needed = {
        "runs": [*dict.fromkeys([*FACTS, *MEASUREMENTS[:-1]])],
        "curves": ["run_id", "step", *MEASUREMENTS],
        "steps": ["run_id", "step"],
        "designs": schema("designs").names,
    }[kind] + list(shards.json_columns(kind))
    tables = [pa.table({name: pa.array([], schema(kind).field(name).type) for name in needed})]
    for name in sorted(names & layout.names(kind)):
        try:
            table = shards.read_shard(layout.shard(kind, name), kind, needed)
        except (shards.NotAShard, FileNotFoundError):
            continue  # reported by _damage
        tables.append(table.replace_schema_metadata(None).cast(tables[0].schema))
    return pa.concat_tables(tables)


def _odd_texts(tables: dict[str, pa.Table]) -> Iterator[str]:
    """Say which texts are not JSON of their column's type: readers leave them out."""
    for kind, table in tables.items():
        for name, (texts, reason) in shards.odd_texts(kind, table).items():
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
    for a, b in pairs_to_compare(points.values(), points.values()):
        if a.run_id < b.run_id and (conflict := difference(a, b)) is not None:
            both = "equal trajectory and numerics" if a.trajectory_id == b.trajectory_id else "a run and its trunk"
            yield f"{both}, different bits: {conflict}"
