"""Quarantine: unusable files are moved to ``quarantine/``, never deleted, with a JSON file that gives the reason."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grok.files import flush_folder, write_json
from grok.store.layout import Layout
from grok.store.schema import SHARDS


@dataclass(frozen=True, slots=True)
class Recovered:
    """One repair of a store."""

    name: str
    """Name of the shard, without table and suffix."""
    reason: str
    orphan: bool = False
    """The shard was part of a commit that a kill interrupted: its runs were not stored, and no stored run is lost."""
    copy: bool = False
    """The shard's rows are also in another shard: none is lost."""
    of: str = "runs"
    """``runs``, or ``designs``: the table that the shard is counted by."""

    def __str__(self) -> str:
        if self.orphan:
            return f"moved an unfinished commit ({self.name}) to quarantine: {self.reason}"
        if self.copy:
            return f"moved shard {self.name} to quarantine: {self.reason}"
        if self.of == "designs":
            return (
                f"moved shard {self.name} of designs to quarantine: {self.reason}; nobody knows what its runs were for"
            )
        return f"moved shard {self.name} to quarantine: {self.reason}; its runs count as not stored"


def quarantine(
    layout: Layout, name: str, reason: str, *, orphan: bool = False, copy: bool = False, of: str = "runs"
) -> Recovered:
    """Move the shard's tables to ``quarantine/`` with the reason in a JSON file.

    The runs move first: readers count a shard by its runs.
    """
    layout.quarantine.mkdir(exist_ok=True)
    for kind in SHARDS[of]:
        source = layout.shard(kind, name)
        if os.path.lexists(source):
            source.replace(_free(layout.quarantine / f"{kind}-{name}.parquet"))
            flush_folder(layout.table(kind))
    write_json(_free(layout.quarantine / f"{name}.json"), {"shard": name, "reason": reason}, layout.tmp)
    return Recovered(name, reason, orphan, copy, of)


def put_aside(layout: Layout, kind: str, path: Path, reason: str) -> str:
    """Move one file of table ``kind`` to ``quarantine/``; return its name in that folder."""
    layout.quarantine.mkdir(exist_ok=True)
    target = _free(layout.quarantine / f"{kind}-{path.name}")
    path.replace(target)
    flush_folder(layout.quarantine)
    write_json(_free(target.with_suffix(".json")), {"shard": path.stem, "reason": reason}, layout.tmp)
    return target.name


def keep_copy(layout: Layout, name: str, reason: str, of: str = "runs") -> None:
    """Link the shard's tables into ``quarantine/``, before rows are removed from the shard."""
    layout.quarantine.mkdir(exist_ok=True)
    for kind in SHARDS[of]:
        source = layout.shard(kind, name)
        if source.exists():
            os.link(source, _free(layout.quarantine / f"{kind}-{name}.parquet"))
    flush_folder(layout.quarantine)
    write_json(_free(layout.quarantine / f"{name}.json"), {"shard": name, "reason": reason}, layout.tmp)


def _free(path: Path) -> Path:
    """Return ``path``, or the first of ``path.2``, ``path.3``, ... (before the suffix) that does not exist."""
    serial, free = 1, path
    while os.path.lexists(free):
        serial += 1
        free = path.with_name(f"{path.stem}.{serial}{path.suffix}")
    return free
