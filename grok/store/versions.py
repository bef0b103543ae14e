"""Tables of older schemas: what each schema version changed, applied in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from grok.errors import StoreError
from grok.store.schema import KIND_KEY, SCHEMA_VERSION, VERSION_KEY, conform, schema, schema_version

Migration = Callable[[str, pa.Table], pa.Table]

MIGRATIONS: Final[dict[int, Migration]] = {}
"""From version n to n + 1: ``(kind, table) -> table``. Settings that were only added need
no entry, :func:`grok.store.schema.conform` fills them in."""


def upgrade(kind: str, table: pa.Table) -> pa.Table:
    """Return ``table`` with the current version's columns.

    Raises:
        StoreError: the table is from a newer schema, or from one for which no migration is known.
    """
    version = schema_version(table.schema.metadata, f"a shard of {kind}")
    if version == SCHEMA_VERSION and table.schema.equals(schema(kind)):
        return table
    metadata = table.schema.metadata
    while version < SCHEMA_VERSION:
        if version not in MIGRATIONS:
            known = min(MIGRATIONS, default=SCHEMA_VERSION)
            raise StoreError(f"schema {version} of {kind} is too old to migrate: the oldest one known is {known}")
        table = MIGRATIONS[version](kind, table)
        version += 1
    table = table.replace_schema_metadata({**metadata, VERSION_KEY: str(version).encode(), KIND_KEY: kind.encode()})
    return conform(kind, table)
