"""Tables of chains: work that was killed until it was through, one row for each, in a CSV file."""

from __future__ import annotations

import csv
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from grok.store import Provenance

Chain = TypeVar("Chain")
"""A dataclass of numbers, flags and texts."""


def machine() -> dict[str, str]:
    """Return the columns that say when, and with which commit and torch, a chain was made."""
    here = Provenance.collect().on_this_machine()
    commit = f"{(here.git_commit or 'none')[:10]}{'+' if here.git_dirty else ''}"
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit, "torch": str(here.torch_version)}


def read_table(path: Path, kind: type[Chain]) -> list[Chain]:
    """Return the chains of a table, none where there is no table yet."""
    if not path.exists():
        return []
    kinds = {"int": int, "float": float, "bool": lambda text: text == "True", "str": str}
    types = {f.name: kinds[str(f.type)] for f in fields(kind)}  # type: ignore[arg-type]
    with path.open(newline="", encoding="utf-8") as file:
        return [kind(**{name: read(row[name]) for name, read in types.items()}) for row in csv.DictReader(file)]


def append(path: Path, chain: Any) -> None:
    """Append one row to a table, with a head where it is new."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(chain)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(asdict(chain))
