"""All that a store says about its runs, bit by bit, but when and where it was made."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from grok.store import open_store

MACHINE = ["seconds", "host", "started_at", "git_commit", "git_dirty", "sweep_id"]
"""What may differ between two stores of the same runs; the settings too, which say where and on how many workers."""


def raw_run_ids(store: Path) -> list[str]:
    """Return the ids of the committed runs as any reader finds them, with no knowledge of this project."""
    return [r for file in sorted((store / "runs").glob("*.parquet")) for r in pq.read_table(file)["run_id"].to_pylist()]


def content(store: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return (runs, curves), every value as text that tells any two floats apart; check that each is there once."""
    raw = raw_run_ids(store)
    assert len(raw) == len(set(raw)), "a run is counted twice"
    opened = open_store(store)
    runs = opened.runs()
    runs = runs.drop(columns=[c for c in runs if c in MACHINE or str(c).startswith("config.")])
    return _exact(runs.sort_values("run_id")), _exact(opened.curves().sort_values(["run_id", "step"]))


def _exact(frame: pd.DataFrame) -> list[dict[str, str]]:
    records = frame.astype(object).to_dict("records")
    return [{str(k): v.hex() if isinstance(v, float) else str(v) for k, v in row.items()} for row in records]
