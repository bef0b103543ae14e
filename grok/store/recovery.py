"""Recovery: repairs when a store is opened for writing, quarantine, records of conflicts, unfinished compactions.

Every repair holds the store's lock. Their order is such that a second kill at any point
leaves a state that the next opening can repair. Only files that are proven to be damaged
are moved; a file that is only unreadable at the moment ends the command before any repair.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.errors import StoreError
from grok.files import exchange, flush_folder, write_json
from grok.store import shards
from grok.store.designs import FACTS, keys_of, settled
from grok.store.layout import EMPTY, Layout, orphans, shard_names, strangers
from grok.store.rows import Conflict, Shard, as_json, difference, traces
from grok.store.schema import KEYS, KINDS, OF_KINDS, SHARDS, TABLES, schema
from grok.untrusted import is_file, is_folder, is_plain

# Quarantine: unusable files are moved to ``quarantine/``, never deleted, with a JSON file that gives the reason.


@dataclass(frozen=True, slots=True)
class Recovered:
    """One repair of a store."""

    name: str
    """Name of the shard, without table and suffix."""
    reason: str
    lost: str = ""
    """What the store lacks now; empty: nothing, as the shard was never committed, or its rows are in another one."""

    def __str__(self) -> str:
        return f"moved shard {self.name} to quarantine: {self.reason}{self.lost and '; '}{self.lost}"


LOST: Final = {"runs": "its runs count as not stored", "designs": "nobody knows what its runs were for"}
"""By the table that a damaged shard is counted by."""


def quarantine(layout: Layout, name: str, reason: str, *, of: str = "runs", lossless: bool = False) -> Recovered:
    """Move the shard's tables to ``quarantine/`` with the reason in a JSON file.

    The runs move first: readers count a shard by its runs.
    """
    tables = {kind: layout.table(kind) for kind in SHARDS[of]}
    return _set_aside(layout, name, reason, tables, Path.replace, "" if lossless else LOST[of])


def keep_copy(layout: Layout, name: str, reason: str, of: str = "runs") -> Recovered:
    """Link the shard's tables into ``quarantine/``, before rows are removed from the shard."""
    return _set_aside(layout, name, reason, {kind: layout.table(kind) for kind in SHARDS[of]}, os.link)


def _set_aside(
    layout: Layout,
    name: str,
    reason: str,
    tables: Mapping[str, Path],
    into: Callable[[Path, Path], object],
    lost: str = "",
) -> Recovered:
    """Put a shard in these folders ``into`` the quarantine."""
    layout.quarantine.mkdir(exist_ok=True)
    for kind, table in tables.items():
        source = table / f"{name}.parquet"
        if os.path.lexists(source):
            into(source, _free(layout.quarantine / f"{kind}-{name}.parquet"))
            flush_folder(table)
    flush_folder(layout.quarantine)
    write_json(_free(layout.quarantine / f"{name}.json"), {"shard": name, "reason": reason}, layout.tmp)
    return Recovered(name, reason, lost)


def _free(path: Path) -> Path:
    """Return ``path``, or the first of ``path.2``, ``path.3``, ... (before the suffix) that does not exist."""
    serial, free = 1, path
    while os.path.lexists(free):
        serial += 1
        free = path.with_name(f"{path.stem}.{serial}{path.suffix}")
    return free


# Records of conflicts: a file in ``conflicts/`` for each, until the user removes it.


def record_conflict(layout: Layout, conflict: Conflict, sides: dict[str, Any]) -> Path:
    """Write a conflict as JSON to ``conflicts/`` and return the file; an equal conflict replaces its file."""
    other = "" if conflict.run_id == conflict.other_run_id else f"-{conflict.other_run_id}"
    name = f"{conflict.run_id}{other}-{conflict.step}-{conflict.what}"
    if not is_plain(name):  # too long: the names of two branches
        name = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:32]
    path = layout.conflicts / f"{name}.json"
    write_json(path, as_json(conflict, sides), layout.tmp)
    return path


def record_design_conflicts(layout: Layout, groups: Iterable[list[dict[str, Any]]]) -> list[Conflict]:
    """Record rows of designs that have one key and other facts; each may say its ``source``, where it is from."""
    conflicts = []
    for rows in groups:
        one, other, name = next((rows[0], row, fact) for row in rows for fact in FACTS if rows[0][fact] != row[fact])
        what = f"{name} in design {one['design_id']} as {one['role']} {one['unit']}"
        conflict = Conflict(one["run_id"], one["run_id"], None, None, None, what, one[name], other[name])
        record_conflict(layout, conflict, {f"row {at}": row for at, row in enumerate(rows, 1)})
        conflicts.append(conflict)
    return conflicts


def conflict_files(layout: Layout) -> list[Path]:
    """Return the files of the recorded conflicts, sorted by name."""
    return sorted(layout.conflicts.glob("*.json"))


def origin(runs: pa.Table, run_id: str) -> dict[str, Any]:
    """Return the machine, code and final weights of a run in ``runs``, by column name."""
    columns = ["host", "device", "numerics", "git_commit", "git_dirty", "torch_version", "weights_hash", "steps"]
    return dict(runs.filter(pc.equal(runs["run_id"], run_id)).select(columns).to_pylist()[0])


# Finishes a compaction that a kill interrupted while it exchanged tables.
#
# Tables are *in step* when every shard has its partners in the other tables. Tables that are in
# step are not changed. Otherwise tables are exchanged with those in the compaction's folder
# until all three are in step, but only with tables whose seals and keys prove that they hold the
# same rows: no content of ``tmp/`` is trusted.

READY: Final = "ready.json"
"""A file in a compaction's folder: its tables are complete, and the exchange may have begun."""

COMPACTION: Final = "compaction."
"""Prefix of a compaction's folder in ``tmp/``."""

LEFT: Final = "left by an interrupted compaction"


def unfinished_compactions(layout: Layout) -> list[Path]:
    """Return the folders of compactions that were ready and are not finished."""
    folders = sorted(layout.tmp.glob(f"{COMPACTION}*")) if is_folder(layout.tmp) else []
    return [folder for folder in folders if is_folder(folder) and is_file(folder / READY)]


def finish_compaction(layout: Layout) -> list[Recovered]:
    """Bring the tables back into step; return the files that were moved to quarantine instead.

    The caller holds the lock.

    Raises:
        StoreError: a shard cannot be read at the moment; nothing was changed.
    """
    quarantined: list[Recovered] = []
    for folder in unfinished_compactions(layout):
        tables = {kind: layout.table(kind) for kind in KINDS}
        waiting = {kind: folder / kind for kind in KINDS if is_folder(folder / kind)}
        in_step = _in_step(tables)
        # where a table is damaged, tmp/ may have the only whole rows
        if not in_step or any(_keys(kind, table) is None for kind, table in tables.items()):
            kinds = [] if in_step else _to_exchange(tables, waiting)
            for kind in kinds:
                exchange(folder / kind, layout.table(kind))
            if not kinds:  # the folder may hold the only whole rows of some runs
                left = set().union(*map(shard_names, waiting.values())) - {EMPTY}
                quarantined += [_set_aside(layout, name, LEFT, waiting, Path.replace) for name in sorted(left)]
        remove_compaction(folder)
    return quarantined


def remove_compaction(folder: Path) -> None:
    """Remove a compaction's folder whose tables are in their places."""
    (folder / READY).unlink(missing_ok=True)
    flush_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _in_step(tables: Mapping[str, Path]) -> bool:
    """Return whether every runs shard has its partners, and no other table has a shard without runs."""
    names = {kind: shard_names(table) - {EMPTY} for kind, table in tables.items()}
    if not names["curves"] | names["steps"] <= names["runs"]:
        return False
    for name in sorted(names["runs"]):
        try:
            needed = shards.partners(tables["runs"] / f"{name}.parquet")
        except shards.NotAShard:
            continue  # a damaged shard is no reason to exchange tables
        if any(name not in names[kind] for kind in needed):
            return False
    return True


def _to_exchange(tables: Mapping[str, Path], waiting: Mapping[str, Path]) -> list[str]:
    """Return the smallest set of tables that must be exchanged so that all are in step; none where that fails."""
    rows = {kind: _keys(kind, table) for kind, table in waiting.items()}
    same = [kind for kind, keys in rows.items() if keys is not None and keys == _keys(kind, tables[kind])]
    for count in range(1, len(same) + 1):
        for kinds in itertools.combinations(same, count):
            if _in_step({**tables, **{kind: waiting[kind] for kind in kinds}}):
                return list(kinds)
    return []


def _keys(kind: str, folder: Path) -> list[tuple[Any, ...]] | None:
    """Return the sorted keys of the folder's rows; None where a file in it is damaged or no shard."""
    keys: list[tuple[Any, ...]] = []
    for name in sorted(shard_names(folder) - {EMPTY}):
        path = folder / f"{name}.parquet"
        try:
            shards.check_shard(path, kind, thorough=True)
            rows = shards.read_shard(path, kind, KEYS[kind])
        except shards.NotAShard:
            return None
        keys += zip(*(rows[column].to_pylist() for column in KEYS[kind]), strict=True)
    return sorted(keys)


# Recovery: the repairs made when a store is opened for writing, after a kill, a crash or damage to the disk.


class ForeignFileWarning(UserWarning):
    """A file in a table's folder is not a shard of this store; it is not moved, and its rows are not read."""


def recover(layout: Layout, *, thorough: bool) -> list[Recovered]:
    """Repair the store and return the repairs.

    Finishes an interrupted compaction, moves damaged shards, orphans and copies to
    quarantine and empties ``tmp/``. The caller holds the lock.

    Args:
        layout: the store.
        thorough: read every page; False reads footers only, does not search for copies,
            and does not warn of foreign files.

    Raises:
        StoreError: a shard of another schema (newer, or in need of ``migrate``), or one
            that cannot be read at the moment; nothing was moved.
    """
    done = finish_compaction(layout)
    reasons, run_ids = _survey(layout, thorough)
    done += [quarantine(layout, name, "; ".join(why), of=of) for (of, name), why in sorted(reasons.items())]
    done += retire_orphans(layout)
    if thorough:
        done += drop_copies(layout, {name: runs for name, runs in run_ids.items() if ("runs", name) not in reasons})
        done += drop_copied_designs(layout)
    # Files in tmp/ are written under the lock, which this process holds: those in it are left from dead processes.
    for left in layout.tmp.iterdir():  # the folder stays: others list it meanwhile, and its name is on the disk
        shutil.rmtree(left, ignore_errors=True) if is_folder(left) else left.unlink(missing_ok=True)
    shards.ensure_readable(layout)
    return done


def _survey(layout: Layout, thorough: bool) -> tuple[dict[tuple[str, str], list[str]], dict[str, list[str]]]:
    """Check every file in the tables' folders; moves no shard, and with ``thorough`` warns of foreign files.

    Returns what is wrong with damaged shards, by the table that they are counted by and name, and the runs of every
    shard (empty lists if the check was not thorough).

    Raises:
        StoreError: a shard has the columns of another version, or cannot be read at the moment.
    """
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    run_ids: dict[str, list[str]] = {}
    foreign = [f"{path}: not a parquet file" for kind in TABLES for path in strangers(layout.table(kind))]
    for of, kind in OF_KINDS:
        for name in sorted(shard_names(layout.table(kind))):
            path = layout.shard(kind, name)
            try:
                facts = shards.check_shard(path, kind, thorough)
                if not facts.current:
                    shards.read_shard(path, kind)  # raises ForeignFile if it cannot be migrated
                    raise StoreError(
                        f"{path} has the columns of another version: run `grok store migrate {layout.root}` first"
                    )
                if name == EMPTY and shards.read_shard(path, kind, ["run_id"]).num_rows:
                    reasons[of, name].append(f"{kind}: it has rows, and its name belongs to the shard without rows")
            except shards.ShardDamaged as damage:
                if name == EMPTY:
                    path.unlink(missing_ok=True)  # has no rows; it is made again
                else:
                    reasons[of, name].append(f"{kind}: {damage}")
                continue
            except shards.ForeignFile as stranger:
                if name == EMPTY:  # the first commit would remove a file of this name
                    reasons[of, name].append(f"{kind}: {stranger}")
                else:
                    foreign.append(f"{path}: {stranger}")
                continue
            if kind == "runs" and name != EMPTY:
                if missing := [k for k in facts.partners if not os.path.lexists(layout.shard(k, name))]:
                    reasons[of, name].append(f"its {' and '.join(missing)} are missing")
                run_ids[name] = facts.run_ids
    for line in foreign if thorough else ():
        warnings.warn(f"left alone {line}", ForeignFileWarning, stacklevel=3)
    return reasons, run_ids


def retire_orphans(layout: Layout) -> list[Recovered]:
    """Move orphans (curves or steps without runs) to quarantine. The caller holds the lock."""
    reason = "its runs were never committed and are trained again"
    return [quarantine(layout, name, reason, lossless=True) for name in orphans(layout) if _is_ours(layout, name)]


def _is_ours(layout: Layout, name: str) -> bool:
    """Return whether curves or steps of this name are a shard of this store, whole or damaged."""
    for kind in ("curves", "steps"):
        if layout.shard(kind, name).exists():
            with suppress(shards.ForeignFile):
                with suppress(shards.ShardDamaged):
                    shards.check_shard(layout.shard(kind, name), kind, thorough=False)
                return True
    return False


def drop_copies(layout: Layout, by_shard: Mapping[str, Collection[str]]) -> list[Recovered]:
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
    whole: dict[str, Shard] = {}
    for name in sorted({n for names in doubled.values() for n in names}):
        try:
            whole[name] = shards.read_whole(layout, name)
        except shards.NotAShard as damage:
            return [quarantine(layout, name, str(damage))]
    gone: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, names in doubled.items():
        rows = {name: whole[name].only({run_id}) for name in dict.fromkeys(names)}
        keep = min(rows, key=lambda name: (rows[name].runs["status"].to_pylist() == ["failed"], name))
        for name in rows:
            if name == keep:
                continue
            gone[name][run_id] = keep
            a, b = (traces(rows[side].runs, rows[side].curves)[run_id] for side in (keep, name))
            if (conflict := difference(a, b)) is not None:
                sides = {side: origin(rows[side].runs, run_id) for side in (keep, name)}
                record_conflict(layout, conflict, sides)
    done = []
    for name, runs in sorted(gone.items()):
        reason = f"{len(runs)} of its runs are in shard {', '.join(sorted(set(runs.values())))}, too"
        if len(runs) == len(set(by_shard[name])):
            done.append(quarantine(layout, name, reason, lossless=True))
        else:
            done.append(keep_copy(layout, name, reason))
            shards.remove_staged(shards.stage_removal(layout, name, whole[name], set(runs)))
    return done


def drop_copied_designs(layout: Layout) -> list[Recovered]:
    """Remove rows of designs that several shards hold from all but one; as :func:`drop_copies`."""
    held = read_designs(layout)
    whole = shards.joined("designs", held.values())
    rows, unequal = settled(whole)
    if rows.num_rows == whole.num_rows:
        return []
    record_design_conflicts(layout, unequal)
    return place_designs(layout, held, rows)


def read_designs(layout: Layout) -> dict[str, pa.Table]:
    """Return the tables of all whole shards of designs by name. The caller holds the lock."""
    held = {}
    for name in sorted(layout.names("designs")):
        with suppress(shards.NotAShard):
            held[name] = shards.read_shard(layout.shard("designs", name), "designs")
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
                done.append(quarantine(layout, name, reason, of="designs", lossless=True))
                continue
            done.append(keep_copy(layout, name, reason, of="designs"))
        elif not place.keys() & set(keys):
            continue
        own = {key: at for at, key in reversed(list(enumerate(keys_of(table))))}
        both = pa.concat_tables([t.replace_schema_metadata(schema("designs").metadata) for t in (table, rows)])
        new = both.take([own[key] if key not in place else table.num_rows + place[key] for key in keys])
        if not new.equals(table):
            shards.replace_table(layout, "designs", name, new)
    return done
