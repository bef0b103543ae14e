"""Upgrades tables of older schemas in memory, one schema version at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from grok.errors import StoreError
from grok.records import FORMER_COMPONENTS
from grok.store.schema import KIND_KEY, SCHEMA_VERSION, VERSION_KEY, conform, schema, schema_version

Migration = Callable[[str, pa.Table], pa.Table]

MIGRATIONS: Final[dict[int, Migration]] = {}
"""For version n the function ``(kind, table) -> table`` that upgrades to n + 1. An added column needs
no entry: :func:`grok.store.schema.conform` fills it."""


def name_components(table: pa.Table) -> pa.Table:
    """Return ``table`` with the present names of components in ``block_norms``, if it has that column."""
    if "block_norms" not in table.column_names:
        return table
    norms = table["block_norms"]
    for former, name in FORMER_COMPONENTS.items():
        norms = pc.replace_substring(norms, f'"{former}":', f'"{name}":')
    return table.set_column(table.column_names.index("block_norms"), table.schema.field("block_norms"), norms)


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
