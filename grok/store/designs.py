"""What each run was for: the rows of ``designs/``, written when a plan is made, before anything trains.

A *design* is one plan: a sweep, the branches of chosen parents, the repeats of candidates. One row says what one run
was for in it. Several designs may claim a run; no row ever changes what another row says. Analyses read these rows
and infer nothing: the purpose of a run without a row is unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from grok.config.fields import canonical_json
from grok.store.schema import schema, to_table

KINDS_OF_DESIGN: Final = ("sweep", "crossed", "branch", "repeat", "layers", "search", "extend")
ROLES: Final = ("member", "parent", "child", "candidate", "control", "cell", "recipient", "donor", "trial")
CHOICES: Final = ("given", "drawn", "best", "named", "unstated")
"""How a run, or its parent, came into a design. ``given``: the command lists its seeds; ``drawn``: at random;
``best``: by results, ``choice_detail`` says by which; ``named``: by its run_id; ``unstated``: nobody said."""
ORIGINS: Final = ("planned", "reconstructed")
KEY: Final = ("design_id", "run_id", "role", "unit")
"""What no two rows share."""
FOUND: Final = ("parent_run_id", "donor_run_id", "line", "choice_detail")
"""What a plan finds in the store, and another one of the same command may find otherwise: in no ``design_id``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What one run is for in one design."""

    role: str = "member"
    unit: Mapping[str, Any] = field(default_factory=dict)
    """The run's place in the design, such as ``{"seed": 8}``, ``{"trial": 3, "seed": 0}`` or ``{"repeat": 1}``."""
    parent_run_id: str | None = None
    """The run whose streams this one keeps, or which it repeats."""
    donor_run_id: str | None = None
    """The run whose weights or streams this one takes over."""
    redrawn: tuple[str, ...] | None = None
    """The streams or layers that are not the parent's; empty: none (a repeat). None: there is no parent."""
    choice: str = "given"
    choice_detail: Mapping[str, Any] | None = None
    """By what, at which step and among how many runs it was chosen."""
    from_step: int | None = None
    """The step from which on the run differs from its parent; None: from the start."""
    line: str | None = None
    """The first ancestor of the parent, or the parent itself if it has none."""


@dataclass(frozen=True, slots=True)
class Purposes:
    """What the runs of a plan are for, before the plan gives them their names."""

    kind: str
    of_each: Sequence[Purpose]
    """One for each planned config, in their order."""
    beside: Sequence[tuple[str, Purpose]] = ()
    """Further runs that belong to the design by ``run_id``: stored parents, candidates, controls."""
    design_id: str | None = None
    """Given for a search, whose rows are written batch by batch; None: the hash of the design."""

    def named(self, run_ids: Sequence[str]) -> Design:
        """Return the design of the runs that the plan named ``run_ids``."""
        rows = [*zip(run_ids, self.of_each, strict=True), *self.beside]
        once = {(run_id, canonical_json(_facts(purpose))): (run_id, purpose) for run_id, purpose in rows}
        return Design(self.kind, tuple(once.values()), self.design_id)


@dataclass(frozen=True, slots=True)
class Design:
    """One plan's rows."""

    kind: str
    rows: tuple[tuple[str, Purpose], ...]
    given_id: str | None = None

    @property
    def design_id(self) -> str:
        """The hash of kind and rows: the same plan has the same id, from whichever command and launcher.

        Whether a sweep only extends stored runs depends on the store, so both kinds have one id.
        """
        if self.given_id is not None:
            return self.given_id
        kind = "sweep" if self.kind == "extend" else self.kind
        asked = [
            (run_id, {k: v for k, v in _facts(purpose).items() if k not in FOUND}) for run_id, purpose in self.rows
        ]
        lines = sorted(f"{run_id}:{canonical_json(facts)}" for run_id, facts in asked)
        return hashlib.sha256(canonical_json([kind, lines]).encode()).hexdigest()[:20]

    def table(self, seen: Collection[str], origin: str = "planned", planned_at: datetime | None = None) -> pa.Table:
        """Return the rows as a table of ``designs/``.

        Args:
            seen: the runs of whose condition and streams a result was stored when the plan was made.
            planned_at: UTC without a zone; None: now.
        """
        now = planned_at or datetime.now(UTC).replace(tzinfo=None)
        same = {"design_id": self.design_id, "kind": self.kind, "origin": origin, "planned_at": now, "retired": None}
        rows = [
            {**same, "run_id": run_id, "results_seen": run_id in seen, **_columns(purpose)}
            for run_id, purpose in self.rows
        ]
        return to_table("designs", {name: [row[name] for row in rows] for name in schema("designs").names})


def _facts(purpose: Purpose) -> dict[str, Any]:
    return {
        "role": purpose.role,
        "unit": dict(purpose.unit),
        "parent_run_id": purpose.parent_run_id,
        "donor_run_id": purpose.donor_run_id,
        "redrawn": None if purpose.redrawn is None else sorted(purpose.redrawn),
        "choice": purpose.choice,
        "choice_detail": None if purpose.choice_detail is None else dict(purpose.choice_detail),
        "from_step": purpose.from_step,
        "line": purpose.line,
    }


def _columns(purpose: Purpose) -> dict[str, Any]:
    facts = _facts(purpose)
    texts = {
        name: None if facts[name] is None else canonical_json(facts[name]) for name in ("redrawn", "choice_detail")
    }
    return {**facts, "unit": canonical_json(facts["unit"]), **texts}


def keys_of(table: pa.Table) -> list[tuple[str, ...]]:
    """Return the key of every row."""
    return list(zip(*(table[name].to_pylist() for name in KEY), strict=True))


def decoded(text: str | None) -> Any:
    """Return the value of a JSON column; None for null."""
    return None if text is None else json.loads(text)
