"""The contract of a store as checks that are independent of the writer, and synthetic runs to check it with.

:func:`assert_contract` reads the folders raw, as DuckDB or another program would; every
test that fills a store ends with it. :class:`StoreContract` is a pytest class: subclass
it in a test file.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from grok.config import identify, load_config
from grok.records import CurvePoint, RunResult
from grok.store.designs import Design, Purpose, Purposes
from grok.store.layout import Layout
from grok.store.merge import merge
from grok.store.provenance import Provenance
from grok.store.reader import open_store
from grok.store.rows import Row
from grok.store.schema import KEYS, TABLES, schema
from grok.store.upkeep import compact, verify
from grok.store.writer import StoreWriter
from grok.streams import Stream

# Synthetic runs for tests of the store and of its readers; deterministic, without training.
#
# Tests of other packages may import it.

MACHINE = Provenance(
    git_commit="0" * 40,
    git_dirty=False,
    host="somewhere",
    grok_version="0",
    torch_version="0",
    python_version="0",
    numpy_version="0",
)


def example_row(
    seed: int, *, steps: int = 200, every: int = 50, settings: dict[str, Any] | None = None, **result: Any
) -> Row:
    """Return a finished run of ``steps`` updates, evaluated at every ``every``-th step and the last.

    As in training, the numbers depend only on the trajectory and the step: equal
    trajectory, equal bits. Keywords go to :class:`grok.records.RunResult`.
    """
    data = {"seed": seed, "train": {"steps": steps}, "eval": {"every": every}, **(settings or {})}
    config = load_config(data)
    identity = identify(config)
    curve = [example_point(identity.trajectory_id, k) for k in sorted({*range(0, steps + 1, every), steps})]
    defaults = RunResult(
        run_id=identity.run_id,
        status="completed",
        stop_reason="steps",
        steps=steps,
        weights_hash=f"{Stream('weights', steps).at(identity.trajectory_id).key():064x}",
        grokked_step=steps if seed % 2 else None,
        seconds=1.5,
        numerics="cpu:example",
        started_at=1.7e9,
        curve=curve,
    )
    return Row(replace(defaults, **result), config, identity, MACHINE)


def example_point(trajectory_id: str, step: int) -> CurvePoint:
    """Return the evaluation of a trajectory at ``step``."""
    u = Stream("curve", step).at(trajectory_id).uniform(6)
    return CurvePoint(
        step=step,
        train_loss=float(u[0]) if step else float("nan"),
        train_acc=float(u[1]) if step else float("nan"),
        val_loss=float(u[2]),
        val_acc=float(u[3]),
        weight_norm=float(u[4]) * 60,
        weight_norm_all=float(u[5]) * 90,
        lr=1e-3 if step else float("nan"),
        block_norms={"token_embedding": float(u[4]), "blocks.0": float(u[5])},
    )


def example_rows(seeds: Iterable[int], **keywords: Any) -> list[Row]:
    """Return :func:`example_row` for each seed."""
    return [example_row(seed, **keywords) for seed in seeds]


def example_design(
    run_ids: Sequence[str], *, kind: str = "sweep", parent: str | None = None, design_id: str | None = None
) -> Design:
    """Return a design of these runs: members with the seeds 0, 1, ..., or repeats of ``parent``."""
    role, redrawn = ("member", None) if parent is None else ("child", ())
    units = [{"seed": n} if parent is None else {"repeat": n} for n in range(len(run_ids))]
    each = [Purpose(role=role, unit=unit, parent_run_id=parent, redrawn=redrawn, line=parent) for unit in units]
    return Purposes(kind, each, design_id=design_id).named(run_ids)


def failed(row: Row, error: str = "made up") -> Row:
    """Return the same run as a run that failed before its first evaluation."""
    result = replace(
        row.result, status="failed", stop_reason="exception", error=error, steps=0, curve=[], weights_hash=None
    )
    return replace(row, result=result)


def with_other_bits(row: Row, step: int, column: str = "val_loss") -> Row:
    """Return the same run with the measurement ``column`` at ``step`` larger by one unit in the last place."""

    def moved(point: CurvePoint) -> CurvePoint:
        larger: dict[str, Any] = {column: math.nextafter(getattr(point, column), math.inf)}
        return replace(point, **larger)

    curve = [moved(point) if point.step == step else point for point in row.result.curve]
    return replace(row, result=replace(row.result, curve=curve))


# The contract of a store, as checks that are independent of the writer.


def read_raw(path: str | Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a table by opening every file in its folder."""
    files = sorted((Path(path) / kind).iterdir())
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def assert_contract(path: str | Path) -> None:
    """Assert what holds for a store after every completed command.

    Every file in the four folders is a parquet shard with the full, ordered, typed
    schema; the key of every table is unique; every point belongs to a run; ``tmp/`` is
    empty; ``verify`` finds no problem.
    """
    for kind in TABLES:
        files = sorted((Path(path) / kind).iterdir())
        assert files, f"{kind}/ is empty: a reader of the whole folder would fail"
        for file in files:
            columns = pq.ParquetFile(file).schema_arrow
            assert columns.equals(schema(kind)), f"{file.name} in {kind}/ does not have the full schema"
    for kind, key in KEYS.items():
        rows = Counter(tuple(row[name] for name in key) for row in read_raw(path, kind))
        assert not [row for row, n in rows.items() if n > 1], f"{kind} has a row of ({', '.join(key)}) twice"
    runs = {row["run_id"] for row in read_raw(path, "runs")}
    for kind in ("curves", "steps"):
        assert {row["run_id"] for row in read_raw(path, kind)} <= runs, f"{kind} has points of a run that has no row"
    assert not list(Layout(Path(path)).tmp.iterdir()), "tmp/ is not empty"
    assert not verify(path), "verify finds problems"


def contents(path: str | Path, kind: str) -> pa.Table:
    """Return a whole table, ordered by its key: equal stores give equal tables. Left out is when a design was made."""
    table = open_store(path).table(kind, None, None).replace_schema_metadata(None).combine_chunks()
    return table.select([name for name in table.column_names if name != "planned_at"])


class StoreContract:
    """Tests that hold for every store. ``tmp_path`` is pytest's fixture: a fresh folder."""

    def writer(self, path: Path) -> StoreWriter:
        """Open a store for writing; override to test another way of opening it."""
        return StoreWriter(path)

    def test_what_is_committed_is_read_back(self, tmp_path: Path) -> None:
        rows = example_rows(range(5))
        with self.writer(tmp_path / "S") as writer:
            report = writer.commit(rows)
            assert report.written == [row.result.run_id for row in rows]
            assert_contract(tmp_path / "S")
        assert open_store(tmp_path / "S").run_ids() == set(report.written)
        assert len(open_store(tmp_path / "S").curves()) == sum(len(row.result.curve) for row in rows)

    def test_a_new_store_is_readable_whole(self, tmp_path: Path) -> None:
        self.writer(tmp_path / "S").close()
        assert_contract(tmp_path / "S")
        assert open_store(tmp_path / "S").runs().empty

    def test_a_late_duplicate_is_compared_and_dropped(self, tmp_path: Path) -> None:
        first, late = self.writer(tmp_path / "S"), self.writer(tmp_path / "S")
        row = example_row(1)
        assert first.commit([row]).written
        assert late.commit([row]).duplicates == [row.result.run_id]
        (conflict,) = late.commit([with_other_bits(row, 100)]).conflicts
        assert (conflict.run_id, conflict.step, conflict.what) == (row.result.run_id, 100, "val_loss")
        recorded = list((tmp_path / "S" / "conflicts").iterdir())
        assert len(recorded) == 1
        assert [p for p in verify(tmp_path / "S") if str(recorded[0]) in p], "verify does not report a conflict"
        recorded[0].unlink()
        assert_contract(tmp_path / "S")
        val_loss = open_store(tmp_path / "S").curves(columns=["val_loss"])["val_loss"].tolist()
        assert val_loss == [point.val_loss for point in row.result.curve], "the first commit's bits stay"

    def test_only_a_failed_run_is_replaced(self, tmp_path: Path) -> None:
        rows = example_rows(range(3))
        with self.writer(tmp_path / "S") as writer:
            writer.commit([failed(rows[0]), rows[1]])
            assert writer.commit([failed(rows[1])]).duplicates == [rows[1].result.run_id]
            assert writer.commit([rows[0], rows[2]]).replaced == [rows[0].result.run_id]
        assert_contract(tmp_path / "S")
        assert set(open_store(tmp_path / "S").statuses().values()) == {"completed"}

    def test_an_unfinished_commit_is_retired(self, tmp_path: Path) -> None:
        row = example_row(1)
        with self.writer(tmp_path / "S") as writer:
            writer.commit([row])
            (tmp_path / "S" / "runs" / next((tmp_path / "S" / "runs").iterdir()).name).unlink()
            assert verify(tmp_path / "S")
        assert open_store(tmp_path / "S").curves().empty, "a reader shows points of an uncommitted run"
        with self.writer(tmp_path / "S") as writer:
            assert [r.orphan for r in writer.recovered] == [True]
            assert_contract(tmp_path / "S")
            writer.commit([row])
        assert_contract(tmp_path / "S")

    def test_compaction_keeps_every_row_in_sight(self, tmp_path: Path) -> None:
        path = tmp_path / "S"
        with self.writer(path) as writer:
            for row in example_rows(range(12)):
                writer.commit([row])
                writer.record_design(example_design([row.result.run_id]))
        before = {kind: contents(path, kind) for kind in TABLES}
        seen: list[set[str]] = []
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                try:
                    runs = [row["run_id"] for row in read_raw(path, "runs")]
                except FileNotFoundError:  # listed, then exchanged: a raw reader must list again
                    continue
                seen.append(set(runs) if len(set(runs)) == len(runs) else {"a run twice"})

        watcher = threading.Thread(target=watch)
        watcher.start()
        while not seen:
            time.sleep(0.001)
        compacted = compact(path)
        done.set()
        watcher.join()
        assert (compacted.before, compacted.after, compacted.designs) == (12, 1, 11)
        assert all(runs == set(before["runs"]["run_id"].to_pylist()) for runs in seen)
        assert_contract(path)
        assert all(contents(path, kind).equals(before[kind]) for kind in TABLES)

    def test_a_design_is_stored_once_whoever_plans_it(self, tmp_path: Path) -> None:
        path, design = tmp_path / "S", example_design(["a", "b"], kind="repeat", parent="a")
        first, late = self.writer(path), self.writer(path)
        assert (first.record_design(design), late.record_design(design, {"a"})) == (2, 0)
        assert open_store(path).designs()["results_seen"].tolist() == [False, False]
        first.retire_design(design.design_id[:6], "a try")
        assert open_store(path).designs()["retired"].tolist() == ["a try", "a try"]
        assert late.record_design(example_design(["a"])) == 1 and late.planned_again == {}
        assert late.record_design(design) == 0 and late.planned_again == {design.design_id: "a try"}
        assert open_store(path).designs()["retired"].isna().all(), "the same plan again brings it back"
        assert_contract(path)

    def test_merging_reports_what_disagrees_and_chooses_nothing(self, tmp_path: Path) -> None:
        a, b, both = tmp_path / "A", tmp_path / "B", tmp_path / "both"
        rows = example_rows(range(6))
        with self.writer(a) as writer:
            writer.commit(rows[:4])
        with self.writer(b) as writer:
            writer.commit([rows[2], with_other_bits(rows[3], 50), *rows[4:]])
        report = merge(a, [b], into=both)
        assert [conflict.run_id for conflict in report.conflicts] == [rows[3].result.run_id]
        assert open_store(both).run_ids() == {row.result.run_id for row in [*rows[:3], *rows[4:]]}
        next((both / "conflicts").iterdir()).unlink()
        for path in (a, b, both):
            assert_contract(path)
