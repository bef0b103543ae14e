"""What each run was for: the rows of ``designs/``, written when a plan is made, before anything trains.

A *design* is one plan: a sweep, the branches of chosen parents, the repeats of candidates. One row says what one run
was for in it. Several designs may claim a run; no row ever changes what another row says. Analyses read these rows
and infer nothing: the purpose of a run that no row trains is unknown.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.config.fields import canonical_json
from grok.errors import StoreError
from grok.store.rows import repeats
from grok.store.schema import KEYS, schema, to_table
from grok.untrusted import is_plain, read_json_text

if TYPE_CHECKING:
    import pandas as pd

KINDS_OF_DESIGN: Final = ("sweep", "crossed", "branch", "repeat", "layers", "search", "extend")
ROLES: Final = ("member", "parent", "child", "candidate", "control", "cell", "recipient", "donor", "trial")
CHOSEN: Final = ("parent", "candidate", "control")
"""The roles of runs that a plan chooses among those that are stored."""
TRAINED: Final = ("member", "child", "cell", "trial")
"""The roles of the runs that a plan trains. It names the others beside them."""
CHOICES: Final = ("given", "drawn", "best", "named", "unstated")
"""How a run, or its parent, came into a design. ``given``: the command lists its seeds; ``drawn``: at random;
``best``: by results, ``choice_detail`` says by which; ``named``: by its run_id; ``unstated``: nobody said."""
ORIGINS: Final = ("planned", "reconstructed")
KEY: Final = KEYS["designs"]
FACTS: Final = ("redrawn", "choice", "from_step")
"""What two rows of one key must agree in. The other columns say what a plan found, or how a row came into the store."""
LONGEST: Final = 100_000
"""Characters of a text or of JSON in a row."""


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
        values = ((run_id, *(_value(getattr(purpose, name)) for name in COLUMNS[1:])) for run_id, purpose in rows)
        return Design(self.kind, list(dict.fromkeys(values)), self.design_id)


@dataclass(frozen=True)
class Design:
    """One plan's rows."""

    kind: str
    rows: Sequence[tuple[Any, ...]]
    """Of each row the values of ``COLUMNS``; no two are equal."""
    given_id: str | None = None

    @functools.cached_property
    def design_id(self) -> str:
        """The hash of kind and rows: the same plan has the same id, from whichever command and launcher.

        What a plan finds in the store is not in it, because the same command may find something else the next time:
        parents, donors, ancestors, among how many was chosen, and whether a sweep only extends stored runs. Nor are
        rows of donors, whom the units of the cells name.
        """
        if self.given_id is not None:
            return self.given_id
        kind = "sweep" if self.kind == "extend" else self.kind
        hashed = (row for row in map(_ASKED, self.rows) if row[1] != "donor")
        rows = sorted(hashed, key=itemgetter(slice(3)))  # run_id, role, unit: no two rows share them
        return hashlib.sha256(canonical_json([kind, rows]).encode()).hexdigest()[:20]

    def table(self, seen: Collection[str], origin: str = "planned", planned_at: datetime | None = None) -> pa.Table:
        """Return the rows as a table of ``designs/``.

        Args:
            seen: the runs of whose condition and streams a result was stored when the plan was made.
            planned_at: UTC without a zone; None: now.

        Raises:
            StoreError: two rows share a key, or :func:`unsound` would not accept one.
        """
        count = len(self.rows)
        same = {
            "design_id": self.design_id,
            "kind": self.kind,
            "origin": origin,
            "planned_at": planned_at or datetime.now(UTC).replace(tzinfo=None),
            "retired": None,
        }
        columns: dict[str, Any] = {name: [value] * count for name, value in same.items()}
        columns |= dict(zip(COLUMNS, zip(*self.rows, strict=True) if count else [()] * len(COLUMNS), strict=True))
        columns["results_seen"] = [run_id in seen for run_id in columns["run_id"]]
        table = to_table("designs", columns)
        for row, why in unsound(table).items():
            raise StoreError(f"design {self.design_id}, run {columns['run_id'][row]}: {why}")
        keys = Counter(map(itemgetter(slice(3)), self.rows))
        if len(keys) < count:
            raise StoreError(f"design {self.design_id}: two rows of (run_id, role, unit) {keys.most_common(1)[0][0]}")
        return table


COLUMNS: Final = ("run_id", *(f.name for f in fields(Purpose)))
_ASKED: Final = itemgetter(*map(COLUMNS.index, ("run_id", "role", "unit", "redrawn", "choice", "from_step")))


def _value(value: Any) -> Any:
    """Return a value of a purpose as it is stored: maps and lists as JSON."""
    if isinstance(value, Mapping):
        return canonical_json(dict(value))
    return canonical_json(sorted(value)) if isinstance(value, (tuple, list)) else value


def keys_of(table: pa.Table) -> list[tuple[str, ...]]:
    """Return the key of every row."""
    return list(zip(*(table[name].to_pylist() for name in KEY), strict=True))


def settled(table: pa.Table) -> tuple[pa.Table, list[list[dict[str, Any]]]]:
    """Return the rows ordered by key, every key once, and the groups of rows that share a key and differ in ``FACTS``.

    Of rows with one key the one that was planned first stays; it is retired if any of them is. Of copies of one row
    the one that knows of a result stays: a merge found it since.
    """
    order = [*((name, "ascending") for name in (*KEY, "planned_at", "origin")), ("results_seen", "descending")]
    table = table.sort_by(order).combine_chunks()
    again = repeats(table, KEY)
    if not pc.any(again).as_py():
        return table, []
    other = pc.and_not(again, repeats(table, FACTS))
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {key: [] for key in keys_of(table.filter(other))}
    written = table.set_column(table.column_names.index("planned_at"), "planned_at", table["planned_at"].cast("string"))
    for at, key in enumerate(keys_of(table) if groups else ()):
        if key in groups:
            groups[key] += written.slice(at, 1).to_pylist()
    retired = table.filter(table["retired"].is_valid())
    why = dict(reversed(list(zip(keys_of(retired), retired["retired"].to_pylist(), strict=True))))
    once = table.filter(pc.invert(again))
    once = with_values(once, "retired", [why.get(key) for key in keys_of(once)]) if why else once
    return once, list(groups.values())


def with_values(table: pa.Table, column: str, values: Sequence[Any]) -> pa.Table:
    """Return the rows with these values in a column."""
    field = schema("designs").field(column)
    return table.set_column(table.column_names.index(column), field, pa.array(values, field.type))


def unsound(table: pa.Table) -> dict[int, str]:
    """Return the rows that no version of this project wrote, or only a later one: what is wrong, by position."""
    problems: dict[int, str] = {}
    for name, (accepts, expected) in _ACCEPTED.items():
        column = table[name].combine_chunks()
        column = column.cast("int64") if name == "planned_at" else column
        odd = [value for value in pc.unique(column).to_pylist() if not accepts(value)]
        if odd:
            rows = pc.indices_nonzero(pc.is_in(column, value_set=pa.array(odd, column.type))).to_pylist()
            problems |= {row: f"{name} is {str(column[row].as_py())[:80]!r}, expected {expected}" for row in rows}
    return dict(sorted(problems.items()))


def _among(known: Sequence[str]) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value in known, f"one of {', '.join(known)}"


def _is_simple(value: object) -> bool:
    return value is None or isinstance(value, (bool, str)) or (isinstance(value, (int, float)) and abs(value) < 2**63)


def _holds(text: str, hint: Any) -> bool:
    """Return whether the text is JSON of this type, and of simple values, of lists of them, or of maps of them."""
    try:
        value = read_json_text(text, hint) if len(text) <= LONGEST else None
    except ValueError:
        return False
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    parts = (one.values() if isinstance(one, dict) else one if isinstance(one, list) else (one,) for one in inside)
    return value is not None and all(_is_simple(part) for several in parts for part in several)


def _or_null(accepts: Callable[[Any], bool], expected: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: value is None or accepts(value), f"{expected}, or null"


_A_NAME: Final = (is_plain, "a name of letters, digits, '.', '_' and '-'")
_A_MAP: Final = (lambda text: _holds(text, dict[str, Any]), "a JSON map of numbers, texts, flags and lists of these")
_ACCEPTED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "design_id": _A_NAME,
    "kind": _among(KINDS_OF_DESIGN),
    "run_id": _A_NAME,
    "role": _among(ROLES),
    "unit": _A_MAP,
    "parent_run_id": _or_null(*_A_NAME),
    "donor_run_id": _or_null(*_A_NAME),
    "redrawn": _or_null(lambda text: _holds(text, list[str]), "a JSON list of texts"),
    "choice": _among(CHOICES),
    "choice_detail": _or_null(*_A_MAP),
    "from_step": _or_null(lambda value: value >= 0, "a step"),
    "line": _or_null(*_A_NAME),
    "origin": _among(ORIGINS),
    "planned_at": (lambda value: 0 <= value < 2**56, "microseconds since 1970"),
    "retired": _or_null(lambda value: len(value) <= LONGEST, f"at most {LONGEST} characters"),
}


def results_known(claims: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Return whether each row of ``claims`` was planned after a result of its place: results may have chosen it.

    ``results_seen`` says so of results in the store in which the plan was made, and of those that a merge met. Another
    run of the place that ended before the plan is a result, too. The claimed run itself does not count, because clocks
    differ between machines. Of a reconstructed row ``results_seen`` alone counts: somebody declared it since.

    Args:
        claims: with the columns run_id, place, results_seen, origin and planned_at, which may be :func:`decided`.
        runs: with the columns run_id, place, started_at and seconds.
    """
    import pandas as pd

    ended = runs["started_at"] + pd.to_timedelta(runs["seconds"].astype("float64"), unit="s")
    others = runs[["run_id", "place"]].assign(ended=ended)
    pairs = claims[["run_id", "place", "planned_at"]].reset_index(drop=True).rename_axis("claim").reset_index()
    pairs = pairs.merge(others, on="place", suffixes=("", "_other"))
    late = pairs["claim"][(pairs["run_id"] != pairs["run_id_other"]) & (pairs["ended"] <= pairs["planned_at"])]
    after = pd.Series(range(len(claims)), claims.index).isin(late) & (claims["origin"] == "planned")
    return claims["results_seen"].astype(bool) | after


def decided(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Return when it was decided to train the run of each row: as a rule when its plan was made.

    Of a plan with runs that are not stored only a part was carried out, and a later plan may have chosen the part: then
    it is when the last plan of the run was made before its training began.

    Args:
        rows: of all designs those with one of the roles ``TRAINED``.
        runs: all runs of the store, with the columns run_id and started_at.
    """
    started = runs.set_index("run_id")["started_at"].reindex(rows["run_id"]).set_axis(rows.index)
    unfinished = rows["design_id"].isin(rows["design_id"][~rows["run_id"].isin(runs["run_id"])])
    last = rows["planned_at"].where(rows["planned_at"] <= started).groupby(rows["run_id"]).transform("max")
    return rows["planned_at"].where(~(unfinished & (last > rows["planned_at"])), last)


def with_purposes(runs: pd.DataFrame, designs: pd.DataFrame) -> pd.DataFrame:
    """Return ``runs``, whose column ``run_id`` names them, with what each was for: ``design``, ``role``, ``design_id``.

    Design and role of a run that no row of ``designs`` trains begin with ``unknown``.
    """
    untold = set(runs["run_id"]).difference(designs["run_id"][designs["role"].isin(TRAINED)])
    designs = designs.assign(design=designs["kind"] + " " + designs["role"])
    runs = runs.copy(deep=False)
    for column, unknown in (("design", ["unknown"]), ("role", ["unknown"]), ("design_id", [])):
        texts: dict[str, dict[str, None]] = {run: dict.fromkeys(unknown) for run in untold}
        for run, text in zip(designs["run_id"], designs[column], strict=True):
            texts.setdefault(run, {})[text] = None
        runs[column] = [", ".join(texts[run]) or None for run in runs["run_id"]]
    return runs
