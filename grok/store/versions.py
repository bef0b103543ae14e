"""Upgrades tables of older schemas in memory, one schema version at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from grok.errors import StoreError
from grok.store.schema import KIND_KEY, SCHEMA_VERSION, VERSION_KEY, conform, schema, schema_version

Migration = Callable[[str, pa.Table], pa.Table]

MIGRATIONS: Final[dict[int, Migration]] = {}
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
