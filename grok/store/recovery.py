"""Recovery: the repairs made when a store is opened for writing, after a kill, a crash or damage to the disk.

Every repair holds the store's lock. Their order is such that a second kill at any point
leaves a state that the next opening can repair. Only files that are proven to be damaged
are moved; a file that is only unreadable at the moment ends the command before any repair.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from grok.errors import StoreError
from grok.files import remove_quietly
from grok.store.compare import difference, traces
from grok.store.conflicts import origin, record_conflict, record_design_conflicts
from grok.store.damage import ForeignFile, NotAShard, ShardDamaged
from grok.store.designs import keys_of, settled
from grok.store.layout import EMPTY, Layout, list_tables, orphans, shard_names, strangers
from grok.store.quarantine import Recovered, keep_copy, quarantine
from grok.store.rows import Shard
from grok.store.schema import SHARDS, TABLES, schema
from grok.store.shards import check_shard, ensure_readable, read_shard, read_whole, remove_runs, replace_table
from grok.store.unfinished import LEFT, finish_compaction


class ForeignFileWarning(UserWarning):
    """A file in a table's folder is not a shard of this store; it is not moved, and its rows are not read."""


def recover(layout: Layout, *, thorough: bool) -> list[Recovered]:
    """Repair the store and return the repairs.

    Finishes an interrupted compaction, moves damaged shards, orphans and copies to
    quarantine, empties ``tmp/``, and adds ``designs/`` to a store that never had it. The caller holds the lock.

    Args:
        layout: the store.
        thorough: read every page; False reads footers only, does not search for copies,
            and does not warn of foreign files.

    Raises:
        StoreError: a shard of another schema (newer, or in need of ``migrate``), or one
            that cannot be read at the moment; nothing was moved.
    """
    done = [Recovered(name, LEFT) for name in finish_compaction(layout)]
    survey = survey_tables(layout, thorough=thorough)
    done += [quarantine(layout, name, reason, of=of) for (of, name), reason in sorted(survey.damaged.items())]
    done += retire_orphans(layout)
    if thorough:
        for line in survey.foreign:
            warnings.warn(f"left alone {line}", ForeignFileWarning, stacklevel=2)
        done += drop_copies(
            layout, {n: runs for n, runs in survey.run_ids.items() if ("runs", n) not in survey.damaged}
        )
        done += drop_copied_designs(layout)
    _empty_tmp(layout)
    ensure_readable(layout)
    list_tables(layout)
    return done


@dataclass(frozen=True, slots=True)
class Survey:
    """The files in the tables' folders, checked."""

    damaged: dict[tuple[str, str], str]
    """Damaged shards, by the table that they are counted by and name: the reasons."""
    foreign: list[str]
    """Files that are not shards of this store, one line each."""
    run_ids: dict[str, list[str]]
    """The runs of every shard; empty lists if the check was not thorough."""


def survey_tables(layout: Layout, *, thorough: bool) -> Survey:
    """Check every file in the tables' folders; moves no shard.

    Raises:
        StoreError: a shard has the columns of another version, or cannot be read at the moment.
    """
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    run_ids: dict[str, list[str]] = {}
    foreign = [f"{path}: not a parquet file" for kind in TABLES for path in strangers(layout.table(kind))]
    for of, kind in ((of, kind) for of, kinds in SHARDS.items() for kind in kinds):
        for name in sorted(shard_names(layout.table(kind))):
            path = layout.shard(kind, name)
            try:
                facts = check_shard(path, kind, thorough)
                if not facts.current:
                    read_shard(path, kind)  # raises ForeignFile if it cannot be migrated
                    raise StoreError(
                        f"{path} has the columns of another version: run `grok store migrate {layout.root}` first"
                    )
                if name == EMPTY and read_shard(path, kind, ["run_id"]).num_rows:
                    reasons[of, name].append(f"{kind}: it has rows, and its name belongs to the shard without rows")
            except ShardDamaged as damage:
                if name == EMPTY:
                    remove_quietly(path)  # has no rows; it is made again
                else:
                    reasons[of, name].append(f"{kind}: {damage}")
                continue
            except ForeignFile as stranger:
                if name == EMPTY:  # the first commit would remove a file of this name
                    reasons[of, name].append(f"{kind}: {stranger}")
                else:
                    foreign.append(f"{path}: {stranger}")
                continue
            if kind == "runs" and name != EMPTY:
                missing = [k for k in facts.partners if not os.path.lexists(layout.shard(k, name))]
                reasons[of, name] += [f"its {k} are missing" for k in missing]
                run_ids[name] = facts.run_ids
    return Survey({shard: "; ".join(why) for shard, why in reasons.items() if why}, foreign, run_ids)


def retire_orphans(layout: Layout) -> list[Recovered]:
    """Move orphans (curves or steps without runs) to quarantine. The caller holds the lock."""
    reason = "its runs were never committed and are trained again"
    return [quarantine(layout, name, reason, orphan=True) for name in orphans(layout) if _is_ours(layout, name)]


def _is_ours(layout: Layout, name: str) -> bool:
    """Return whether curves or steps of this name are a shard of this store, whole or damaged."""
    for kind in ("curves", "steps"):
        if layout.shard(kind, name).exists():
            try:
                check_shard(layout.shard(kind, name), kind, thorough=False)
            except ForeignFile:
                continue
            except ShardDamaged:
                pass
            return True
    return False


def drop_copies(layout: Layout, by_shard: Mapping[str, list[str]]) -> list[Recovered]:
    """Remove runs that several shards hold from all shards but one; ``quarantine/`` keeps the removed rows.

    A row that did not fail is preferred to a failed one; otherwise the row of the first shard
    stays. Rows with different bits are recorded as a conflict. If a shard cannot be read, it
    goes to quarantine and nothing else is done: call again. The caller holds the lock.
    """
    holders: dict[str, list[str]] = defaultdict(list)
    for name in sorted(by_shard):
        for run_id in by_shard[name]:
            holders[run_id].append(name)
    doubled = {run_id: names for run_id, names in holders.items() if len(names) > 1}
    if not doubled:
        return []
    shards: dict[str, Shard] = {}
    for name in sorted({n for names in doubled.values() for n in names}):
        try:
            shards[name] = read_whole(layout, name)
        except NotAShard as damage:
            return [quarantine(layout, name, str(damage))]
    gone: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, names in doubled.items():
        rows = {name: shards[name].only({run_id}) for name in dict.fromkeys(names)}
        keep = min(rows, key=lambda name: (_status(rows[name].runs) == "failed", name))
        for name in rows:
            if name == keep:
                continue
            gone[name][run_id] = keep
            a, b = (traces(*rows[side].for_comparison())[run_id] for side in (keep, name))
            if (conflict := difference(a, b)) is not None:
                sides = {side: origin(rows[side].runs, run_id) for side in (keep, name)}
                record_conflict(layout, conflict, sides)
    done = []
    for name, runs in sorted(gone.items()):
        reason = f"{len(runs)} of its runs are in shard {', '.join(sorted(set(runs.values())))}, too"
        if len(runs) == len(set(by_shard[name])):
            done.append(quarantine(layout, name, reason, copy=True))
        else:
            keep_copy(layout, name, reason)
            remove_runs(layout, name, shards[name], set(runs))
            done.append(Recovered(name, reason, copy=True))
    return done


def drop_copied_designs(layout: Layout) -> list[Recovered]:
    """Remove rows of designs that several shards hold from all but one; as :func:`drop_copies`."""
    held = read_designs(layout)
    whole = pa.concat_tables([schema("designs").empty_table(), *held.values()])
    rows, unequal = settled(whole)
    if rows.num_rows == whole.num_rows:
        return []
    record_design_conflicts(layout, unequal)
    return place_designs(layout, held, rows)


def read_designs(layout: Layout) -> dict[str, pa.Table]:
    """Return the tables of all whole shards of designs by name. The caller holds the lock."""
    held = {}
    for name in sorted(layout.names("designs")):
        with suppress(NotAShard):
            held[name] = read_shard(layout.shard("designs", name), "designs")
    return held


def place_designs(layout: Layout, held: Mapping[str, pa.Table], rows: pa.Table) -> list[Recovered]:
    """Give the shards these rows in place of their own of the same keys, each row in one shard; return the repairs.

    Every shard is replaced by one rename, the largest first; ``quarantine/`` keeps a shard that loses rows. A kill in
    between leaves rows that two shards hold, which the next writer drops. The caller holds the lock.
    """
    place = {key: at for at, key in enumerate(keys_of(rows))}
    seen: set[tuple[str, ...]] = set()
    done = []
    for name, table in sorted(held.items(), key=lambda item: (-item[1].num_rows, item[0])):
        keys = list(dict.fromkeys(key for key in keys_of(table) if key not in seen))
        seen.update(keys)
        if len(keys) < table.num_rows:
            reason = f"{table.num_rows - len(keys)} of its rows are in other shards, too"
            if not keys:
                done.append(quarantine(layout, name, reason, copy=True, of="designs"))
                continue
            keep_copy(layout, name, reason, of="designs")
            done.append(Recovered(name, reason, copy=True, of="designs"))
        elif not place.keys() & set(keys):
            continue
        own = {key: at for at, key in reversed(list(enumerate(keys_of(table))))}
        both = pa.concat_tables([t.replace_schema_metadata(schema("designs").metadata) for t in (table, rows)])
        new = both.take([own[key] if key not in place else table.num_rows + place[key] for key in keys])
        if not new.equals(table):
            replace_table(layout, "designs", name, new)
    return done


def _status(runs: pa.Table) -> str:
    return str(runs["status"].to_pylist()[0])


def _empty_tmp(layout: Layout) -> None:
    # Files in tmp/ are written under the lock, which this process holds: those in it are left from dead processes.
    for entry in layout.tmp.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            remove_quietly(entry)
