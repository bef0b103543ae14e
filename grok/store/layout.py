"""Paths inside a store, its marker file, and the paths that are refused.

```
STORE/
  store.json      marks the folder as a store: schema version and columns
  runs/ curves/ steps/    parquet shards; any reader may open a folder whole
  designs/        parquet shards, too: what each run was for
  checkpoints/<run_id>/   checkpoints and kept weights (grok.checkpoints)
  sweeps/         command and settings of every sweep
  conflicts/      runs that must have equal bits and differ, one JSON file each
  quarantine/     damaged and orphaned shards, each with its reason
  leases/         the runs that each running sweep trains
  live/           progress of running sweeps
  search/         searches over settings
  tmp/            files being written; no result depends on them
  lock            held while a process commits
```
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from grok.errors import StoreError
from grok.files import disk_errors, flush_folder, locked, unique, write_json
from grok.store.schema import SCHEMA_VERSION, TABLES, columns_of, newer
from grok.untrusted import is_folder, read_json_object, refuse_links, without_passwords

PRODUCT: Final = "grok-lab"
EMPTY: Final = "empty"
"""Name of the shard without rows that keeps a table readable until it has a real one."""


class StoreGone(StoreError):
    """The store was removed or moved while it was in use."""

    exit_status = 1

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"the store {root} was removed or moved while it was in use; runs that were not stored yet are lost: put "
            "it back and run the same command to continue, or run the command again to start a new store"
        )


@dataclass(frozen=True, slots=True)
class _Inside:
    """A file or folder of every store, as an attribute of its layout."""

    name: str

    def __get__(self, layout: Layout, cls: type[Layout]) -> Path:
        return layout.root / self.name


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store."""

    root: Path

    marker: ClassVar = _Inside("store.json")
    lock: ClassVar = _Inside("lock")
    tmp: ClassVar = _Inside("tmp")
    quarantine: ClassVar = _Inside("quarantine")
    checkpoints: ClassVar = _Inside("checkpoints")
    leases: ClassVar = _Inside("leases")
    conflicts: ClassVar = _Inside("conflicts")
    sweeps: ClassVar = _Inside("sweeps")
    search: ClassVar = _Inside("search")
    """Journals of searches over settings; exists once a search has run."""
    live: ClassVar = _Inside("live")
    """Progress of running sweeps; exists only while one runs."""

    def table(self, kind: str) -> Path:
        """Return the folder of table ``kind``."""
        return self.root / kind

    def shard(self, kind: str, name: str) -> Path:
        """Return the file of table ``kind`` in the shard ``name``, which may not exist."""
        return self.root / kind / f"{name}.parquet"

    def names(self, kind: str) -> set[str]:
        """Return the names of the table's shards, without the empty one."""
        return shard_names(self.table(kind)) - {EMPTY}

    def folders(self) -> tuple[Path, ...]:
        """Return the folders that every store has, apart from ``tmp/``."""
        tables = [self.table(kind) for kind in TABLES]
        return (*tables, self.checkpoints, self.sweeps, self.conflicts, self.quarantine, self.leases)


def missing_tables(layout: Layout) -> list[str]:
    """Return the names of the tables' folders that do not exist."""
    return [f"{kind}/" for kind in TABLES if not layout.table(kind).is_dir()]


def shard_names(folder: Path) -> set[str]:
    """Return the names, without suffix, of the parquet files in ``folder``.

    Links to files count: data sets under version control use them.
    """
    with os.scandir(folder) as entries:
        return {e.name.removesuffix(".parquet") for e in entries if _may_be_shard(e)}


def strangers(folder: Path) -> list[Path]:
    """Return the entries of a table's folder that cannot be shards: folders, other files, links to nothing."""
    with os.scandir(folder) as entries:
        return sorted(Path(e.path) for e in entries if not _may_be_shard(e))


def orphans(layout: Layout) -> list[str]:
    """Return the names of shards with curves or steps but no runs: a kill interrupted their commit.

    A shard whose runs file exists but is no file (a folder, a link to a file that is not fetched yet) is left out,
    because its runs may become readable again.
    """
    names = (layout.names("curves") | layout.names("steps")) - layout.names("runs")
    return sorted(name for name in names if not os.path.lexists(layout.shard("runs", name)))


def _may_be_shard(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.name.endswith(".parquet") and entry.is_file()
    except OSError:
        if entry.is_symlink():  # to itself
            return False
        raise


def check_path(path: str | Path, *, to_write: bool = True) -> bool:
    """Return whether ``path`` holds a store; False: a store can be made there. Writes nothing.

    ``to_write=False``: a store that can only be read will do.

    Raises:
        StoreError: the path is a file, a folder of something else, not writable, or a
            store of a newer schema, or, to write, of an older one.
    """
    layout = Layout(Path(path))
    with disk_errors(f"store.path={path}"):
        exists = _check_place(layout, to_write)
        if exists and to_write:
            refuse_older(layout)
    return exists


def refuse_unusable_name(path: Path) -> None:
    """Raise StoreError where ``path`` itself cannot name a store: no UTF-8, an address, or a null character."""
    text = str(path)
    unusable = any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)
    if unusable or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise StoreError(
            f"store.path={without_passwords(text)!r} is an address, has a null character or is not UTF-8, so parquet "
            "files in it cannot be opened: a store is a folder, give its path"
        )


def _check_place(layout: Layout, to_write: bool) -> bool:
    """Return whether the path holds a store, of this schema or an older one.

    Raises:
        StoreError: no store can be there.
    """
    refuse_unusable_name(layout.root)
    if layout.marker.is_file():
        read_marker(layout)
        if to_write:
            _refuse_unwritable(layout)
        refuse_links([*layout.folders(), layout.tmp, layout.search, layout.live], [layout.marker, layout.lock])
        refuse_missing(layout)
        return True
    if layout.root.is_dir():
        foreign = sorted(e.name for e in layout.root.iterdir() if not _is_half_made(layout, e))
        if layout.marker.is_file():  # another process has made the store meanwhile
            return _check_place(layout, to_write)
        if foreign:
            raise StoreError(
                f"store.path={layout.root} has other files ({', '.join(foreign[:3])}"
                f"{', ...' if foreign[3:] else ''}) and no store.json: choose an empty or a new folder; if it is a "
                "store without its marker, copy store.json from any other store of the same version"
            )
    _refuse_inside(layout.root)
    _refuse_unwritable(layout)
    return False


def _refuse_inside(root: Path) -> None:
    """Raise StoreError where a new store would be inside another store."""
    for parent in root.resolve().parents:
        try:
            marker = read_json_object(parent / "store.json", follow=True)
        except (OSError, ValueError):
            continue
        if marker.get("store") == PRODUCT:
            raise StoreError(f"store.path={root} is inside the store {parent}: choose a folder outside of it")


def refuse_missing(layout: Layout) -> None:
    """Raise StoreError where a table's folder is missing: the others' rows would count as unfinished."""
    if missing := missing_tables(layout):
        raise StoreError(
            f"{layout.root} lacks its folders {', '.join(missing)}, and all rows in them: put them back, or create "
            "empty ones if they are lost"
        )


def _is_half_made(layout: Layout, entry: Path) -> bool:
    """Return whether ``entry`` was left by a process that was killed while it made a store."""
    own = entry in (layout.tmp, *layout.folders()) and is_folder(entry)
    return own and all(e.name.startswith("store.json.") for e in entry.iterdir())


def _refuse_unwritable(layout: Layout) -> None:
    nearest = layout.root.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise StoreError(f"store.path={layout.root}: {nearest} is a file: choose a folder for the store")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StoreError(
            f"store.path={layout.root}: {nearest} is not writable: choose another store.path or change its owner"
        )


def read_marker(layout: Layout) -> dict[str, Any]:
    """Return the content of ``store.json``.

    Raises:
        StoreError: no store, an unreadable marker, or a newer schema.
    """
    refuse_unusable_name(layout.root)
    try:
        marker = read_json_object(layout.marker, follow=True)
        version, columns = marker["schema_version"], marker["columns"]
        if marker["store"] != PRODUCT or type(version) is not int or version < 0:
            raise ValueError(f"it is not {PRODUCT}'s")
        if not isinstance(columns, dict) or not all(isinstance(columns.get(kind, {}), dict) for kind in TABLES):
            raise ValueError("its columns are not listed by table")
    except (FileNotFoundError, NotADirectoryError):
        exists = layout.root.exists()
        reason = "it is a file" if layout.root.is_file() else "it has no store.json" if exists else "it does not exist"
        raise StoreError(f"no store at {layout.root} ({reason}): give the folder of a store") from None
    except OSError:
        with disk_errors(f"reading {layout.marker}"):
            raise
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{layout.marker} cannot be read as a store's marker ({error}): copy store.json from any other store of "
            "the same version; it is the same file in all"
        ) from None
    if version > SCHEMA_VERSION:
        raise StoreError(newer(layout.root, f"schema {version}"))
    if version == SCHEMA_VERSION:
        for kind in TABLES:
            unknown = [name for name in columns.get(kind, {}) if name not in columns_of(kind)]
            if unknown:
                raise StoreError(newer(layout.root, f"the column {unknown[0]!r} of {kind}"))
    return marker


def is_current(marker: dict[str, Any]) -> bool:
    """Return whether the marker names exactly the columns of this version, in their order."""
    return bool(marker["schema_version"] == SCHEMA_VERSION) and all(
        list(marker["columns"].get(kind, {}).items()) == list(columns_of(kind).items()) for kind in TABLES
    )


def current_marker() -> dict[str, Any]:
    """Return what ``store.json`` says in this version."""
    return {
        "store": PRODUCT,
        "schema_version": SCHEMA_VERSION,
        "columns": {kind: columns_of(kind) for kind in TABLES},
    }


def make_store(path: str | Path) -> Layout:
    """Return the layout of the store at ``path``, made when missing.

    Raises:
        StoreError: a file, a folder of something else, an unwritable place or a newer schema.
    """
    layout = Layout(Path(path))
    with disk_errors(f"store.path={path}"):
        exists = _check_place(layout, to_write=True)
        for folder in reversed([folder for folder in (layout.root, *layout.root.parents) if not folder.exists()]):
            folder.mkdir(exist_ok=True)
            flush_folder(folder.parent)
        for folder in (layout.tmp, *layout.folders()):
            folder.mkdir(exist_ok=True)
        flush_folder(layout.root)
        if not exists:
            try:
                write_json(layout.marker, current_marker(), layout.tmp)  # last: it makes the folder a store
            except FileNotFoundError:
                if not layout.marker.is_file():  # else another process made the store and cleared tmp/
                    raise
        with locked(layout.lock):
            pass  # a file system without locks is refused here, before any training
    return layout


def refuse_older(layout: Layout) -> None:
    """Raise StoreError where the store has the columns of an older version. Writes nothing."""
    if not is_current(read_marker(layout)):
        raise StoreError(
            f"{layout.root} was written by an older version (its columns differ): "
            f"run `grok store migrate {layout.root}` first"
        )


def staged(layout: Layout, name: str) -> Path:
    """Return a fresh path in ``tmp/``."""
    return layout.tmp / f"{name}.{unique()}"
