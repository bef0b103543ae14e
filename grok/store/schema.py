"""The columns of a store: one full, ordered, typed schema per table, the same in every shard, each described.

``runs`` has one row per run, ``curves`` one per evaluation, ``steps`` one per optimiser
step of a GPT run. Settings appear as ``config.<dotted name>``; lists and maps are
canonical JSON text. A float that is not a number is null: pandas, DuckDB and Polars
then give the same means. Infinities stay.
"""

from __future__ import annotations

import functools
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any, Final

import pyarrow as pa

from grok.config import MODES, config_columns
from grok.config.fields import NEVER, recorded_of, takes_null
from grok.config.gpt import EVENTS
from grok.errors import StoreError
from grok.records import CurvePoint, StepPoint

SCHEMA_VERSION: Final = 2
"""Raised when a column changes its name, type or meaning, together with a step in ``grok.store.schema``.

A column that is only *added* needs no new number: ``store.json`` lists the columns, and ``migrate``
fills the new one: a setting with its neutral value, an event time with null (the report then
computes it from the curves).
"""

KINDS: Final = ("runs", "curves", "steps")
"""The tables of a shard of runs."""
TABLES: Final = (*KINDS, "designs")
"""All tables: ``designs`` has shards of its own, which are written when a plan is made."""
SHARDS: Final = {"runs": KINDS, "designs": ("designs",)}
"""The tables of a shard, by the table that a shard is counted by."""
OF_KINDS: Final = tuple((of, kind) for of, kinds in SHARDS.items() for kind in kinds)
"""Every table, with the table that its shards are counted by."""
POINTS_OF: Final = {"curves": CurvePoint, "steps": StepPoint}
"""The records whose fields, in their order, are the columns of a table of points after ``run_id``."""
POINTS: Final = ("run_id", "step")
KEYS: Final = {
    "runs": ("run_id",),
    "curves": POINTS,
    "steps": POINTS,
    "designs": ("design_id", "run_id", "role", "unit"),
}
"""The columns that no two rows of a table share."""
VERSION_KEY: Final = b"grok.schema_version"
KIND_KEY: Final = b"grok.table"
PARTNERS_KEY: Final = b"grok.partners"
"""In a runs shard: the other tables that have a shard of the same name."""

CONFIG: Final = "config."
TEXT, INT, FLOAT, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()

_RUNS: Final = (
    ("run_id", TEXT, True),
    ("trajectory_id", TEXT, True),
    ("config_id", TEXT, True),
    ("parent_run_id", TEXT, False),
    ("branch_step", INT, False),
    ("mode", TEXT, True),
    ("seed", INT, True),
    ("seed_split", INT, True),
    ("seed_init", INT, True),
    ("seed_order", INT, True),
    ("replicate", INT, True),
    ("status", TEXT, True),
    ("stop_reason", TEXT, False),
    ("error", TEXT, False),
    ("steps", INT, True),
    ("train_loss", FLOAT, False),
    ("train_acc", FLOAT, False),
    ("val_loss", FLOAT, False),
    ("val_acc", FLOAT, False),
    ("weight_norm", FLOAT, False),
    ("weight_norm_all", FLOAT, False),
    ("weights_hash", TEXT, False),
    ("memorised_step", INT, False),
    ("grokked_step", INT, False),
    ("val_loss_peak_step", INT, False),
    ("weight_norm_peak_step", INT, False),
    ("seconds", FLOAT, False),
    ("host", TEXT, False),
    ("device", TEXT, False),
    ("numerics", TEXT, False),
    ("git_commit", TEXT, False),
    ("git_dirty", FLAG, False),
    ("torch_version", TEXT, False),
    ("started_at", pa.timestamp("us"), False),
    ("memorised_loss_step", INT, False),
    ("grokked_for_good_step", INT, False),
    ("val_acc_dips", INT, False),
    ("weight_norm_fall_step", INT, False),
)
_PROVENANCE: Final = (
    ("seed_dropout", INT, True),
    ("seed_eval", INT, True),
    ("seed_sample", INT, True),
    ("seed_perturb", INT, True),
    ("layers", TEXT, True),
    ("data_hash", TEXT, False),
    ("sweep_id", TEXT, False),
    ("lane_width", INT, False),
    ("numerics_version", INT, False),
    ("grok_version", TEXT, False),
    ("python_version", TEXT, False),
    ("numpy_version", TEXT, False),
    ("rerun", TEXT, True),
    ("own_code", TEXT, False),
)
_DESIGNS: Final = (
    ("design_id", TEXT, True),
    ("kind", TEXT, True),
    ("run_id", TEXT, True),
    ("role", TEXT, True),
    ("unit", TEXT, True),
    ("parent_run_id", TEXT, False),
    ("donor_run_id", TEXT, False),
    ("redrawn", TEXT, False),
    ("choice", TEXT, True),
    ("choice_detail", TEXT, False),
    ("from_step", INT, False),
    ("line", TEXT, False),
    ("origin", TEXT, True),
    ("results_seen", FLAG, True),
    ("planned_at", pa.timestamp("us"), True),
    ("retired", TEXT, False),
)


@functools.cache
def schema(kind: str) -> pa.Schema:
    """Return the Arrow schema of table ``kind`` (one of ``TABLES``), its version in the metadata."""
    if kind == "runs":
        settings = [(CONFIG + name, arrow_type(hint), False) for name, hint in config_columns().items()]
        columns = [*_RUNS, *settings, *_PROVENANCE]
    elif kind == "designs":
        columns = list(_DESIGNS)
    else:
        hints = typing.get_type_hints(POINTS_OF[kind])
        columns = [("run_id", TEXT, True)]
        columns += [(f.name, arrow_type(hints[f.name]), f.name == "step") for f in fields(POINTS_OF[kind])]
    arrow_fields = [pa.field(name, type_, not required) for name, type_, required in columns]
    metadata = {
        VERSION_KEY: str(SCHEMA_VERSION).encode(),
        KIND_KEY: kind.encode(),
        b"pandas": _for_pandas(arrow_fields),
    }
    return pa.schema(arrow_fields, metadata)


def _for_pandas(columns: list[pa.Field]) -> bytes:
    """Return the metadata that makes ``pandas.read_parquet`` use ``Int64`` for nullable integers.

    Without it they become floats, which cannot represent a 63-bit seed. Format:
    https://pandas.pydata.org/docs/development/developer.html
    """
    integers = [
        {"name": f.name, "field_name": f.name, "pandas_type": "int64", "numpy_type": "Int64", "metadata": None}
        for f in columns
        if f.type == INT and f.nullable
    ]
    note = {
        "index_columns": [],
        "column_indexes": [],
        "columns": integers,
        "creator": {"library": "grok-lab", "version": str(SCHEMA_VERSION)},
        "pandas_version": "3.0.0",
    }
    return json.dumps(note, separators=(",", ":")).encode()


def arrow_type(hint: Any) -> pa.DataType:
    """Return the column type for the type hint of a setting or a record; lists and maps become JSON text."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (member for member in typing.get_args(hint) if member is not type(None))
    plain = {bool: FLAG, int: INT, float: FLOAT, str: TEXT}
    return plain.get(hint, TEXT)


@functools.cache
def columns_of(kind: str) -> dict[str, str]:
    """Return the table's columns in order, each with Arrow's name of its type."""
    return {field.name: str(field.type) for field in schema(kind)}


def schema_version(metadata: Mapping[bytes, bytes] | None, source: object) -> int:
    """Return the schema version in a shard's ``metadata``.

    Raises:
        ValueError: the metadata has none, so this is not a shard of a store.
        StoreError: it was written by a newer schema.
    """
    text = (metadata or {}).get(VERSION_KEY)
    if text is None:
        raise ValueError("not a shard of a store: it has no schema version")
    version = int(text)
    if version > SCHEMA_VERSION:
        raise StoreError(newer(source, f"schema {version}"))
    return version


def newer(source: object, what: str) -> str:
    """Return the message that refuses ``what`` of a newer version's store."""
    return (
        f"{source} has {what}, which this version does not know (schema {SCHEMA_VERSION}): update grok-lab to open it"
    )


def to_table(kind: str, columns: Mapping[str, Iterable[Any]]) -> pa.Table:
    """Return the table of ``columns`` (every column of the schema, in any order); NaN becomes null.

    Raises:
        StoreError: a value does not fit its column, or a required value is missing.
    """
    full = schema(kind)
    assert set(columns) == set(full.names), f"{kind}: columns differ from the schema: {set(columns) ^ set(full.names)}"
    arrays = []
    for field in full:
        try:
            array = pa.array(columns[field.name], type=field.type, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise StoreError(f"column {field.name} of {kind}: expected {field.type} values: {error}") from None
        if array.null_count and not field.nullable:
            raise StoreError(f"column {field.name} of {kind} has no value in {array.null_count} rows: it is required")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=full)


def conform(kind: str, table: pa.Table) -> pa.Table:
    """Return ``table``, of the current schema version, with all current columns in their order.

    A setting that the table lacks gets its neutral value where one is declared (runs of
    before behaved so), otherwise null.

    Raises:
        StoreError: the table has a column that this version does not know.
        pa.ArrowInvalid: a required column is missing, has nulls or has another type: it is no table of this kind.
    """
    full = schema(kind)
    known, given = set(full.names), set(table.column_names)  # Arrow lists the names anew each time
    unknown = [name for name in table.column_names if name not in known]
    if unknown:
        raise StoreError(newer(f"a shard of {kind}", f"the column {unknown[0]!r}"))
    arrays = [_conforming(kind, field, table, field.name in given) for field in full]
    kept = {k: v for k, v in (table.schema.metadata or {}).items() if k == PARTNERS_KEY}
    return pa.Table.from_arrays(arrays, schema=full.with_metadata({**full.metadata, **kept}))


def _conforming(kind: str, field: pa.Field, table: pa.Table, given: bool) -> pa.ChunkedArray | pa.Array:
    if given:
        column = table[field.name]
        # a setting's type may have changed from integer to float; a seed stored as a float would have lost digits
        if column.type != field.type and not field.name.startswith(CONFIG):
            raise pa.ArrowInvalid(f"column {field.name} is {column.type}, expected {field.type}")
        column = column.cast(field.type)
    else:
        column = _filled(kind, field, table)
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid(f"column {field.name} has no value in {column.null_count} rows")
    return column


def _filled(kind: str, field: pa.Field, table: pa.Table) -> pa.Array:
    if kind != "runs" or not field.name.startswith(CONFIG):
        return pa.nulls(table.num_rows, field.type)
    name = field.name.removeprefix(CONFIG)
    neutral = {mode: _neutral(mode, name) for mode in MODES}
    return pa.array([neutral.get(mode) for mode in table["mode"].to_pylist()], type=field.type)


def _neutral(mode: str, name: str) -> Any:
    declared = recorded_of(MODES[mode]).get(name)
    if declared is None or declared[1].neutral is NEVER:
        return None
    value = declared[1].neutral
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, (list, dict)) else value


# Upgrades tables of older schemas in memory, one schema version at a time.

Migration = Callable[[str, pa.Table], pa.Table]

REMOVED: Final = (
    *("checkpoint.keep_last", "eval.average_points", "eval.temperature", "eval.top_k", "log.mlflow"),
    *("log.profile_steps", "log.wandb_mode", "optim.cycle_end", "optim.cycle_rise", "optim.cycle_start"),
    *("optim.momentum", "stability.factor", "stability.growth", "stability.least_scale", "stability.lr_cut"),
    *("stability.rise", "stability.rise_steps", "stability.skip_limit", "stability.snapshots", "stability.stuck"),
    *("stability.stuck_steps", "train.devices", "train.fsdp_keeps", "optim.wsd_decay"),
)
"""Settings of schema 1 that are constants now; ``grok.config`` keeps their place in the names of runs."""


MIGRATIONS: Final[dict[int, Migration]] = {
    1: lambda kind, t: t.drop_columns([CONFIG + name for name in REMOVED if CONFIG + name in t.column_names])
}
"""For version n the function ``(kind, table) -> table`` that upgrades to n + 1. An added column needs
no entry: :func:`grok.store.schema.conform` fills it."""


def upgrade(kind: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with the current version's columns.

    Raises:
        StoreError: the table has a newer schema, or an older one without a migration.
    """
    version = schema_version(table.schema.metadata, f"a shard of {kind}")
    if version == SCHEMA_VERSION and table.schema.equals(schema(kind)):
        return table
    metadata = table.schema.metadata
    while version < SCHEMA_VERSION:
        if version not in MIGRATIONS:
            known = min(MIGRATIONS, default=SCHEMA_VERSION)
            raise StoreError(f"schema {version} of {kind} is too old to migrate: the oldest known schema is {known}")
        table = MIGRATIONS[version](kind, table)
        version += 1
    table = table.replace_schema_metadata({**metadata, VERSION_KEY: str(version).encode(), KIND_KEY: kind.encode()})
    return conform(kind, table)


# The data dictionary: each column's meaning, its unit, and when it is null.
#
# The settings themselves describe the ``config.*`` columns (:mod:`grok.config`). A test compares this dictionary with
# the schema; the documentation's page *Columns* is made from it (``python -m docs.generate``).


@dataclass(frozen=True, slots=True)
class Column:
    """The description of one column."""

    meaning: str
    unit: str = ""
    """Empty: a name, a text or a flag."""
    null: str = ""
    """When the value is null; empty: never."""


def _read() -> tuple[dict[str, dict[str, Column]], dict[str, tuple[str, str]]]:
    """Return the columns by table, and the measurements, of ``columns.toml``."""
    text = files("grok.store").joinpath("columns.toml").read_text(encoding="utf-8")
    events = "; ".join(f"`{name}`: {words}" for name, words in EVENTS.items())
    tables = tomllib.loads(text.replace("{events}", events))
    measurements = {name: (meaning, settings) for name, (meaning, settings) in tables.pop("measurements").items()}
    columns = {kind: {name: Column(**column) for name, column in table.items()} for kind, table in tables.items()}
    return columns, measurements


DESCRIPTIONS, MEASUREMENTS = _read()
"""``TABLES``: the description of every column by table, without ``config.*``. ``MEASUREMENTS``: the entries of
``curves.metrics`` by name: the meaning, and the settings that measure it (``eval.metrics``)."""


def describe(kind: str) -> dict[str, Column]:
    """Return the description of every column of table ``kind``, in the table's order, ``config.*`` included."""
    described = dict(DESCRIPTIONS[kind])
    if kind == "runs":
        settings = {mode: recorded_of(config) for mode, config in MODES.items()}
        for name in (column.removeprefix(CONFIG) for column in schema(kind).names if column.startswith(CONFIG)):
            having = {mode: settings[mode][name] for mode in settings if name in settings[mode]}
            meaning = " / ".join(dict.fromkeys(rule.doc for _, rule in having.values()))
            nulls = [f"mode={mode}" for mode in settings if mode not in having]
            nulls += ["the setting is null"] if any(takes_null(hint) for hint, _ in having.values()) else []
            described[CONFIG + name] = Column(meaning, null="; ".join(nulls))
    return {name: described[name] for name in schema(kind).names}
