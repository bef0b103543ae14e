"""Turns an engine's results into rows of the tables, and compares runs that must have equal bits."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from grok.config import NUMERICS_VERSION, Identity, RunConfig, flatten
from grok.config.fields import canonical_json
from grok.errors import StoreError
from grok.records import STATUSES, CurvePoint, RunResult, StepPoint, finite_or_null, tags_of
from grok.store.provenance import Provenance, rerun_command
from grok.store.schema import CONFIG, PARTNERS_KEY, POINTS_OF, schema, to_table
from grok.untrusted import plain_name, without_passwords, without_secrets

# Compares two runs that must have equal bits.
#
# Runs of equal trajectory and equal numerics tag must have equal bits at common steps, and
# equal weights after equally many steps. A run that switches in mid-run equals its trunk up to
# that step. A difference is a conflict: it is reported with
# both sides, and neither side is preferred.

MEASUREMENTS: Final = ("train_loss", "train_acc", "val_loss", "val_acc", "weight_norm", "weight_norm_all", "lr")
"""Columns of ``curves`` that depend on the trajectory alone, not on the evaluation schedule."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run's measurements at full precision."""

    run_id: str
    trajectory_id: str
    numerics: str | None
    status: str
    steps: int
    weights_hash: str | None
    mode: str
    parent_run_id: str | None
    branch_step: int | None
    at: NDArray[np.int64]
    """Steps of its evaluations, ascending; shape (evaluations,)."""
    values: NDArray[np.float64]
    """Shape (evaluations, len(MEASUREMENTS)); NaN: null in the store."""

    def trunk(self) -> str | None:
        """Return the run that this one equals up to ``branch_step``, or None: what a switch in mid-run left.

        A language model that was resumed under other settings has a parent, too, and may have rolled back since.
        """
        return self.parent_run_id if self.mode == "arithmetic" else None

    def common_steps(self, other: Trace) -> float:
        """Return the last step up to which the two must agree; a run and its trunk agree up to the switch."""
        if self.trajectory_id == other.trajectory_id:
            return math.inf
        shared = [one.branch_step for one, two in ((self, other), (other, self)) if one.trunk() == two.run_id]
        return max((step for step in shared if step is not None), default=-1)

    def comparable(self, other: Trace) -> bool:
        """Return whether the two must agree at some step: one numerics tag, neither failed nor rolled back.

        A run that moved from one machine to another has both tags, ``a | b``. Two such runs may have moved at
        different steps, so they need not agree.
        """
        return (
            self.common_steps(other) >= 0
            and self.numerics == other.numerics
            and len(tags_of(self.numerics)) == 1
            and not {self.status, other.status} & {"failed", "rolled_back"}
        )


FACTS: Final = tuple(f.name for f in fields(Trace) if f.name not in {"at", "values"})
"""Columns of ``runs`` that a comparison needs."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two runs that must have equal bits and differ."""

    run_id: str
    other_run_id: str
    trajectory_id: str | None
    """Null: two rows of a design, whose facts must be equal."""
    numerics: str | None
    step: int | None
    """First step at which they differ; null where only the final weights or the ends do."""
    what: str
    value: float | str | None
    other_value: float | str | None

    def __str__(self) -> str:
        runs = self.run_id if self.run_id == self.other_run_id else f"{self.run_id} and {self.other_run_id}"
        where = "" if self.step is None else f" at step {self.step}"
        return f"{runs}: {self.what}{where} is {self.value!r} in one and {self.other_value!r} in the other"


def pairs_to_compare(these: Iterable[Trace], those: Iterable[Trace]) -> Iterator[tuple[Trace, Trace]]:
    """Yield the pairs, one of each, that may have to agree: of one trajectory and tag, or a run and its trunk."""
    named: dict[str | None, Trace] = {}
    alike: dict[tuple[str, str | None], list[Trace]] = defaultdict(list)
    switched: dict[str, list[Trace]] = defaultdict(list)
    for mine in these:
        named[mine.run_id] = mine
        alike[mine.trajectory_id, mine.numerics].append(mine)
        if (trunk := mine.trunk()) is not None:
            switched[trunk].append(mine)
    for theirs in those:
        near = [*alike[theirs.trajectory_id, theirs.numerics], *switched[theirs.run_id]]
        near += [named[theirs.trunk()]] if theirs.trunk() in named else []
        yield from ((mine, theirs) for mine in near)


def traces(runs: pa.Table, curves: pa.Table) -> dict[str, Trace]:
    """Return the trace of every run in ``runs`` (columns ``FACTS``), its points from ``curves``."""
    run_ids = curves["run_id"].combine_chunks()
    order = pc.sort_indices(curves.select(["run_id", "step"]), [("run_id", "ascending"), ("step", "ascending")])
    names = run_ids.take(order).to_numpy(zero_copy_only=False)
    at = curves["step"].take(order).to_numpy().astype(np.int64)
    values = np.empty((len(names), len(MEASUREMENTS)))
    for i, name in enumerate(MEASUREMENTS):
        values[:, i] = curves[name].take(order).to_numpy()  # null becomes NaN
    starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]]) if len(names) else np.zeros(0, int)
    ends = np.r_[starts[1:], len(names)] if len(names) else starts
    spans = {names[start]: slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)}
    nothing = slice(0, 0)
    return {
        row["run_id"]: Trace(
            **row, at=at[spans.get(row["run_id"], nothing)], values=values[spans.get(row["run_id"], nothing)]
        )
        for row in runs.select(list(FACTS)).to_pylist()
    }


def difference(a: Trace, b: Trace) -> Conflict | None:
    """Return the first difference of two runs that must agree, or None (also where they need not agree)."""
    if not a.comparable(b):
        return None

    def conflict(step: int | None, what: str, value: Any, other: Any) -> Conflict:
        return Conflict(a.run_id, b.run_id, a.trajectory_id, a.numerics, step, what, value, other)

    until = a.common_steps(b)
    common, in_a, in_b = np.intersect1d(a.at[a.at <= until], b.at[b.at <= until], True, return_indices=True)
    unequal = bits(a.values[in_a]) != bits(b.values[in_b])
    if unequal.any():
        row, column = np.argwhere(unequal)[0]
        value, other = float(a.values[in_a][row, column]), float(b.values[in_b][row, column])
        return conflict(int(common[row]), MEASUREMENTS[column], value, other)
    if until < math.inf:
        return None
    if a.steps == b.steps and None not in (a.weights_hash, b.weights_hash) and a.weights_hash != b.weights_hash:
        return conflict(a.steps, "weights_hash", a.weights_hash, b.weights_hash)
    if a.run_id == b.run_id and (a.steps, a.status) != (b.steps, b.status):
        return conflict(None, "end", f"{a.status} after {a.steps}", f"{b.status} after {b.steps}")
    return None


def bits(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bit patterns of ``values``; every NaN gets one pattern, because a store keeps NaN as null."""
    whole = np.array(values, dtype=np.float64, copy=True)
    whole[np.isnan(whole)] = np.nan
    return whole.view(np.int64)


def as_json(conflict: Conflict, sides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the conflict as JSON values: the difference in decimal and hexadecimal, and each side's origin."""

    def exact(value: float | str | None) -> Any:
        return {"value": repr(value), "hex": value.hex()} if isinstance(value, float) else value

    return {
        "summary": str(conflict),
        **{name: exact(value) for name, value in asdict(conflict).items()},
        "sides": {name: dict(side) for name, side in sides.items()},
    }


# Turns an engine's results into rows of the three tables.


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

    def written(self) -> dict[str, pa.Table]:
        """Return the tables as they are written: those with rows, and last the runs, which name the others."""
        points = {kind: self.table(kind) for kind in POINTS_OF if self.table(kind).num_rows}
        return {**points, "runs": with_partners(self.runs, self)}

    def only(self, run_ids: set[str]) -> Shard:
        """Return the shard with only these runs."""
        if set(self.runs["run_id"].to_pylist()) <= run_ids:
            return self
        wanted = pa.array(sorted(run_ids), pa.string())
        return Shard(*(filter_runs(table, wanted) for table in (self.runs, self.curves, self.steps)))


def filter_runs(table: pa.Table, run_ids: pa.Array) -> pa.Table:
    """Return the rows whose run is among ``run_ids``."""
    return table.filter(pc.is_in(table["run_id"], value_set=run_ids))


def repeats(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return for each row whether these columns equal those of the row before it; null equals null."""
    same = pa.array([True] * (table.num_rows - 1), pa.bool_())
    for name in columns:
        column = table[name].combine_chunks()
        one, before = column[1:], column[:-1]
        equal = pc.fill_null(pc.equal(one, before), False)
        same = pc.and_(same, pc.or_(equal, pc.and_(one.is_null(), before.is_null())))
    return pa.concat_arrays([pa.array([False][: table.num_rows], pa.bool_()), same])


def to_shard(rows: Sequence[Row]) -> Shard:
    """Return the tables of ``rows``.

    Raises:
        StoreError: an unknown status, a step given twice in one curve, or a value that
            does not fit its column: a bug in an engine, named with the run.
    """
    for row in rows:
        _check(row.result)
    run_rows = list(map(run_row, rows))
    runs = to_table("runs", {name: [r[name] for r in run_rows] for name in schema("runs").names})
    curves = [(row.result.run_id, row.result.curve) for row in rows]
    steps = [(row.result.run_id, row.result.step_log) for row in rows]
    return Shard(runs, points_table("curves", curves), points_table("steps", steps))


def _check(result: RunResult) -> None:
    plain_name(result.run_id, "run_id")
    if result.status not in STATUSES:
        raise StoreError(f"run {result.run_id}: status {result.status!r}, expected one of {', '.join(STATUSES)}")
    points: Sequence[Sequence[CurvePoint | StepPoint]] = (result.curve, result.step_log)
    for name, log in zip(("curve", "step log"), points, strict=True):
        for step, count in Counter(point.step for point in log).items():
            if count > 1:
                raise StoreError(f"run {result.run_id}: its {name} has step {step} twice")


def run_row(finished: Row) -> dict[str, Any]:
    """Return the run's row: a value for every column of the schema.

    The measurements are those of the last evaluation (at the last step).
    """
    result, config = finished.result, finished.config
    last = max(result.curve, key=lambda point: point.step, default=CurvePoint(step=0))
    row: dict[str, Any] = dict.fromkeys(schema("runs").names)
    row |= {CONFIG + name: without_secrets(value) for name, value in flatten(config).items()}
    row |= asdict(finished.identity)
    row |= {f"seed_{stream}": seed for stream, seed in asdict(config.stream_seeds()).items()}
    row |= {
        "mode": config.mode,
        "seed": config.seed,
        "replicate": config.replicate,
        **{name: getattr(last, name) for name in MEASUREMENTS if name != "lr"},
        "layers": canonical_json(config.seeds.layers),
        "data_hash": finished.data_hash,
        "own_code": canonical_json(dict(finished.code)) if finished.code else None,
        "numerics_version": NUMERICS_VERSION,
        "rerun": without_passwords(rerun_command(config)),
    }
    row |= {f.name: getattr(result, f.name) for f in fields(result) if f.name not in {"curve", "step_log", "tensors"}}
    row |= asdict(finished.provenance)
    if result.lane_width is not None:  # the width that the engine used, not the setting
        row["lane_width"] = result.lane_width
    row["error"] = None if result.error is None else without_passwords(_storable(result.error))
    row["started_at"] = _time(result.started_at)
    return row


def points_table(kind: str, logs: Sequence[tuple[str, Sequence[CurvePoint | StepPoint]]]) -> pa.Table:
    """Return the evaluations or the per-step logs, each of one ``run_id``, ordered by run and step."""
    points = [point for _, log in logs for point in sorted(log, key=attrgetter("step"))]
    columns: dict[str, list[Any]] = {"run_id": [run_id for run_id, log in logs for _ in log]}
    columns |= {f.name: [_stored(getattr(p, f.name)) for p in points] for f in fields(POINTS_OF[kind])}
    return to_table(kind, columns)


def _stored(value: Any) -> Any:
    """Return a number as it is, and a map as JSON: null if it is empty, and in it for what is not finite."""
    if isinstance(value, dict):
        return json.dumps(finite_or_null(value), separators=(",", ":")) if value else None
    return _storable(value) if isinstance(value, str) else value


def with_partners(runs: pa.Table, shard: Shard) -> pa.Table:
    """Return ``runs`` with metadata that names the other tables with rows in this shard."""
    partners = [kind for kind in POINTS_OF if shard.table(kind).num_rows]
    return runs.replace_schema_metadata({**runs.schema.metadata, PARTNERS_KEY: ",".join(partners).encode()})


def _time(seconds: float) -> datetime | None:
    """Return UTC without a zone (every parquet reader can read it), or None for NaN."""
    return None if math.isnan(seconds) else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _storable(text: str) -> str:
    """Return ``text`` with escapes for what is not valid UTF-8: an error message may quote any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()
