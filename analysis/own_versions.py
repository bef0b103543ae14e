"""Which version of the user's own code a command needs. A store keeps the hashes of code, not its text."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from analysis.observations import HASH, Observations


def hashes_in_words(text: Any) -> Any:
    """Return the hashes of a run's own code as ``knot.knot 8b939bf6d17dbe40``; other values as they are."""
    return ", ".join(f"{path} {version}" for path, version in hashes_of(text).items()) or text


def hashes_of(text: Any) -> dict[str, str]:
    """Return a run's ``own_code`` as hashes by import path; empty for text that no version of this package wrote."""
    try:
        return {str(path): str(version) for path, version in json.loads(text).items()}
    except (TypeError, ValueError, AttributeError):
        return {}


def code_needed(observations: Observations, rows: pd.DataFrame) -> str:
    """Return the own code that ``rows`` were trained with, and later versions of it; empty if they have none."""
    if "own_code" not in rows or rows["own_code"].isna().all():
        return ""
    last = observations.once(_last_starts)
    named = {pair for text in rows["own_code"].dropna().unique() for pair in hashes_of(text).items()}
    words = []
    for path, version in sorted(named):
        later = [v for (p, v), start in last.items() if p == path and v != version and start > last[path, version]]
        later = [v for v in later if (path, v) not in named]
        newest = max(later, key=lambda v: (last[path, v], v), default="")
        older = f" (an older version: the store has later runs of {newest[:HASH]})" if newest else ""
        words.append(f"{path} {version[:HASH]}{older}")
    return ", ".join(words)


def _last_starts(observations: Observations) -> dict[tuple[str, str], pd.Timestamp]:
    """Return when the last run of each (import path, hash) of own code began."""
    runs = observations.all_runs.dropna(subset=["own_code"])
    last = pd.to_datetime(runs["started_at"]).groupby(runs["own_code"]).max()
    starts: dict[tuple[str, str], pd.Timestamp] = {}
    for text, start in last.items():
        for pair in hashes_of(text).items():
            known = starts.get(pair, pd.Timestamp.min)
            starts[pair] = known if pd.isna(start) else max(known, start)
    return starts
