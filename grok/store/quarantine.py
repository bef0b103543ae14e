"""What cannot be counted is put aside, never thrown away, each file with its reason beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grok.files import flush_folder, write_json
from grok.store.layout import Layout
from grok.store.schema import KINDS


@dataclass(frozen=True, slots=True)
class Recovered:
    """One thing that was put right."""

    name: str
    """Name of the shard, without table and suffix."""
    reason: str
    orphan: bool = False
    """The rest of a commit that a kill cut short: nothing was lost, no run was finished."""
    copy: bool = False
    """Its runs are in another shard as well: nothing was lost."""

    def __str__(self) -> str:
        if self.orphan:
            return f"retired an unfinished commit ({self.name}): {self.reason}"
        if self.copy:
            return f"put aside shard {self.name}: {self.reason}"
        return f"quarantined shard {self.name}: {self.reason}; its runs count as not done"


def quarantine(layout: Layout, name: str, reason: str, *, orphan: bool = False, copy: bool = False) -> Recovered:
    """Move the shard's tables to ``quarantine/`` with the reason beside them; runs first: they make it count."""
    layout.quarantine.mkdir(exist_ok=True)
    for kind in KINDS:
        source = layout.shard(kind, name)
        if os.path.lexists(source):
            source.replace(_free(layout.quarantine / f"{kind}-{name}.parquet"))
            flush_folder(layout.table(kind))
    write_json(_free(layout.quarantine / f"{name}.json"), {"shard": name, "reason": reason}, layout.tmp)
    return Recovered(name, reason, orphan, copy)


def put_aside(layout: Layout, kind: str, path: Path, reason: str) -> str:
    """Move one file of table ``kind`` to ``quarantine/``; return the name it has there."""
    layout.quarantine.mkdir(exist_ok=True)
    target = _free(layout.quarantine / f"{kind}-{path.name}")
    path.replace(target)
    flush_folder(layout.quarantine)
    write_json(_free(target.with_suffix(".json")), {"shard": path.stem, "reason": reason}, layout.tmp)
    return target.name


def keep_copy(layout: Layout, name: str, reason: str) -> None:
    """Keep the shard's tables as they are in ``quarantine/`` as well, before rows are taken out of them."""
    layout.quarantine.mkdir(exist_ok=True)
    for kind in KINDS:
        source = layout.shard(kind, name)
        if source.exists():
            os.link(source, _free(layout.quarantine / f"{kind}-{name}.parquet"))
    flush_folder(layout.quarantine)
    write_json(_free(layout.quarantine / f"{name}.json"), {"shard": name, "reason": reason}, layout.tmp)


def _free(path: Path) -> Path:
    serial, free = 1, path
    while os.path.lexists(free):
        serial += 1
        free = path.with_name(f"{path.stem}.{serial}{path.suffix}")
    return free
