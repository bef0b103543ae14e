"""The shortest commands that train stored runs again, and the own code that they need."""

from __future__ import annotations

import pandas as pd

from analysis.observations import Observations
from analysis.own_versions import HASH, hashes_of
from grok.streams import STREAMS, derive_seed


def rerun_command(row: pd.Series) -> str:
    """Return the store's ``rerun`` command without the seeds that the master seed derives anyway."""
    return _shortened(str(row["rerun"]), int(row["seed"]))


def rerun_commands(runs: pd.DataFrame) -> pd.Series:
    """Return :func:`rerun_command` of every row."""
    pairs = zip(runs["rerun"], runs["seed"], strict=True)
    return pd.Series([_shortened(str(command), int(seed)) for command, seed in pairs], index=runs.index, dtype=object)


def _shortened(command: str, seed: int) -> str:
    # The store writes these words unquoted, with one space before and after.
    padded = f"{command} "
    for stream in STREAMS:
        padded = padded.replace(f" seeds.{stream}={derive_seed(seed, stream)} ", " ", 1)
    return padded[:-1]


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
