"""Compares two runs that must have equal bits.

Runs of equal trajectory and equal numerics tag must have equal bits at common steps, and
equal weights after equally many steps. A run that switches in mid-run equals its trunk up to
that step. A difference is a conflict: it is reported with
both sides, and neither side is preferred.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from grok.records import tags_of

MEASUREMENTS: Final = ("train_loss", "train_acc", "val_loss", "val_acc", "weight_norm", "weight_norm_all", "lr")
"""Columns of ``curves`` that depend on the trajectory alone, not on the evaluation schedule."""

FACTS: Final = (
    "run_id",
    "trajectory_id",
    "numerics",
    "status",
    "steps",
    "weights_hash",
    "mode",
    "parent_run_id",
    "branch_step",
)
"""Columns of ``runs`` that a comparison needs."""


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
        "run_id": conflict.run_id,
        "other_run_id": conflict.other_run_id,
        "trajectory_id": conflict.trajectory_id,
        "numerics": conflict.numerics,
        "step": conflict.step,
        "what": conflict.what,
        "value": exact(conflict.value),
        "other_value": exact(conflict.other_value),
        "sides": {name: dict(side) for name, side in sides.items()},
    }
