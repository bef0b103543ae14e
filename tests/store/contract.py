"""The contract of a store as checks that are independent of the writer, and synthetic runs to check it with.

:func:`assert_contract` reads the folders raw, as DuckDB or another program would; every test that fills a store ends
with it. The runs are deterministic and take no training.
"""

from __future__ import annotations

import math
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
from grok.store.provenance import Provenance
from grok.store.reader import open_store
from grok.store.rows import Row
from grok.store.schema import KEYS, TABLES, schema
from grok.store.upkeep import verify
from grok.streams import Stream

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
        started_at=4e9,  # after every plan
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
