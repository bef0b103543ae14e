"""Turns an engine's results into rows of the three tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from grok.config import NUMERICS_VERSION, Identity, RunConfig, flatten
from grok.config.fields import canonical_json
from grok.errors import StoreError
from grok.masking import without_passwords, without_secrets
from grok.records import STATUSES, CurvePoint, RunResult, StepPoint
from grok.store.compare import FACTS, MEASUREMENTS
from grok.store.provenance import Provenance
from grok.store.rerun import rerun_command
from grok.store.schema import CONFIG, PARTNERS_KEY, schema, to_table
from grok.untrusted import plain_name


@dataclass(frozen=True, slots=True)
class Row:
    """One finished run, with everything that its row needs."""

    result: RunResult
    config: RunConfig
    identity: Identity
    provenance: Provenance
    data_hash: str | None = None
    """Hash of the data manifest (GPT)."""
    code: Mapping[str, str] | None = None
    """Fingerprint of each piece of the user's own code that the run uses, by import path."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The three tables of one shard: the same runs in each."""

    runs: pa.Table
    curves: pa.Table
    steps: pa.Table

    def table(self, kind: str) -> pa.Table:
        return {"runs": self.runs, "curves": self.curves, "steps": self.steps}[kind]

    def only(self, run_ids: set[str]) -> Shard:
        """Return the shard with only these runs."""
        if set(self.runs["run_id"].to_pylist()) <= run_ids:
            return self
        wanted = pa.array(sorted(run_ids), pa.string())
        return Shard(*(filter_runs(table, wanted) for table in (self.runs, self.curves, self.steps)))

    def for_comparison(self) -> tuple[pa.Table, pa.Table]:
        """Return the columns of runs and curves that a comparison of bits needs (see ``compare``)."""
        return self.runs.select(list(FACTS)), self.curves.select(["run_id", "step", *MEASUREMENTS])


def filter_runs(table: pa.Table, run_ids: pa.Array) -> pa.Table:
    """Return the rows whose run is among ``run_ids``."""
    import pyarrow.compute as pc

    return table.filter(pc.is_in(table["run_id"], value_set=run_ids))


def repeats(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return for each row but the first whether these columns equal those of the row before it; null equals null."""
    import pyarrow.compute as pc

    same = pa.array([True] * (table.num_rows - 1), pa.bool_())
    for name in columns:
        column = table[name].combine_chunks()
        one, before = column[1:], column[:-1]
        equal = pc.fill_null(pc.equal(one, before), False)
        same = pc.and_(same, pc.or_(equal, pc.and_(one.is_null(), before.is_null())))
    return same


def to_shard(rows: Sequence[Row]) -> Shard:
    """Return the tables of ``rows``.

    Raises:
        StoreError: an unknown status, a step given twice in one curve, or a value that
            does not fit its column: a bug in an engine, named with the run.
    """
    for row in rows:
        _check(row.result)
    run_rows = [run_row(row.result, row.config, row.identity, row.provenance, row.data_hash, row.code) for row in rows]
    runs = to_table("runs", {name: [r[name] for r in run_rows] for name in schema("runs").names})
    results = [row.result for row in rows]
    return Shard(runs, curves_table(results), steps_table(results))


def _check(result: RunResult) -> None:
    if not result.run_id:
        raise StoreError("a result without a run_id cannot be stored")
    plain_name(result.run_id, "run_id")
    if result.status not in STATUSES:
        raise StoreError(f"run {result.run_id}: status {result.status!r}, expected one of {', '.join(STATUSES)}")
    points: Sequence[Sequence[CurvePoint | StepPoint]] = (result.curve, result.step_log)
    for name, log in zip(("curve", "step log"), points, strict=True):
        steps = [point.step for point in log]
        if len(set(steps)) < len(steps):
            twice = next(s for s in steps if steps.count(s) > 1)
            raise StoreError(f"run {result.run_id}: its {name} has step {twice} twice")


def run_row(
    result: RunResult,
    config: RunConfig,
    identity: Identity,
    provenance: Provenance,
    data_hash: str | None = None,
    code: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the run's row: a value for every column of the schema.

    The measurements are those of the last evaluation (at the last step).
    """
    seeds = config.stream_seeds()
    last = max(result.curve, key=lambda point: point.step, default=CurvePoint(step=0))
    row: dict[str, Any] = dict.fromkeys(schema("runs").names)
    row |= {CONFIG + name: without_secrets(value) for name, value in flatten(config).items()}
    row |= asdict(identity)
    row |= {f"seed_{stream}": seed for stream, seed in asdict(seeds).items()}
    row |= {
        "mode": config.mode,
        "seed": config.seed,
        "replicate": config.replicate,
        "train_loss": last.train_loss,
        "train_acc": last.train_acc,
        "val_loss": last.val_loss,
        "val_acc": last.val_acc,
        "weight_norm": last.weight_norm,
        "weight_norm_all": last.weight_norm_all,
        "layers": canonical_json(config.seeds.layers),
        "data_hash": data_hash,
        "own_code": canonical_json(dict(code)) if code else None,
        "numerics_version": NUMERICS_VERSION,
        "rerun": without_passwords(rerun_command(config)),
    }
    row |= {f.name: getattr(result, f.name) for f in fields(result) if f.name not in {"curve", "step_log", "tensors"}}
    row |= asdict(provenance)
    if result.lane_width is not None:  # the width that the engine used, not the setting
        row["lane_width"] = result.lane_width
    row["error"] = None if result.error is None else without_passwords(_storable(result.error))
    row["started_at"] = _time(result.started_at)
    return row


def curves_table(results: Sequence[RunResult]) -> pa.Table:
    """Return the evaluations of ``results``, ordered by run and step."""
    points = [(r.run_id, p) for r in results for p in sorted(r.curve, key=lambda p: p.step)]
    columns: dict[str, list[Any]] = {"run_id": [run_id for run_id, _ in points]}
    for f in fields(CurvePoint):
        values = [getattr(point, f.name) for _, point in points]
        if f.name in {"block_norms", "metrics"}:
            values = [_numbers(value) for value in values]
        elif f.name == "sample":
            values = [None if value is None else _storable(value) for value in values]
        columns[f.name] = values
    return to_table("curves", columns)


def steps_table(results: Sequence[RunResult]) -> pa.Table:
    """Return the per-step logs of ``results``, ordered by run and step."""
    points = [(r.run_id, p) for r in results for p in sorted(r.step_log, key=lambda p: p.step)]
    columns: dict[str, list[Any]] = {"run_id": [run_id for run_id, _ in points]}
    columns |= {f.name: [getattr(point, f.name) for _, point in points] for f in fields(StepPoint)}
    return to_table("steps", columns)


def with_partners(runs: pa.Table, shard: Shard) -> pa.Table:
    """Return ``runs`` with metadata that names the other tables with rows in this shard."""
    partners = [kind for kind in ("curves", "steps") if shard.table(kind).num_rows]
    return runs.replace_schema_metadata({**runs.schema.metadata, PARTNERS_KEY: ",".join(partners).encode()})


def _time(seconds: float) -> datetime | None:
    """Return UTC without a zone (every parquet reader can read it), or None for NaN."""
    return None if math.isnan(seconds) else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _storable(text: str) -> str:
    """Return ``text`` with escapes for what is not valid UTF-8: an error message may quote any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _numbers(values: Mapping[str, float]) -> str | None:
    """Return a map of measurements as JSON text, with null for a value that is not finite; None for an empty map."""
    if not values:
        return None
    if all(map(math.isfinite, values.values())):
        return json.dumps(values, separators=(",", ":"))
    return json.dumps({k: v if math.isfinite(v) else None for k, v in values.items()}, separators=(",", ":"))
