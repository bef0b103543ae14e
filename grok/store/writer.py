"""Writes to a store: one shard per commit, from any number of processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from grok.errors import StoreError
from grok.files import disk_errors, file_identity, locked, unique, write_json
from grok.store import recovery, shards
from grok.store.designs import KEY, LONGEST, Design, keys_of, settled, with_values
from grok.store.layout import Layout, StoreGone, check_path, make_store, refuse_older
from grok.store.leases import Claim, Leases
from grok.store.reader import Store
from grok.store.recovery import origin
from grok.store.rows import Conflict, Row, Shard, difference, to_shard, traces
from grok.store.schema import schema
from grok.store.upkeep import SMALL, can_exchange, merge_shards, own_shards
from grok.untrusted import plain_name, without_passwords, without_secrets


@dataclass(slots=True)
class CommitReport:
    """The result of one commit: the ``run_id`` of every row is in one of the first four lists."""

    written: list[str] = field(default_factory=list)
    """New runs."""
    replaced: list[str] = field(default_factory=list)
    """Runs that the store held as failed."""
    duplicates: list[str] = field(default_factory=list)
    """Runs that the store already held, with the same bits or from other numerics: dropped."""
    conflicts: list[Conflict] = field(default_factory=list)
    """Runs that the store already held with other bits at equal numerics: dropped, recorded in ``conflicts/``."""
    recovered: list[recovery.Recovered] = field(default_factory=list)
    """Repairs made during the commit: an orphan of a killed commit, a damaged shard."""

    def __iadd__(self, other: CommitReport) -> CommitReport:
        for f in fields(self):
            getattr(self, f.name).extend(getattr(other, f.name))
        return self


class StoreWriter:
    """A store that is open for writing; created when missing.

    Opening repairs the store: orphans of killed commits and damaged shards go to quarantine
    (:attr:`recovered` lists the repairs, also later ones outside a commit). Several threads and
    processes may write to one store, also several machines if the file system's locks hold
    between them.

    Args:
        path: the store's folder.
        thorough: read every page of every shard once, so that any damage is detected now.
            False reads only footers: for the workers of a sweep whose parent has checked.
        create: create the store when it is missing. False is for the workers of a sweep
            whose parent has created it.

    Raises:
        StoreError: a foreign or unwritable folder, a newer schema, or an older one.
        StoreGone: the store is missing and ``create`` is False.
    """

    def __init__(self, path: str | Path, thorough: bool = True, create: bool = True) -> None:
        if not check_path(path) and not create:  # refused before anything is written
            raise StoreGone(Path(path))
        shards.refuse_without_threads(Path(path))
        self.layout: Layout = make_store(path)
        self.recovered: list[recovery.Recovered] = []
        self.planned_again: dict[str, str] = {}
        """The retired designs that were planned again, with why they had been retired."""
        self._index = Index(self.layout)
        self._leases = Leases(self.layout)
        self._may_compact = True
        self._keeps_replaced = False
        with self._writing("opening the store"):
            refuse_older(self.layout)
            self.recovered += recovery.recover(self.layout, thorough=thorough)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        with suppress(StoreError) if kind is not None else nullcontext():
            self.close()

    def close(self) -> None:
        """Release the leases; committed rows are on the disk already.

        Raises:
            StoreError: failed rows still stand beside the new rows that replace them, as the disk refuses.
        """
        try:
            if self._keeps_replaced:
                with self._writing("everything is stored; removing the failed rows that were replaced"):
                    self._stored(self.recovered)
        finally:
            self._leases.release()

    def commit(self, rows: Sequence[Row]) -> CommitReport:
        """Write finished runs as one shard and return the result for each.

        When this returns, the rows are on the disk. A run that the store holds as failed is
        replaced. Any other run that the store holds is compared and dropped.

        Raises:
            StoreError: the disk refuses (no part of the commit is left, and the same rows
                may be committed again), or a row does not fit the schema.
        """
        report = CommitReport()
        of_each: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            of_each[row.result.run_id].append(row)
        for batch in zip_longest(*of_each.values()):  # further rows of a run come later, so that they are compared
            report += self.commit_shard(to_shard([row for row in batch if row is not None]))
        return report

    def commit_shard(self, incoming: Shard) -> CommitReport:
        """As :meth:`commit`, for rows that are already tables (``merge``)."""
        for run_id in incoming.runs["run_id"].to_pylist():  # it becomes the name of a folder
            plain_name(run_id, "run_id")
        with self._writing("writing results"):
            # Orphans of a killed commit may have points of these runs, which would be there twice.
            report = CommitReport(recovered=recovery.retire_orphans(self.layout))
            accepted = self._accept(incoming, report)
            if report.written or report.replaced:
                self._add(accepted, set(report.replaced))
        return report

    def _add(self, accepted: Shard, failed_before: set[str]) -> None:
        """Write a shard, then remove the failed rows that it replaces: no error or kill leaves a run without a row."""
        removals = [
            shards.stage_removal(self.layout, name, self._read(name), gone)
            for name, gone in self._by_shard(failed_before).items()
        ]
        shards.write_shard(self.layout, unique(), accepted)
        # The commit is on the disk: neither damage nor a full disk undoes it. A failed row that is left beside the
        # new one is dropped by the next commit or claim, at the end, or at the next opening.
        with suppress(shards.NotAShard, OSError, StoreError):
            self._keeps_replaced |= bool(removals)
            for removal in removals:
                shards.remove_staged(removal)
            self._keeps_replaced = False
            shards.ensure_readable(self.layout)
            self._merge_small({name for name, runs in self._index.runs.items() if 0 < len(runs) < SMALL})

    def _accept(self, incoming: Shard, report: CommitReport) -> Shard:
        """Sort the incoming runs into ``report``; return the shard of those that must be written."""
        stored = self._stored(report.recovered)
        arriving = dict(zip(incoming.runs["run_id"].to_pylist(), incoming.runs["status"].to_pylist(), strict=True))
        compared = self._compare(incoming, {run_id for run_id in arriving if run_id in stored})
        for run_id, status in arriving.items():
            if run_id not in stored:
                report.written.append(run_id)
            elif stored[run_id] == "failed":
                report.replaced.append(run_id)
            elif status == "failed" or run_id not in compared:
                report.duplicates.append(run_id)
            else:
                report.conflicts.append(compared[run_id])
        return incoming.only({*report.written, *report.replaced})

    def _stored(self, recovered: list[recovery.Recovered]) -> dict[str, str]:
        """Return the status of every stored run, after damaged shards and copies went to quarantine."""
        while True:
            recovered += self._index.refresh()
            statuses = {run_id: status for runs in self._index.runs.values() for run_id, status in runs.items()}
            if len(statuses) == sum(map(len, self._index.runs.values())):
                return statuses
            recovered += recovery.drop_copies(self.layout, self._index.runs)

    def _compare(self, incoming: Shard, run_ids: set[str]) -> dict[str, Conflict]:
        """Return the conflicts of incoming runs with the stored ones of the same name; record each."""
        conflicts: dict[str, Conflict] = {}
        by_shard = self._by_shard(run_ids)
        wanted = incoming.only(run_ids)
        arrived = traces(wanted.runs, wanted.curves)
        for name, in_shard in by_shard.items():
            shard = self._read(name).only(in_shard)
            stored = traces(shard.runs, shard.curves)
            for run_id in sorted(in_shard):
                conflict = difference(stored[run_id], arrived[run_id])
                if conflict is not None:
                    conflicts[run_id] = conflict
                    sides = {"stored": origin(shard.runs, run_id), "arrived": origin(incoming.runs, run_id)}
                    recovery.record_conflict(self.layout, conflict, sides)
        return conflicts

    def _by_shard(self, run_ids: set[str]) -> dict[str, set[str]]:
        """Return the shards that hold some of these stored runs, each with those."""
        held = {name: run_ids & runs.keys() for name, runs in self._index.runs.items()}
        return {name: runs for name, runs in held.items() if runs}

    def _read(self, name: str) -> Shard:
        try:
            return shards.read_whole(self.layout, name)
        except shards.NotAShard as damage:
            recovery.quarantine(self.layout, name, str(damage))
            raise StoreError(
                f"shard {name} of {self.layout.root} was damaged while in use and is now in quarantine ({damage}): "
                "run the command again"
            ) from damage

    def _merge_small(self, small: set[str], of: str = "runs") -> None:
        """Merge these small shards if they are many: they make reading slow."""
        if len(small) >= SMALL and self._may_compact:
            self._may_compact = can_exchange(self.layout)
            sizes = own_shards(self.layout, of) if self._may_compact else {}
            merge_shards(self.layout, {name: rows for name, rows in sizes.items() if name in small}, of=of)

    def claim(self, run_ids: Sequence[str], retry_failed: bool = False) -> Claim:
        """Lease the runs that this sweep may train now: not stored, and not leased by a living sweep.

        Args:
            run_ids: the runs that the sweep wants to train.
            retry_failed: treat runs that the store holds as failed as not stored.
        """
        self._refuse_gone()
        with self._leases.locked():
            with self._writing("reading the store"):
                stored = self._stored(self.recovered)
            done = {r for r in run_ids if r in stored and not (retry_failed and stored[r] == "failed")}
            return self._leases.claim([r for r in run_ids if r not in done], done)

    def holds(self, run_id: str) -> bool:
        """Return whether the store has a row of the run that stays, so that a commit would drop another one."""
        with self._writing("reading the store"):
            return self._stored(self.recovered).get(run_id, "failed") != "failed"

    def leased_by_others(self) -> set[str]:
        """Return the runs that other living sweeps have leased; remove the leases of dead ones.

        A sweep whose process is there is dead for this writer when its heartbeat has been the same at all
        its looks for two minutes: keep the writer, and ask it again every few seconds.
        """
        return self._leases.of_others()

    def heartbeat(self) -> None:
        """Renew this sweep's leases, unless another sweep has taken them over."""
        self._leases.heartbeat()

    def record_sweep(self, sweep_id: str, argv: Sequence[str], config: dict[str, Any]) -> Path:
        """Write a sweep's command and effective settings to ``sweeps/<sweep_id>.json``; return the file."""
        path = self.layout.sweeps / f"{plain_name(sweep_id, 'sweep_id')}.json"
        with self._writing("recording the sweep"):
            content = without_secrets({"sweep_id": sweep_id, "argv": list(argv), "config": config})
            write_json(path, content, self.layout.tmp)
        return path

    def record_design(self, design: Design, seen: Collection[str] = (), origin: str = "planned") -> int:
        """Write the rows of ``design`` that the store lacks, as one shard; return their number. Stored rows stay.

        A design that was retired is planned again by this: its rows lose the mark, and ``planned_again`` has its text.

        Args:
            seen: the runs of whose condition and streams a result was stored when the plan was made.

        Raises:
            StoreError: the disk refuses, or a row is not sound.
        """
        table = design.table(seen, origin)
        with self._writing("recording the design"):
            stored = Store(self.layout).designs_table(["retired"])
            stored = stored.filter(pc.equal(stored["design_id"], design.design_id))
            if marks := stored["retired"].unique().drop_null().to_pylist():
                self._mark(design.design_id, None)
                self.planned_again[design.design_id] = "; ".join(marks)
            return self._add_designs(_lacking(table, set(keys_of(stored))))

    def merge_designs(self, tables: Mapping[str, pa.Table]) -> tuple[int, list[Conflict]]:
        """Add the rows of ``tables`` (by where they are from); return the number of new rows, and the conflicts.

        Of equal rows the one that was planned first stays, and it is retired if one of them is: no clock says whether
        a mark or the plan that removed it elsewhere came last, and the same command removes it again. Where their facts
        differ, the stored row stays; if none is stored, none is added; ``conflicts/`` keeps all of them.
        """
        arriving = [_from(source, table) for source, table in tables.items() if table.num_rows]
        if not arriving:
            return 0, []
        with self._writing("merging designs"):
            held = recovery.read_designs(self.layout)
            stored = shards.joined("designs", held.values())
            keys = {key for table in arriving for key in keys_of(table)}
            mine = stored.filter(pa.array([key in keys for key in keys_of(stored)], pa.bool_()))
            rows, unequal = settled(pa.concat_tables([_from(str(self.layout.root), mine), *arriving]))
            conflicts = recovery.record_design_conflicts(self.layout, unequal)
            rows = _lacking(rows.drop_columns(["source"]), {tuple(one[0][name] for name in KEY) for one in unequal})
            rows = rows.replace_schema_metadata(schema("designs").metadata)
            fresh = _lacking(rows, set(keys_of(mine)))
            self.recovered += recovery.place_designs(self.layout, held, rows)
            return self._add_designs(fresh), conflicts

    def retire_design(self, prefix: str, why: str) -> tuple[str, int]:
        """Mark the one design whose ``design_id`` begins with ``prefix`` as abandoned; return its id and its new marks.

        Its rows keep everything else they say, and rows that are marked already keep their text. They count for what
        their runs were for as before; only what is not stored no longer counts as missing, until the same plan is made
        again (:meth:`record_design`). Each shard with rows of the design is replaced by one rename; after a kill in
        between the same call marks the others.

        Raises:
            StoreError: no design, or several, begin so, or ``why`` says nothing.
        """
        words = " ".join(without_passwords(why).split())
        if not words or len(words) > LONGEST:
            raise StoreError("retire: --why is empty or too long: say in a sentence why the design was abandoned")
        with self._writing("retiring the design"):
            store = Store(self.layout)
            design_id = store.named(prefix, set(store.designs_table([])["design_id"].to_pylist()), "design")
            return design_id, self._mark(design_id, words)

    def mark_results(self, keys: Collection[tuple[str, ...]]) -> int:
        """Set ``results_seen`` of the rows of designs with these keys; return the number of rows that lacked it."""
        with self._writing("merging designs"):
            return self._rewrite("results_seen", lambda row, seen: seen or tuple(row[name] for name in KEY) in keys)

    def _mark(self, design_id: str, why: str | None) -> int:
        """Mark the rows of a design that are not as abandoned, or with None remove its marks; return their number."""

        def marked(row: Mapping[str, Any], mark: str | None) -> str | None:
            if row["design_id"] != design_id:
                return mark
            return None if why is None else mark or why

        return self._rewrite("retired", marked)

    def _rewrite(self, column: str, change: Callable[[Mapping[str, Any], Any], Any]) -> int:
        """Change a column of the designs by key and value, each shard by one rename; return the number of changes."""
        changes = 0
        for name, table in recovery.read_designs(self.layout).items():
            before = table[column].to_pylist()
            after = [change(row, value) for row, value in zip(table.select(KEY).to_pylist(), before, strict=True)]
            if before != after:
                shards.replace_table(self.layout, "designs", name, with_values(table, column, after))
                changes += sum(old != new for old, new in zip(before, after, strict=True))
        return changes

    def _add_designs(self, table: pa.Table) -> int:
        """Write these rows as one shard; merge small shards if there are many. The caller holds the lock."""
        if not table.num_rows:
            return 0
        shards.replace_table(self.layout, "designs", unique(), table)
        shards.ensure_readable(self.layout)
        if self._may_compact and len(self.layout.names("designs")) >= SMALL:
            with suppress(shards.NotAShard, OSError):  # the rows are on the disk: nothing undoes it
                own = own_shards(self.layout, "designs")
                self._merge_small({name for name, rows in own.items() if rows < shards.FEW_ROWS}, "designs")
        return int(table.num_rows)

    @contextmanager
    def _writing(self, doing: str) -> Iterator[None]:
        self._refuse_gone()
        try:
            with disk_errors(f"{doing} ({self.layout.root})"), locked(self.layout.lock):
                self.layout.tmp.mkdir(exist_ok=True)  # users may remove a folder of this name
                self.recovered += recovery.finish_compaction(self.layout)
                yield
        except StoreError:
            self._refuse_gone()
            raise

    def _refuse_gone(self) -> None:
        if not self.layout.marker.is_file():
            raise StoreGone(self.layout.root)


def _lacking(table: pa.Table, known: Collection[tuple[str, ...]]) -> pa.Table:
    """Return the rows of designs whose keys are not known."""
    return table.filter(pa.array([key not in known for key in keys_of(table)], pa.bool_())) if known else table


def _from(source: str, table: pa.Table) -> pa.Table:
    """Return rows of designs with a further column that says where they are from."""
    column = pa.array([source] * table.num_rows, pa.string())
    return table.replace_schema_metadata(None).append_column("source", column)


class Index:
    """The stored runs by shard; a shard is read again only when its file has changed."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._files: dict[str, tuple[int, int, int]] = {}
        self.runs: dict[str, dict[str, str]] = {}
        """Of every shard of runs, as of the last :meth:`refresh`, the status of each run; empty: a foreign file."""

    def refresh(self) -> list[recovery.Recovered]:
        """Read what has changed; return the damaged shards that went to quarantine. The caller holds the lock."""
        recovered = []
        for name in sorted(self._layout.names("runs")):
            path = self._layout.shard("runs", name)
            identity = file_identity(path)
            if self._files.get(name) == identity:
                continue
            try:
                table = shards.read_shard(path, "runs", ["run_id", "status"])
            except shards.ShardDamaged as damage:
                recovered.append(recovery.quarantine(self._layout, name, f"runs: {damage}"))
                continue
            except shards.ForeignFile:  # reported when the store was opened
                table = pa.table({"run_id": [], "status": []})
            self._files[name] = identity
            self.runs[name] = dict(zip(table["run_id"].to_pylist(), table["status"].to_pylist(), strict=True))
        for gone in self.runs.keys() - self._layout.names("runs"):
            del self.runs[gone], self._files[gone]
        return recovered
