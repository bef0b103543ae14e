"""Migration: rewrites the shards of an older schema with this version's columns.

Reading does not need a migration: older shards are upgraded in memory. Writing needs it,
because every shard of a store has the same columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from grok.errors import StoreError
from grok.files import disk_errors, locked, write_json
from grok.store.damage import ForeignFile, NotAShard, ShardDamaged, refuse_without_threads
from grok.store.layout import EMPTY, Layout, current_marker, is_current, make_store, read_marker, shard_names
from grok.store.quarantine import Recovered, quarantine
from grok.store.recovery import recover
from grok.store.schema import SHARDS, TABLES
from grok.store.shards import check_shard, open_shard, read_shard, replace_table
from grok.store.unfinished import finish_compaction
from grok.store.versions import upgrade


@dataclass(slots=True)
class Migration:
    """The result of a migration."""

    from_version: int
    shards: int = 0
    """Number of files that were rewritten."""
    recovered: list[Recovered] = field(default_factory=list)


def migrate(path: str | Path) -> Migration:
    """Rewrite every shard of an older schema in place, each by one rename.

    Readers see every row once at every moment; during the migration some shards have the
    new columns and some the old ones. ``store.json`` is replaced last, so the same
    command finishes a migration that was killed.

    Raises:
        StoreError: no store, a newer schema, one too old to migrate, or a full disk;
            the first three before anything is written.
    """
    layout = Layout(Path(path))
    marker = read_marker(layout)
    done = Migration(marker["schema_version"])
    refuse_without_threads(layout.root)
    _refuse_unknown(layout)
    make_store(path)
    with disk_errors(f"migrating {path}"), locked(layout.lock):
        finish_compaction(layout)
        for of, kind in ((of, kind) for of, kinds in SHARDS.items() for kind in kinds):
            for name in sorted(shard_names(layout.table(kind))):
                shard = layout.shard(kind, name)
                try:
                    if check_shard(shard, kind, thorough=False).current:
                        continue
                    replace_table(layout, kind, name, read_shard(shard, kind))
                    done.shards += 1
                except FileNotFoundError:  # in quarantine with its runs
                    continue
                except ForeignFile:
                    continue  # is not changed
                except ShardDamaged as damage:
                    if name == EMPTY:
                        shard.unlink()
                    else:
                        done.recovered.append(quarantine(layout, name, f"{kind}: {damage}", of=of))
        if not is_current(marker):
            write_json(layout.marker, current_marker(), layout.tmp)
        done.recovered += recover(layout, thorough=False)
    return done


def _refuse_unknown(layout: Layout) -> None:
    """Raise StoreError where a shard cannot be migrated; tries the upgrade on every shard's columns without rows."""
    for kind in TABLES:
        for name in sorted(shard_names(layout.table(kind))) if layout.table(kind).is_dir() else []:
            try:
                with open_shard(layout.shard(kind, name), kind) as file:
                    columns = file.schema_arrow.with_metadata(file.metadata.metadata)
                upgrade(kind, columns.empty_table())
            except NotAShard:
                continue  # goes to quarantine, or is not changed
            except (pa.ArrowException, KeyError) as error:
                raise StoreError(f"{layout.shard(kind, name)} cannot be migrated: {error}") from error
