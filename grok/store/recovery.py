"""What opening a store for writing puts right after a kill, a crash or a damaged disk.

All of it happens under the store's lock, in an order in which a second kill at any
point leaves a state that the next opening can put right.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grok.errors import StoreError
from grok.files import exchange, flush_folder, remove_quietly, write_json
from grok.store.layout import EMPTY, Layout, shard_names
from grok.store.schema import KINDS
from grok.store.shards import ShardDamaged, check_shard, ensure_readable, partners

READY: Final = "ready.json"
"""In a compaction's folder in ``tmp/``: its tables are complete, the exchange has begun or may begin."""

COMPACTION: Final = "compaction."
"""Prefix of a compaction's folder in ``tmp/``."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """One thing that was put right."""

    name: str
    """Name of the shard, without table and suffix."""
    reason: str
    orphan: bool = False
    """The rest of a commit that a kill cut short: nothing was lost, no run was finished."""

    def __str__(self) -> str:
        if self.orphan:
            return f"retired an unfinished commit ({self.name}): {self.reason}"
        return f"quarantined shard {self.name}: {self.reason}; its runs count as not done"


def recover(layout: Layout, *, thorough: bool) -> list[Recovered]:
    """Finish an interrupted compaction, quarantine damaged shards, retire orphans, empty ``tmp/``.

    The caller holds the lock. ``thorough`` reads every page, otherwise footers only.

    Raises:
        StoreError: a shard of another schema: newer, or in need of ``migrate``.
    """
    finish_compaction(layout)
    damaged = find_damaged(layout, thorough=thorough)
    done = [quarantine(layout, name, reason) for name, reason in sorted(damaged.items())]
    done += retire_orphans(layout)
    _empty_tmp(layout)
    ensure_readable(layout)
    return done


def find_damaged(layout: Layout, *, thorough: bool) -> dict[str, str]:
    """Return the names of damaged shards, each with its reasons.

    Raises:
        StoreError: a shard has the columns of another version.
    """
    reasons: dict[str, list[str]] = defaultdict(list)
    for kind in KINDS:
        for name in sorted(shard_names(layout.table(kind))):
            path = layout.shard(kind, name)
            try:
                current = check_shard(path, kind, thorough)
                if kind == "runs":
                    missing = [k for k in partners(path) if not layout.shard(k, name).exists()]
                    reasons[name] += [f"its {k} are missing" for k in missing]
            except ShardDamaged as damage:
                if name == EMPTY:
                    remove_quietly(path)  # holds nothing; it is made again
                else:
                    reasons[name].append(f"{kind}: {damage}")
                continue
            if not current:
                raise StoreError(
                    f"{path} has the columns of another version: run `python -m grok.store migrate {layout.root}` first"
                )
    return {name: "; ".join(why) for name, why in reasons.items() if why}


def quarantine(layout: Layout, name: str, reason: str, *, orphan: bool = False) -> Recovered:
    """Move the shard's tables to ``quarantine/`` with the reason beside them; runs first: they make it count."""
    layout.quarantine.mkdir(exist_ok=True)
    for kind in KINDS:
        source = layout.shard(kind, name)
        if source.exists():
            source.replace(_free(layout.quarantine / f"{kind}-{name}.parquet"))
            flush_folder(layout.table(kind))
    write_json(_free(layout.quarantine / f"{name}.json"), {"shard": name, "reason": reason}, layout.tmp)
    return Recovered(name, reason, orphan)


def retire_orphans(layout: Layout) -> list[Recovered]:
    """Move tables without their runs table to quarantine: the commit was cut short. The caller holds the lock."""
    orphans = (layout.names("curves") | layout.names("steps")) - layout.names("runs")
    reason = "its runs were never committed; they are trained again"
    return [quarantine(layout, name, reason, orphan=True) for name in sorted(orphans)]


def _free(path: Path) -> Path:
    serial, free = 1, path
    while free.exists():
        serial += 1
        free = path.with_name(f"{path.stem}.{serial}{path.suffix}")
    return free


def _empty_tmp(layout: Layout) -> None:
    # Everything in tmp/ is written under the lock, so what is there now is a dead process's.
    for entry in layout.tmp.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            remove_quietly(entry)


def unfinished_compaction(layout: Layout) -> Path | None:
    """Return the folder of a compaction that was ready and has not been finished, if there is one."""
    with suppress(FileNotFoundError):
        for folder in sorted(layout.tmp.glob(f"{COMPACTION}*")):
            if (folder / READY).exists():
                return folder
    return None


def finish_compaction(layout: Layout) -> None:
    """Carry a compaction that is ready to its end: exchange what is not yet exchanged. The caller holds the lock."""
    folder = unfinished_compaction(layout)
    if folder is None:
        return
    contents = json.loads((folder / READY).read_text(encoding="utf-8"))
    for kind in ("curves", "steps", "runs"):
        if shard_names(folder / kind) == set(contents[kind]):  # the new table still waits here
            exchange(folder / kind, layout.table(kind))
    (folder / READY).unlink()
    flush_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)
